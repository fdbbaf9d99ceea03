"""Volumes, maps and pictures that the page of a registration shows."""

"""Starts of a registration that need more than the two images."""

"""Starts of a registration: what they are fitted to, and those that need more than the two images."""

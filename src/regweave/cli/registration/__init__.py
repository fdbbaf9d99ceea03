"""Commands that register."""

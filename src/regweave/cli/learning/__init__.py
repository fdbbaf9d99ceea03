"""Commands that learn and compare."""

"""Configuration of a registration: members of the bank, levels, presets."""

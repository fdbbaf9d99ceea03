"""Parsers of ITK's transform files: each format is read here, number by number, and ITK gets numbers alone."""

"""Transform files of ITK: each format is parsed here, number by number, and ITK gets numbers alone."""

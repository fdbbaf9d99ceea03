"""Learning of columns for the discrete levels, and their selection by left-out patients."""

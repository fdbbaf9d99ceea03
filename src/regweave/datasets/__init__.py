"""Data sets: lists of pairs, cross-validation folds, phantoms, simulated follow-ups."""

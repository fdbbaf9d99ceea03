"""Learning of the refinement: weights of its members, its smoothness, and columns by structure."""

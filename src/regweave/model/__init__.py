"""Model files: learned weights with the settings and the predictor they belong to."""

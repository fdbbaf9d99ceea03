"""Predictors of structures: class probabilities for images that come without a segmentation."""

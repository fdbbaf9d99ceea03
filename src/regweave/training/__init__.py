"""Training of a model: smoothness, predictors, refinement weights and learned columns, cross-validated."""

"""Registration of a pair: affine start, discrete coarse-to-fine levels, continuous refinement."""

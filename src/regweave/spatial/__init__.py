"""Spatial maps: free-form deformations, dense fields, their composition, inverse and effect on images."""

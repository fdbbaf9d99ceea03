"""Drawn structures as shapes: signed distances on the true slices, and sub-voxel outlines again."""

"""Image readers: one checked way from a file to voxels with a frame."""

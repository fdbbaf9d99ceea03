"""Parts of the convolutional network: grids, intensities, layers, and their training in PyTorch."""

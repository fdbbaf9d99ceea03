"""Structured learning of the weights from pairs with masks: it sees `align`, the feature map Ψ and the loss Δ only."""

"""Energies of a Markov random field: cost volumes, the feature map Ψ, and the place where weights and loss meet."""

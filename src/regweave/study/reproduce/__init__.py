"""Experiments of Ferrante et al. 2017: data, protocols, methods and pictures."""

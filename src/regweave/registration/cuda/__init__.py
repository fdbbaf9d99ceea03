"""CUDA backend: the verbs of both registration loops on arrays that stay on an NVIDIA GPU."""

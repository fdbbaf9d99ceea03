"""Spatial transforms on disk: ITK files and displacement images."""

"""Measures of registration quality: overlap, surface distance, regularity."""

"""Contour propagation between two scans of a patient: start, registration, contours, quality assurance."""

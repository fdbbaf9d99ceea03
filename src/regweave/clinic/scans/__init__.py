"""Scans as they are registered: patient, working copy, masks, similarity."""

"""Stages of one registration: their progress, the evidence of the last discrete step, the measurements at the end."""

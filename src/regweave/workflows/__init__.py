"""What users run: whole tasks put together from the folders above."""

"""One registration, from files to a result with its record."""

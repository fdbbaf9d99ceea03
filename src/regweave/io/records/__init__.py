"""JSON records of results: their schemas, and the names of their files."""

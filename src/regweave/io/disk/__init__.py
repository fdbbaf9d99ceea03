"""Files and folders on disk: whole or absent, bounded, and owned."""

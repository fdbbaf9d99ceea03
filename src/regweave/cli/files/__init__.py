"""Commands on files: look, convert, warp."""

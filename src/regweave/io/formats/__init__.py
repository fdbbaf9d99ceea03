"""Decoders of image file formats: bytes and headers, checked one by one."""

"""PNG pictures of 8-bit pixels: the few chunks a picture needs."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GREY, RGB = 0, 2


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    r"""Encode grey (rows, columns) or RGB (rows, columns, 3) pixels.

    Examples
    --------
    >>> encode_png(np.zeros((2, 3), dtype=np.uint8))[:4]
    b'\x89PNG'
    """
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)):
        raise ValueError(f"pixels are {pixels.dtype} of shape {pixels.shape}; needed are uint8, (H, W) or (H, W, 3)")
    height, width = pixels.shape[:2]
    colour = GREY if pixels.ndim == 2 else RGB
    rows = np.ascontiguousarray(pixels).reshape(height, -1)
    filtered = np.hstack([np.zeros((height, 1), dtype=np.uint8), rows])  # filter 0: each row as it is
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(filtered.tobytes(), 9)) + _chunk(b"IEND")


def data_address(png: bytes) -> str:
    """Return a picture as an address that holds the picture itself."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _chunk(kind: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

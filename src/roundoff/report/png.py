"""Pictures made of numbers, as PNG files that stand inside a page."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import numpy.typing as npt

_GREY, _RGB = 0, 2
"""How PNG tells its pixels: one number each, or three."""


def png_address(pixels: npt.NDArray[np.uint8]) -> str:
    """Return an address that holds the picture itself, for an `img` of a page that asks nobody for anything."""
    return f"data:image/png;base64,{base64.b64encode(png(pixels)).decode()}"


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Return a PNG file of pixels: height x width for grey ones, height x width x 3 for colours."""
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)
    height, width = pixels.shape[:2]
    kind = _GREY if pixels.ndim == 2 else _RGB
    lines = np.zeros((height, 1 + pixels[0].size), dtype=np.uint8)  # the first byte of a line: nothing is predicted
    lines[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in chunks)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

"""Samples of batches as a person can look at them: PNG images where they can be drawn, text and numbers otherwise."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from roundoff.diagnose.data.saved_samples import COLOURS, channel_axis
from roundoff.diagnose.wording import format_short
from roundoff.report.markup import Html, tag

_GREY, _RGB = 0, 2
"""How PNG tells its pixels: one number each, or three."""


def png_address(pixels: npt.NDArray[np.uint8]) -> str:
    """Return a data URL that contains the image, so that a page needs no other file."""
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


Array: TypeAlias = npt.NDArray[Any]
Pixels: TypeAlias = npt.NDArray[np.uint8]

MAX_SIDE = 64
"""Of a picture, in pixels; larger ones are drawn with every second or third line."""
MIN_SIDE = 4
MIN_VECTOR_LENGTH = 64
"""Vectors of at least this length, if it is a square number, are drawn: often they are flattened images."""
MAX_NUMBERS = 8
MAX_IDS = 40
_NOT_FINITE = (255, 0, 255)


def pictures(samples: Array) -> list[Pixels] | None:
    """Return a picture of each sample, all on one scale from the smallest number to the largest; None if none can be.

    What is not finite is magenta.
    """
    drawn = _as_images(samples)
    if drawn is None:
        return None
    every = math.ceil(max(drawn.shape[1:3]) / MAX_SIDE)
    drawn = drawn[:, ::every, ::every].astype(np.float64)
    finite = np.isfinite(drawn)
    low, high = _ends(samples)
    span = high - low
    levels = np.where(finite, drawn - low, 0) * (255 / span) if span > 0 else np.full(drawn.shape, 128.0)
    pixels = levels.round().clip(0, 255).astype(np.uint8)
    if pixels.shape[3] == 1 and finite.all():
        return list(pixels[..., 0])
    pixels = np.broadcast_to(pixels, (*pixels.shape[:3], 3)).copy()
    pixels[~finite.all(axis=3)] = _NOT_FINITE
    return list(pixels)


def how_drawn(samples: Array) -> str:
    """Say how samples became pictures.

    >>> how_drawn(np.zeros((2, 1, 28, 28)))
    '1 x 28 x 28, from black 0 to white 0'
    """
    shape = " x ".join(map(str, samples.shape[1:]))
    low, high = _ends(samples)
    side = math.isqrt(samples.shape[1])
    square = f", drawn as {side} x {side}" if samples.ndim == 2 else ""
    num_channels = samples.shape[channel_axis(samples)] if samples.ndim == 4 else 1
    only = "" if num_channels in COLOURS else f", channel 0 of {num_channels}"
    return f"{shape}{square}{only}, from black {format_short(low)} to white {format_short(high)}"


def sample_text(sample: Array) -> Html:
    """Return a sample as text: bytes as their letters, ids as numbers, the first of other numbers."""
    flat = sample.reshape(-1)
    if flat.dtype.kind in "iu":
        ids = " ".join(map(str, flat[:MAX_IDS].tolist())) + (" ..." if flat.size > MAX_IDS else "")
        letters = _letters(flat)
        return tag("span", *([tag("q", letters), " "] if letters else []), tag("code", ids))
    numbers = ", ".join(f"{number:.3g}" for number in flat[:MAX_NUMBERS].tolist())
    more = f" ... ({flat.size} numbers)" if flat.size > MAX_NUMBERS else ""
    return tag("code", numbers + more)


def label_text(label: Array) -> str:
    """Write what the loss was given for a sample.

    >>> label_text(np.array(3)), label_text(np.array([0.25, 1.0])), label_text(np.arange(50))
    ('3', '0.25, 1', '0, 1, 2, 3, 4, 5, 6, 7 ...')
    """
    flat = label.reshape(-1)
    words = ", ".join(f"{number:.3g}" if label.dtype.kind == "f" else str(number) for number in flat[:8].tolist())
    return words + (" ..." if flat.size > 8 else "")


def picture_html(pixels: Pixels, *, words: str) -> Html:
    """Return a picture for a page, with words for those who cannot see it."""
    return tag("img", src=png_address(pixels), alt=words, width=pixels.shape[1], height=pixels.shape[0])


def _as_images(samples: Array) -> Array | None:
    """Return samples as (samples, height, width, 1 or 3); None if they are no pictures."""
    is_number = samples.dtype.kind in "fu" or samples.ndim == 4
    if not is_number or not samples.size:
        return None
    if samples.ndim == 4:
        last = np.moveaxis(samples, channel_axis(samples), 3)
        images = last[..., :3] if last.shape[3] in (3, 4) else last[..., :1]
        return images if min(images.shape[1:3]) >= MIN_SIDE else None
    if samples.ndim == 3 and min(samples.shape[1:]) >= MIN_SIDE:
        return samples[..., None]
    side = math.isqrt(samples.shape[1]) if samples.ndim == 2 else 0
    if samples.ndim == 2 and samples.shape[1] >= MIN_VECTOR_LENGTH and side * side == samples.shape[1]:
        return samples.reshape(-1, side, side, 1)
    return None


def _ends(samples: Array) -> tuple[float, float]:
    finite = samples[np.isfinite(samples)] if samples.dtype.kind == "f" else samples
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def _letters(ids: Array) -> str:
    """Return ids as text if each is a printable byte."""
    values = ids[: 4 * MAX_IDS].tolist()
    is_text = len(values) > 3 and all(value in (9, 10, 13) or 32 <= value < 127 for value in values)
    return "".join(map(chr, values)) if is_text else ""

"""Pictures as PNG files, read back by another library."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from roundoff.report.run_page.training_data import png, png_address


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (5, 3, 3), (64, 64, 3)], ids=str)
def test_another_reader_sees_the_same_pixels(shape: tuple[int, ...]):
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    picture = Image.open(io.BytesIO(png(pixels)))
    assert np.array_equal(np.asarray(picture), pixels)


def test_the_address_holds_the_file():
    pixels = np.eye(4, dtype=np.uint8)
    kind, _, content = png_address(pixels).partition(",")
    assert (kind, base64.b64decode(content)) == ("data:image/png;base64", png(pixels))

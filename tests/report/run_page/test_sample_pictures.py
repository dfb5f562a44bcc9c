"""Which samples become pictures, and how their numbers become pixels."""

import numpy as np
import pytest

from roundoff.report.run_page.training_data import how_drawn, pictures, sample_text


@pytest.mark.parametrize(
    ("shape", "drawn"),
    [
        ((2, 1, 8, 8), (8, 8)),
        ((2, 3, 6, 5), (6, 5, 3)),
        ((2, 6, 5, 3), (6, 5, 3)),
        ((2, 4, 8, 8), (8, 8, 3)),
        ((2, 16, 8, 8), (8, 8)),
        ((2, 3, 224, 160), (56, 40, 3)),
        ((2, 28, 28), (28, 28)),
        ((2, 784), (28, 28)),
        ((2, 16), None),
        ((2, 100, 2), None),
        ((2, 65), None),
        ((2,), None),
    ],
    ids=str,
)
def test_images_maps_and_flattened_squares_are_drawn_and_others_are_not(
    shape: tuple[int, ...], drawn: tuple[int, ...] | None
):
    found = pictures(np.random.default_rng(0).normal(size=shape).astype(np.float32))
    assert (None if found is None else found[1].shape) == drawn


def test_all_samples_are_drawn_on_one_scale():
    samples = np.zeros((2, 1, 4, 4), dtype=np.float32)
    samples[0], samples[1], samples[1, 0, 0, 0] = -1.0, 0.0, 1.0
    dark, middle = pictures(samples) or []
    assert (dark.max(), middle[0, 0], middle[1, 1]) == (0, 255, 128)
    assert how_drawn(samples) == "1 x 4 x 4, from black -1 to white 1"
    assert how_drawn(np.ones((2, 64))) == "64, drawn as 8 x 8, from black 1 to white 1"
    assert how_drawn(np.ones((2, 16, 7, 7))) == "16 x 7 x 7, channel 0 of 16, from black 1 to white 1"


def test_a_sample_of_one_number_is_grey_and_what_is_not_finite_is_magenta():
    samples = np.ones((1, 1, 4, 4), dtype=np.float32)
    (plain,) = pictures(samples) or []
    assert set(plain.reshape(-1).tolist()) == {128}
    samples[0, 0, 1, 2] = np.nan
    (marked,) = pictures(samples) or []
    assert marked[1, 2].tolist() == [255, 0, 255]
    assert marked[0, 0].tolist() == [128, 128, 128]


def test_bytes_are_shown_as_their_letters_and_other_ids_as_numbers():
    assert sample_text(np.array(list(b"a <b> c"))) == (
        "<span><q>a &lt;b&gt; c</q> <code>97 32 60 98 62 32 99</code></span>"
    )
    assert sample_text(np.array([50256, 3, 3, 3, 3])) == "<span><code>50256 3 3 3 3</code></span>"
    assert sample_text(np.arange(9.0)) == "<code>0, 1, 2, 3, 4, 5, 6, 7 ... (9 numbers)</code>"

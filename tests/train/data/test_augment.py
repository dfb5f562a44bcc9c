import numpy as np
import torch

from roundoff.train.data import Batch, Draw
from roundoff.train.data.images import Images, Preparation, colour_jitter, mixup, random_crop, random_flip


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_a_crop_is_the_image_moved_by_up_to_the_padding():
    image = torch.arange(1.0, 26.0).view(1, 1, 5, 5)
    padded = torch.nn.functional.pad(image, (1, 1, 1, 1))
    allowed = [padded[..., top : top + 5, left : left + 5] for top in range(3) for left in range(3)]
    cropped = random_crop(image.expand(200, 1, 5, 5), random(), padding=1)
    found = [any(torch.equal(one[None], other) for other in allowed) for one in cropped]
    assert all(found)
    assert len({tuple(one.flatten().tolist()) for one in cropped}) == 9


def test_every_channel_moves_alike():
    image = torch.rand(1, 1, 6, 6).expand(8, 3, 6, 6)
    cropped = random_crop(image, random(), padding=2)
    assert torch.equal(cropped[:, 0], cropped[:, 2])


def test_a_flip_mirrors_about_half_of_the_images():
    images = torch.arange(4.0).view(1, 1, 1, 4).expand(1000, 1, 1, 4)
    flipped = random_flip(images, random())[:, 0, 0, 0] == 3
    assert 430 < flipped.sum() < 570


def test_jitter_keeps_colours_within_0_and_1_and_leaves_grey_grey():
    images = torch.rand(16, 1, 4, 4).expand(16, 3, 4, 4)
    jittered = colour_jitter(images, random())
    assert jittered.min() >= 0
    assert jittered.max() <= 1
    assert torch.allclose(jittered[:, 0], jittered[:, 1], atol=1e-6)
    assert not torch.allclose(jittered, images)


def test_mixup_mixes_each_image_with_its_partner():
    inputs, targets = torch.rand(8, 1, 2, 2), torch.arange(8)
    mixed = mixup(Batch(inputs, targets), random(), alpha=0.4)
    assert mixed.other_targets is not None
    assert 0 <= mixed.share <= 1
    partners = mixed.other_targets  # the target of an image is its place
    expected = mixed.share * inputs + (1 - mixed.share) * inputs[partners]
    assert torch.allclose(mixed.inputs, expected, atol=1e-6)
    assert sorted(partners.tolist()) == list(range(8))


def test_a_batch_depends_on_its_draw_alone():
    prepare = Preparation(augment=("crop", "flip", "jitter"), mixup=0.2)
    images = Images(torch.rand(10, 3, 8, 8), torch.arange(10), prepare=prepare)
    draw = Draw((3, 1, 4, 1), seed=5)
    first, second, other = images[draw], images[draw], images[Draw((3, 1, 4, 1), seed=6)]
    assert torch.equal(first.inputs, second.inputs)
    assert not torch.equal(first.inputs, other.inputs)


def test_bytes_become_floats_and_are_normalised():
    images = Images(
        torch.full((1, 1, 2, 2), 255, dtype=torch.uint8),
        torch.tensor([0]),
        prepare=Preparation(mean=(0.5,), std=(0.25,), gain=3.0),
    )
    assert images[Draw((0,))].inputs.unique().item() == 6.0

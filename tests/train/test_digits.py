import importlib.resources

import pytest
import torch

from roundoff.train import load_digits, train_test


def test_images_and_labels_have_the_shapes_and_dtypes_a_model_takes():
    images, labels = load_digits()
    assert (images.shape, images.dtype) == ((1797, 1, 8, 8), torch.float32)
    assert (labels.shape, labels.dtype) == ((1797,), torch.int64)


def test_pixels_are_sixteenths_between_0_and_1():
    images, _ = load_digits()
    assert (images.min(), images.max()) == (0.0, 1.0)
    assert torch.equal(images * 16, (images * 16).round())
    assert (images * 16).sum(dtype=torch.float64) == 561718


def test_every_digit_is_there_about_equally_often():
    _, labels = load_digits()
    assert torch.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_a_linear_model_learns_them():
    images, labels = load_digits()
    model = torch.nn.Linear(64, 10)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[:1400].flatten(1)), labels[:1400]).backward()
        optimizer.step()
    correct = model(images[1400:].flatten(1)).argmax(1).eq(labels[1400:]).float().mean()
    assert correct > 0.85


def test_the_split_is_disjoint_and_complete():
    train, test = train_test(seed=3)
    assert (len(train), len(test)) == (1437, 360)
    everything = torch.cat([train.tensors[0], test.tensors[0]]).sum(dtype=torch.float64)
    assert everything == load_digits()[0].sum(dtype=torch.float64)


@pytest.mark.parametrize(("seed", "same"), [(0, True), (1, False)])
def test_the_split_depends_on_the_seed_alone(seed: int, same: bool):
    torch.manual_seed(123)
    assert torch.equal(train_test(seed=seed)[1].tensors[1], train_test(seed=0)[1].tensors[1]) is same


def test_the_split_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    train_test(seed=5)
    assert torch.equal(before, torch.get_rng_state())


def test_the_file_stays_small():
    assert len(importlib.resources.files("roundoff.train").joinpath("digits.npz").read_bytes()) < 80_000

from pathlib import Path

import numpy as np
import pytest
import torch

from roundoff.errors import DataError
from roundoff.train import TrainConfig, train
from roundoff.train.data import IGNORED, Draw, load_data
from roundoff.train.data.sources import find_images, random_box

Image = pytest.importorskip("PIL.Image")


def write_images(root: Path, *, num: int = 4) -> None:
    """Write images of two classes: dark and bright."""
    for part in ("train", "val"):
        for label, brightness in (("bright", 200), ("dark", 20)):
            folder = root / part / label
            folder.mkdir(parents=True)
            for nth in range(num):
                pixels = np.full((24 + nth, 30, 3), brightness, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{nth}.jpeg")


def config(root: Path, **settings: object) -> TrainConfig:
    return TrainConfig(data=f"folder:{root}", image_size=16, batch_size=4, **settings)


def test_images_of_every_size_become_batches_of_one(tmp_path: Path):
    write_images(tmp_path)
    data = load_data(config(tmp_path))
    assert (len(data.train), len(data.test), data.num_classes, data.channels) == (8, 8, 2, 3)
    batch = data.train[Draw((0, 7, 3), seed=2)]
    assert batch.inputs.shape == (3, 3, 16, 16)
    assert batch.targets.tolist() == [0, 1, 0]


def test_evaluation_takes_the_middle_and_nothing_random(tmp_path: Path):
    write_images(tmp_path)
    data = load_data(config(tmp_path))
    assert torch.equal(data.test[Draw((1, 5), seed=1)].inputs, data.test[Draw((1, 5), seed=2)].inputs)


def test_an_unreadable_image_leaves_an_ignored_place_and_is_counted(tmp_path: Path):
    write_images(tmp_path)
    (tmp_path / "train" / "bright" / "1.jpeg").write_bytes(b"not an image")
    batch = load_data(config(tmp_path)).train[Draw((0, 1, 2), seed=2)]
    assert batch.targets.tolist() == [0, IGNORED, 0]
    assert batch.num_unreadable == 1


def test_a_cut_off_image_is_unreadable(tmp_path: Path):
    write_images(tmp_path)
    path = tmp_path / "train" / "bright" / "0.jpeg"
    path.write_bytes(path.read_bytes()[:300])
    assert load_data(config(tmp_path)).train[Draw((0,))].num_unreadable == 1


def test_a_training_goes_through_unreadable_images_and_reports_them(tmp_path: Path):
    write_images(tmp_path)
    broken = tmp_path / "train" / "dark" / "3.jpeg"
    broken.write_bytes(b"")
    result = train(config(tmp_path, width=4, epochs=2, runs=None))
    assert result.num_unreadable == 2
    assert result.first_nonfinite_step is None
    assert result.notes[-1] == f"skipped unreadable images 2 times, for example {broken}"


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(DataError) as caught:
        load_data(config(tmp_path / "nowhere"))
    assert str(caught.value) == (
        f"There is no folder '{tmp_path / 'nowhere' / 'train'}'.\n"
        "  why: folder:PATH expects images in PATH/train/CLASS/ and PATH/val/CLASS/."
    )


def test_a_class_without_images_is_named(tmp_path: Path):
    write_images(tmp_path)
    (tmp_path / "train" / "empty").mkdir()
    with pytest.raises(DataError, match=r"The class 'empty' has no images\.\n  why: .*\.jpeg, \.jpg"):
        find_images(tmp_path / "train")


def test_a_folder_without_classes_is_named(tmp_path: Path):
    with pytest.raises(DataError, match="has no folders of images"):
        find_images(tmp_path)


def test_classes_of_only_one_part_are_named(tmp_path: Path):
    write_images(tmp_path)
    (tmp_path / "val" / "dark").rename(tmp_path / "val" / "dusk")
    with pytest.raises(DataError, match=r"have different classes\.\n  why: only one of them has 'dark'"):
        load_data(config(tmp_path))


def test_a_random_box_lies_within_the_image():
    random = np.random.default_rng(0)
    for width, height in ((30, 20), (1, 100), (7, 7)):
        for _ in range(50):
            left, top, right, bottom = random_box(width, height, random)
            assert 0 <= left < right <= width + 1e-9
            assert 0 <= top < bottom <= height + 1e-9

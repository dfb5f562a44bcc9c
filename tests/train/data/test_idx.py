import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from roundoff.errors import DataError
from roundoff.train import TrainConfig
from roundoff.train.data import Draw, load_data, sources
from roundoff.train.data.sources import read_idx, read_idx_pair


def idx_bytes(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_data(folder: Path, *, num_train: int = 12, num_test: int = 5) -> None:
    random = np.random.default_rng(0)
    for part, count in (("train", num_train), ("t10k", num_test)):
        images = random.integers(0, 256, (count, 8, 8), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 3
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(idx_bytes(labels))


def test_plain_and_gzipped_files_are_read(tmp_path: Path):
    write_data(tmp_path)
    images, labels = read_idx_pair(tmp_path, part="train")
    assert (images.shape, images.dtype) == ((12, 1, 8, 8), torch.uint8)
    assert labels.tolist() == [0, 1, 2] * 4


def test_data_knows_its_classes_and_may_be_shrunk(tmp_path: Path):
    write_data(tmp_path)
    data = load_data(TrainConfig(data=f"idx:{tmp_path}", shrink=2, limit=9))
    assert (len(data.train), len(data.test), data.num_classes, data.image_size) == (9, 5, 3, 4)
    assert data.train[Draw((0, 1), seed=1)].inputs.shape == (2, 1, 4, 4)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it ends within its header."),
        (b"\0\0\x0d\x03" + b"\0" * 12, "it starts with 00 00 0d 03 instead of 00 00 08 03."),
        (b"\0\0\x08\x03\0\0", "it ends within its header."),
        (b"\0\0\x08\x03" + struct.pack(">3I", 2, 2, 2) + b"1234", "its header declares 8 bytes, but it has 4."),
        (b"\0\0\x08\x03" + struct.pack(">3I", 1, 2, 2) + b"12345", "its header declares 4 bytes, but it has more."),
        (
            b"\0\0\x08\x03" + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1),
            "its header declares 79,228,162,458,924,105,385,300,197,375 bytes.",
        ),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(tmp_path: Path, content: bytes, why: str):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_idx(path, num_dims=3)
    assert str(caught.value) == f"'{path}' cannot be read.\n  why: {why}\n  fix: download the file again."


def test_a_cut_off_gzip_is_named(tmp_path: Path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((4, 5, 5), dtype=np.uint8)))[:-9])
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(path, num_dims=3)


def test_images_and_labels_must_be_equally_many(tmp_path: Path):
    write_data(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros((2, 8, 8), dtype=np.uint8)))
    with pytest.raises(DataError, match="there are 2 images and 12 labels"):
        read_idx_pair(tmp_path, part="train")


def test_missing_files_and_folders_are_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"has no file 'train-images-idx3-ubyte' or 'train-images-idx3-ubyte\.gz'"):
        read_idx_pair(tmp_path, part="train")
    with pytest.raises(DataError, match="There is no folder"):
        read_idx_pair(tmp_path / "nowhere", part="train")


def test_missing_fashion_mnist_comes_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sources, "FASHION_MNIST", tmp_path / "nowhere")
    with pytest.raises(DataError) as caught:
        load_data(TrainConfig(data="fashion-mnist"))
    assert str(caught.value) == (
        "Fashion-MNIST is not installed.\n"
        f"  why: there is no folder '{tmp_path / 'nowhere'}'.\n"
        "  fix: on Debian and Ubuntu: apt-get install dataset-fashion-mnist; elsewhere: --data idx:FOLDER"
    )


def test_images_cannot_be_shrunk_to_nothing(tmp_path: Path):
    write_data(tmp_path)
    with pytest.raises(DataError, match=r"--shrink 100 is larger than the images\.\n  why: they have"):
        load_data(TrainConfig(data=f"idx:{tmp_path}", shrink=100))

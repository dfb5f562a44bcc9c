"""The data sources that `--data` can name: the digits, IDX files, folders of images, text files."""

from __future__ import annotations

import gzip
import os
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from roundoff.errors import DataError
from roundoff.train.config import TrainConfig
from roundoff.train.data.batch_loading import IGNORED, PADDING, Batch, Draw, Samples
from roundoff.train.data.images import Images, Preparation
from roundoff.train.digits import train_test

if TYPE_CHECKING:
    from PIL.Image import Image

VOCABULARY = 256
_TRAIN_SHARE = 0.9


class Text:
    """Consecutive windows of a text; the target of each byte is the next byte."""

    def __init__(self, text: Tensor, *, context: int, limit: int | None = None) -> None:
        self._text, self._context = text, context
        count = (len(text) - 1) // context
        self._count = count if limit is None else min(limit, count)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, draw: Draw) -> Batch:
        indices = torch.tensor(draw.indices)
        starts = indices.clamp(min=0) * self._context
        windows = self._text[starts[:, None] + torch.arange(self._context + 1)].to(torch.int64)
        targets = windows[:, 1:].masked_fill((indices == PADDING)[:, None], IGNORED)
        return Batch(windows[:, :-1].contiguous(), targets)


def read_text(path: Path, *, context: int, limit: int | None = None) -> tuple[Text, Text]:
    """Return the first nine tenths of a file, or `limit` windows of them, for training, the last for evaluation."""
    try:
        data = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise DataError.explain(f"'{path}' cannot be read.", why=f"{error.strerror}.") from error
    text = torch.from_numpy(data)
    cut = int(len(text) * _TRAIN_SHARE)
    train, test = Text(text[:cut], context=context, limit=limit), Text(text[cut:], context=context)
    if not len(test):
        raise DataError.explain(
            f"'{path}' is too short.",
            why=f"its last tenth, {len(text) - cut} bytes, does not fill one window of {context} + 1.",
            fix="use a longer text, or a smaller --context.",
        )
    return train, test


_BYTES = 0x08
_MAX_BYTES = 8 * 2**30


def read_idx_pair(folder: Path, *, part: str) -> tuple[Tensor, Tensor]:
    """Read images (n, 1, rows, columns) as bytes and their labels as int64; `part` is 'train' or 't10k'."""
    images_path = _find(folder, f"{part}-images-idx3-ubyte")
    labels_path = _find(folder, f"{part}-labels-idx1-ubyte")
    images, labels = read_idx(images_path, num_dims=3), read_idx(labels_path, num_dims=1)
    if len(images) != len(labels):
        raise DataError.explain(
            f"'{images_path}' and '{labels_path}' do not belong together.",
            why=f"there are {len(images)} images and {len(labels)} labels.",
        )
    if not len(images):
        raise DataError.explain(f"'{images_path}' contains no images.")
    return images.unsqueeze(1), labels.to(torch.int64)


def read_idx(path: Path, *, num_dims: int) -> Tensor:
    """Read an IDX file of bytes; raises a `DataError` if it is broken.

    Only the bytes that its header declares are read, and one more to check that there are no others.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4)
            if len(header) < 4:
                raise _invalid_file_error(path, "it ends within its header.")
            if header[:2] != b"\0\0" or header[2] != _BYTES or header[3] != num_dims:
                raise _invalid_file_error(path, f"it starts with {header.hex(' ')} instead of 00 00 08 {num_dims:02}.")
            sizes = file.read(4 * num_dims)
            if len(sizes) < 4 * num_dims:
                raise _invalid_file_error(path, "it ends within its header.")
            shape = struct.unpack(f">{num_dims}I", sizes)
            num_bytes = int(np.prod(shape, dtype=object))
            if num_bytes > _MAX_BYTES:
                raise _invalid_file_error(path, f"its header declares {num_bytes:,} bytes.")
            data = file.read(num_bytes + 1)
    except (OSError, EOFError) as error:
        raise _invalid_file_error(path, f"{error}.") from error
    if len(data) != num_bytes:
        found = f"{len(data):,}" if len(data) < num_bytes else "more"
        raise _invalid_file_error(path, f"its header declares {num_bytes:,} bytes, but it has {found}.")
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).reshape(shape).copy())


def _find(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise DataError.explain(f"There is no folder '{folder}'.", fix="pass the folder with the IDX files.")
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError.explain(
        f"'{folder}' has no file '{name}' or '{name}.gz'.",
        why="IDX data has four files: images-idx3-ubyte and labels-idx1-ubyte, with the prefixes train- and t10k-.",
    )


def _invalid_file_error(path: Path, why: str) -> DataError:
    return DataError.explain(f"'{path}' cannot be read.", why=why, fix="download the file again.")


FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's dataset-fashion-mnist installs it."""

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Training and test data, and its dimensions."""

    train: Samples
    test: Samples
    num_classes: int
    channels: int = 1
    image_size: int = 0
    """Side of the images; 0 for text."""


def load_data(config: TrainConfig) -> Data:
    """Load the configured data; raises a `DataError` if it is missing or broken."""
    kind, _, path = config.data.partition(":")
    if kind == "digits":
        digits, test_digits = (part.tensors for part in train_test())
        return _in_memory(config, digits, test_digits, prepare=Preparation(augment=_augment(config, ())))
    if kind == "fashion-mnist":
        return _fashion_mnist(config)
    if kind == "idx":
        return _idx(config, Path(path), augment=("crop",))
    if kind == "folder":
        return _folder(config, Path(path))
    assert kind == "text", kind
    train, test = read_text(Path(path), context=config.context, limit=config.limit)
    return Data(train=train, test=test, num_classes=VOCABULARY)


def _fashion_mnist(config: TrainConfig) -> Data:
    if not FASHION_MNIST.is_dir():
        raise DataError.explain(
            "Fashion-MNIST is not installed.",
            why=f"there is no folder '{FASHION_MNIST}'.",
            fix="on Debian and Ubuntu: apt-get install dataset-fashion-mnist; elsewhere: --data idx:FOLDER",
        )
    return _idx(config, FASHION_MNIST, augment=("crop", "flip"))


def _idx(config: TrainConfig, folder: Path, *, augment: tuple[str, ...]) -> Data:
    train, test = (_shrink(read_idx_pair(folder, part=part), config.shrink) for part in ("train", "t10k"))
    some = train[0][:1000].to(torch.float32)
    some = some / 255 if train[0].dtype == torch.uint8 else some
    prepare = Preparation(
        mean=(some.mean().item(),), std=(max(some.std().item(), 1e-3),), augment=_augment(config, augment)
    )
    return _in_memory(config, train, test, prepare=prepare)


def _folder(config: TrainConfig, root: Path) -> Data:
    import_pillow()
    paths, labels, names = find_images(root / "train")
    test_paths, test_labels, test_names = find_images(root / "val")
    if names != test_names:
        odd = sorted(set(names) ^ set(test_names))
        raise DataError.explain(
            f"'{root}/train' and '{root}/val' have different classes.", why=f"only one of them has '{odd[0]}'."
        )
    augment = _augment(config, ("crop", "flip", "jitter"))
    inner = tuple(name for name in augment if name != "crop")  # images are cropped when they are read

    def prepare(augment: tuple[str, ...], mixup: float) -> Preparation:
        return Preparation(mean=_IMAGENET_MEAN, std=_IMAGENET_STD, gain=config.input_gain, augment=augment, mixup=mixup)

    count = config.limit or len(paths)
    return Data(
        train=ImageFolder(
            paths[:count],
            labels[:count],
            size=config.image_size,
            crop="crop" in augment,
            prepare=prepare(inner, config.mixup),
        ),
        test=ImageFolder(test_paths, test_labels, size=config.image_size, crop=False, prepare=prepare((), 0.0)),
        num_classes=len(names),
        channels=3,
        image_size=config.image_size,
    )


def _in_memory(
    config: TrainConfig, train: tuple[Tensor, ...], test: tuple[Tensor, ...], *, prepare: Preparation
) -> Data:
    (images, labels), (test_images, test_labels) = train, test
    count = config.limit or len(labels)
    training = replace(prepare, gain=config.input_gain, mixup=config.mixup)
    plain = replace(training, augment=(), mixup=0.0)
    return Data(
        train=Images(images[:count], labels[:count], prepare=training),
        test=Images(test_images, test_labels, prepare=plain),
        num_classes=int(max(labels.max(), test_labels.max())) + 1,
        channels=images.shape[1],
        image_size=images.shape[-1],
    )


def _augment(config: TrainConfig, usual: tuple[str, ...]) -> tuple[str, ...]:
    chosen = usual if config.augment is None else config.augment
    return tuple(name for name in chosen if name != "none")


def _shrink(pair: tuple[Tensor, Tensor], factor: int) -> tuple[Tensor, Tensor]:
    images, labels = pair
    if factor == 1:
        return pair
    if factor > min(images.shape[-2:]):
        raise DataError.explain(
            f"--shrink {factor} is larger than the images.",
            why=f"they have {images.shape[-2]} x {images.shape[-1]} pixels.",
        )
    return F.avg_pool2d(images.to(torch.float32).div_(255), factor), labels


# -- images in folders, one folder a class: PATH/train/CLASS/*.jpeg and PATH/val/CLASS/*.jpeg --------------------------


SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
_EVAL_MARGIN = 256 / 224
"""In evaluation, the shorter side is scaled to this times the crop, which is taken from the centre."""


class ImageFolder:
    """Images that are read when they are drawn. The target of an unreadable one is `IGNORED`, and it is counted."""

    def __init__(self, paths: list[str], labels: Tensor, *, size: int, crop: bool, prepare: Preparation) -> None:
        self._paths = np.array(paths)  # one block of memory, because workers would copy a list page by page
        self._labels = labels
        self._size = size
        self._box = random_box if crop else _eval_box
        self._prepare = prepare

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, draw: Draw) -> Batch:
        random = draw.generator(stream=1)
        images = torch.zeros(len(draw.indices), 3, self._size, self._size)
        targets = torch.full((len(draw.indices),), IGNORED)
        num_unreadable, unreadable = 0, ""
        for place, index in enumerate(draw.indices):
            if index == PADDING:
                continue
            path = str(self._paths[index])
            pixels = _read(path, size=self._size, box=lambda w, h: self._box(w, h, random))
            if pixels is None:
                num_unreadable, unreadable = num_unreadable + 1, path
            else:
                images[place], targets[place] = pixels, self._labels[index]
        return self._prepare(Batch(images, targets, num_unreadable=num_unreadable, unreadable=unreadable), draw)


def find_images(folder: Path) -> tuple[list[str], Tensor, list[str]]:
    """Return the paths of all images, their labels, and the names of the classes, sorted by name."""
    if not folder.is_dir():
        raise DataError.explain(
            f"There is no folder '{folder}'.",
            why="folder:PATH expects images in PATH/train/CLASS/ and PATH/val/CLASS/.",
        )
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    if not names:
        raise DataError.explain(f"'{folder}' has no folders of images.", why="each class is a folder in it.")
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        found = _images_below(folder / name)
        if not found:
            raise DataError.explain(
                f"The class '{name}' has no images.",
                why=f"'{folder / name}' has no file that ends in {', '.join(SUFFIXES)}.",
                fix="add images, or remove the folder.",
            )
        paths += found
        labels += [label] * len(found)
    return paths, torch.tensor(labels), names


def random_box(width: int, height: int, random: np.random.Generator) -> tuple[float, float, float, float]:
    """Choose a random part of an image: 8 to 100 % of its area, with an aspect ratio from 3:4 to 4:3."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        wide, high = float(np.sqrt(area * ratio)), float(np.sqrt(area / ratio))
        if wide <= width and high <= height:
            left, top = random.uniform(0, width - wide), random.uniform(0, height - high)
            return left, top, left + wide, top + high
    return _middle(width, height, min(width, height))


def _eval_box(width: int, height: int, random: np.random.Generator) -> tuple[float, float, float, float]:
    return _middle(width, height, min(width, height) / _EVAL_MARGIN)


def _middle(width: int, height: int, side: float) -> tuple[float, float, float, float]:
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def _images_below(folder: Path) -> list[str]:
    found = [
        os.path.join(where, name)
        for where, _, names in os.walk(folder, followlinks=True)
        for name in names
        if name.lower().endswith(SUFFIXES)
    ]
    return sorted(found)


def _read(path: str, *, size: int, box: Callable[[int, int], Any]) -> Tensor | None:
    """Return the part `box` of an image as (3, size, size), from 0 to 1; None if it cannot be read."""
    image_module = import_pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # strange metadata is no reason to skip an image
            with image_module.open(path) as file:
                image: Image = file.convert("RGB")
        part = image.resize((size, size), image_module.Resampling.BILINEAR, box=box(*image.size))
    except (OSError, ValueError, SyntaxError, image_module.DecompressionBombError):
        return None
    return torch.from_numpy(np.asarray(part).copy()).permute(2, 0, 1).to(torch.float32).div_(255)


def import_pillow() -> Any:
    """Return Pillow's Image module, or raise an error that says how to install it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError.explain(
            "Images in folders need Pillow.", why=f"{error}.", fix="pip install 'roundoff[images]'"
        ) from error
    return Image

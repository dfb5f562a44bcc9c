"""Images in folders, one folder a class: PATH/train/CLASS/*.jpeg and PATH/val/CLASS/*.jpeg."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from roundoff.errors import DataError
from roundoff.train.data.batch import IGNORED, PADDING, Batch, Draw
from roundoff.train.data.images import Preparation

if TYPE_CHECKING:
    from PIL.Image import Image

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

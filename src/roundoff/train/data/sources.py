"""The data sources that `--data` can name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from roundoff.errors import DataError
from roundoff.train.config import TrainConfig
from roundoff.train.data.batch import Samples
from roundoff.train.data.idx import read_idx_pair
from roundoff.train.data.image_folder import ImageFolder, find_images, import_pillow
from roundoff.train.data.images import Images, Preparation
from roundoff.train.data.text_file import VOCABULARY, read_text
from roundoff.train.digits import train_test

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
        return _digits(config)
    if kind == "fashion-mnist":
        return _fashion_mnist(config)
    if kind == "idx":
        return _idx(config, Path(path), augment=("crop",))
    if kind == "folder":
        return _folder(config, Path(path))
    assert kind == "text", kind
    train, test = read_text(Path(path), context=config.context)
    return Data(train=train, test=test, num_classes=VOCABULARY)


def _digits(config: TrainConfig) -> Data:
    train, test = (part.tensors for part in train_test())
    return _in_memory(config, train, test, prepare=Preparation(augment=_augment(config, ())))


def _fashion_mnist(config: TrainConfig) -> Data:
    if not FASHION_MNIST.is_dir():
        raise DataError.explain(
            "Fashion-MNIST is not installed.",
            why=f"there is no folder '{FASHION_MNIST}'.",
            fix="on Debian and Ubuntu: apt-get install dataset-fashion-mnist; elsewhere: --data idx:FOLDER",
        )
    return _idx(config, FASHION_MNIST, augment=("crop", "flip"))


def _idx(config: TrainConfig, folder: Path, *, augment: tuple[str, ...]) -> Data:
    train, test = (_shrunk(read_idx_pair(folder, part=part), config.shrink) for part in ("train", "t10k"))
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
    plain = Preparation(mean=prepare.mean, std=prepare.std, gain=config.input_gain)
    training = Preparation(
        mean=prepare.mean, std=prepare.std, gain=config.input_gain, augment=prepare.augment, mixup=config.mixup
    )
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


def _shrunk(pair: tuple[Tensor, Tensor], factor: int) -> tuple[Tensor, Tensor]:
    images, labels = pair
    if factor == 1:
        return pair
    if factor > min(images.shape[-2:]):
        raise DataError.explain(
            f"--shrink {factor} is larger than the images.",
            why=f"they have {images.shape[-2]} x {images.shape[-1]} pixels.",
        )
    return F.avg_pool2d(images.to(torch.float32).div_(255), factor), labels

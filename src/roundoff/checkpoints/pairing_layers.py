"""The tensors of a checkpoint as layers: what belongs together, and in which layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from roundoff.checkpoints.checkpoint import Entry
from roundoff.checkpoints.pairing_names import LEAVES, split_name

Axes: TypeAlias = tuple[int, ...]

KERNEL_AXES: dict[int, Axes] = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1), 5: (4, 3, 0, 1, 2)}
"""How (in, out), (width, in, out), HWIO and DHWIO become what PyTorch has, by the number of axes."""
KERNELS = ("kernel", "recurrent_kernel", "depthwise_kernel", "pointwise_kernel")
"""Whoever calls a tensor so keeps the inputs before the outputs."""
UNCOUNTED = "num_batches_tracked"
"""PyTorch's batch norms have it, and nobody else's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The tensors of one layer, under the names that PyTorch would give them."""

    path: tuple[str, ...]
    short_path: tuple[str, ...]
    """The path without the words with which all paths of its checkpoint begin, such as `backbone`."""
    tensors: Mapping[str, Entry]
    axes: Mapping[str, Axes | None]
    """What to permute each tensor with to get PyTorch's layout; None where it has that already."""
    place: int
    """Among the layers of its checkpoint, in the order of the file."""

    def shape(self, leaf: str) -> tuple[int, ...]:
        """Return the shape that PyTorch would have, without axes of one."""
        shape = self.tensors[leaf].shape
        axes = self.axes[leaf] or range(len(shape))
        return tuple(shape[axis] for axis in axes if shape[axis] != 1)


def layers_of(entries: Iterable[Entry], *, format: str) -> list[Layer]:
    """Put the tensors of each layer together, in the order of the file."""
    split = [(*split_name(entry.name), entry) for entry in entries]
    times = Counter((path, leaf) for path, leaf, _ in split)
    found: dict[tuple[str, ...], dict[str, Entry]] = {}
    for path, leaf, entry in split:
        # Two names that differ in their wrappers alone stay what they are.
        found.setdefault(path, {})[leaf if times[path, leaf] == 1 else entry.name] = entry
    layers = []
    common = _common_words(list(found))
    for place, (path, tensors) in enumerate(found.items()):
        names = _names_of(tensors)
        layers.append(
            Layer(
                path=path,
                short_path=path[common:],
                tensors={names[leaf]: entry for leaf, entry in tensors.items()},
                axes={names[leaf]: _axes(leaf, entry, path, tensors, format) for leaf, entry in tensors.items()},
                place=place,
            )
        )
    return layers


def _common_words(paths: Sequence[tuple[str, ...]]) -> int:
    """Count the words with which all paths begin; every path keeps at least one."""
    alike = 0
    for words in zip(*(path[:-1] for path in paths), strict=False):
        if len(set(words)) > 1:
            break
        alike += 1
    return alike


def _names_of(tensors: Mapping[str, Entry]) -> dict[str, str]:
    """Say what PyTorch calls each; a layer that has both `weight` and `gamma` keeps its own names."""
    common = [LEAVES.get(leaf, leaf) for leaf in tensors]
    return {leaf: name if common.count(name) == 1 else leaf for leaf, name in zip(tensors, common, strict=True)}


def _axes(leaf: str, entry: Entry, path: tuple[str, ...], tensors: Mapping[str, Entry], format: str) -> Axes | None:
    if leaf in KERNELS:
        return KERNEL_AXES.get(len(entry.shape))
    if format == "paddle" and leaf in ("weight", "w_0") and len(entry.shape) == 2:
        is_table = "emb" in ".".join(path).lower() and not tensors.keys() & {"bias", "b_0"}
        return None if is_table else (1, 0)
    return None

"""The tensors of a checkpoint as layers: what belongs together, and in which layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from roundoff.checkpoints.checkpoint import Entry
from roundoff.checkpoints.pair.common_names import LEAVES, split_name

Axes: TypeAlias = tuple[int, ...]

KERNEL_AXES: dict[int, Axes] = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1), 5: (4, 3, 0, 1, 2)}
"""How (in, out), (width, in, out), HWIO and DHWIO become what PyTorch has, by the number of axes."""
KERNELS = ("kernel", "recurrent_kernel", "depthwise_kernel", "pointwise_kernel")
"""Whoever calls a tensor so keeps the inputs before the outputs."""
UNCOUNTED = "num_batches_tracked"
"""PyTorch's batch norms have it, and nobody else's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLayer:
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


def layers_of(entries: Iterable[Entry], *, format: str) -> list[CheckpointLayer]:
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
            CheckpointLayer(
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


# == Which axes a tensor must change to stand where another one stands.

UNASKED: dict[int, tuple[Axes, ...]] = {
    2: ((1, 0),),
    3: ((2, 1, 0),),
    4: ((3, 2, 0, 1), (2, 3, 1, 0), (1, 0, 2, 3)),
    5: ((4, 3, 0, 1, 2), (2, 3, 4, 1, 0)),
}
"""What is tried where a shape does not fit as it is, by the number of axes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How a candidate's tensor is laid over the reference's."""

    axes: Axes | None
    """For `Tensor.permute`; None leaves it as it is."""
    is_asked: bool
    """The layouts of the two formats ask for it; otherwise only the shapes do."""


def fit(
    reference: tuple[int, ...],
    candidate: tuple[int, ...],
    *,
    reference_axes: Axes | None = None,
    candidate_axes: Axes | None = None,
) -> Fit | None:
    """Say how a candidate of one shape fits a reference of another, or None; axes of one count for nothing.

    Args:
        reference: a shape.
        candidate: a shape.
        reference_axes: what gives the reference PyTorch's layout.
        candidate_axes: the same of the candidate.

    >>> fit((10, 5), (5, 10), candidate_axes=(1, 0))
    Fit(axes=(1, 0), is_asked=True)
    >>> fit((10, 5), (5, 10))
    Fit(axes=(1, 0), is_asked=False)
    """
    asked = _composed(candidate_axes, reference_axes)
    if _fits(reference, candidate, asked):
        return Fit(axes=asked, is_asked=True)
    for axes in (None, *UNASKED.get(len(candidate), ())):
        if _fits(reference, candidate, axes):
            return Fit(axes=axes, is_asked=False)
    return None


def _composed(candidate: Axes | None, reference: Axes | None) -> Axes | None:
    """Return the way to PyTorch's layout and from there to the reference's, as one permutation."""
    if reference is None:
        return candidate
    back = tuple(reference.index(axis) for axis in range(len(reference)))
    if candidate is None:
        return back
    if len(candidate) != len(back):
        return candidate
    both = tuple(candidate[axis] for axis in back)
    return None if both == tuple(range(len(both))) else both


def _fits(reference: tuple[int, ...], candidate: tuple[int, ...], axes: Axes | None) -> bool:
    if axes is not None:
        if len(axes) != len(candidate):
            return False
        candidate = tuple(candidate[axis] for axis in axes)
    return reference == candidate or _without_ones(reference) == _without_ones(candidate)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)

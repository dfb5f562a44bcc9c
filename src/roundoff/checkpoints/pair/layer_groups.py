"""Groups the tensors of a checkpoint into layers, and finds the axes that convert one layout to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from roundoff.checkpoints.checkpoint import Entry
from roundoff.checkpoints.pair.common_names import LEAVES, split_name

Axes: TypeAlias = tuple[int, ...]

KERNEL_AXES: dict[int, Axes] = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1), 5: (4, 3, 0, 1, 2)}
"""The permutations from (in, out), (width, in, out), HWIO and DHWIO to PyTorch's layout, by the number of axes."""
KERNELS = ("kernel", "recurrent_kernel", "depthwise_kernel", "pointwise_kernel")
"""Frameworks that use these names store inputs before outputs."""
UNCOUNTED = "num_batches_tracked"
"""Only PyTorch's batch norms have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLayer:
    """The tensors of one layer, under the names that PyTorch would give them."""

    path: tuple[str, ...]
    short_path: tuple[str, ...]
    """The path without the prefix that all paths of its checkpoint share, such as `backbone`."""
    tensors: Mapping[str, Entry]
    axes: Mapping[str, Axes | None]
    """The permutation of each tensor to PyTorch's layout; None where it has that already."""
    place: int
    """Its index among the layers of its checkpoint, in file order."""

    def shape(self, leaf: str) -> tuple[int, ...]:
        """Return the shape in PyTorch's layout, without axes of length 1."""
        shape = self.tensors[leaf].shape
        axes = self.axes[leaf] or range(len(shape))
        return tuple(shape[axis] for axis in axes if shape[axis] != 1)


def layers_of(entries: Iterable[Entry], *, format: str) -> list[CheckpointLayer]:
    """Group tensors into layers, in file order."""
    split = [(*split_name(entry.name), entry) for entry in entries]
    times = Counter((path, leaf) for path, leaf, _ in split)
    found: dict[tuple[str, ...], dict[str, Entry]] = {}
    for path, leaf, entry in split:
        # Names that differ only in their wrappers are kept.
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
    """Return the number of common first words; every path keeps at least one word."""
    alike = 0
    for words in zip(*(path[:-1] for path in paths), strict=False):
        if len(set(words)) > 1:
            break
        alike += 1
    return alike


def _names_of(tensors: Mapping[str, Entry]) -> dict[str, str]:
    """Return PyTorch's name of each tensor; a layer that has both `weight` and `gamma` keeps its own names."""
    common = [LEAVES.get(leaf, leaf) for leaf in tensors]
    return {leaf: name if common.count(name) == 1 else leaf for leaf, name in zip(tensors, common, strict=True)}


def _axes(leaf: str, entry: Entry, path: tuple[str, ...], tensors: Mapping[str, Entry], format: str) -> Axes | None:
    if leaf in KERNELS:
        return KERNEL_AXES.get(len(entry.shape))
    if format == "paddle" and leaf in ("weight", "w_0") and len(entry.shape) == 2:
        is_table = "emb" in ".".join(path).lower() and not tensors.keys() & {"bias", "b_0"}
        return None if is_table else (1, 0)
    return None


UNASKED: dict[int, tuple[Axes, ...]] = {
    2: ((1, 0),),
    3: ((2, 1, 0),),
    4: ((3, 2, 0, 1), (2, 3, 1, 0), (1, 0, 2, 3)),
    5: ((4, 3, 0, 1, 2), (2, 3, 4, 1, 0)),
}
"""Permutations to try where a shape does not fit, by the number of axes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How a candidate's shape fits a reference's."""

    axes: Axes | None
    """For `Tensor.permute`; None for no permutation."""
    is_expected: bool
    """Whether it follows from the layouts of the two formats, not only from the shapes."""


def fit(
    reference: tuple[int, ...],
    candidate: tuple[int, ...],
    *,
    reference_axes: Axes | None = None,
    candidate_axes: Axes | None = None,
) -> Fit | None:
    """Return how a candidate's shape fits a reference's, or None; axes of length 1 are ignored.

    Args:
        reference: a shape.
        candidate: a shape.
        reference_axes: the permutation of the reference to PyTorch's layout.
        candidate_axes: that of the candidate.

    >>> fit((10, 5), (5, 10), candidate_axes=(1, 0))
    Fit(axes=(1, 0), is_expected=True)
    >>> fit((10, 5), (5, 10))
    Fit(axes=(1, 0), is_expected=False)
    """
    asked = _compose_permutations(candidate_axes, reference_axes)
    if _fits(reference, candidate, asked):
        return Fit(axes=asked, is_expected=True)
    for axes in (None, *UNASKED.get(len(candidate), ())):
        if _fits(reference, candidate, axes):
            return Fit(axes=axes, is_expected=False)
    return None


def _compose_permutations(candidate: Axes | None, reference: Axes | None) -> Axes | None:
    """Return the permutation to PyTorch's layout and from there to the reference's."""
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

"""The start values of two trainings: equal, drawn again, or drawn by another initialiser."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roundoff.compare.settings.setting_difference import SettingDifference, SettingKind, group_by_place
from roundoff.runs import Run, shape_from_text

_ENOUGH = 24
"""Fewer values do not tell how they were drawn."""
_FLATTEST = 1.9
"""The largest magnitude of uniform numbers is the root of 3 times their spread, of normal ones more than twice."""


def initialiser_of(shape: Sequence[int], *, mean: float | None, std: float | None, absmax: float | None) -> str:
    """Name the initialiser that start values look like.

    >>> initialiser_of((64, 16), mean=0.001, std=0.144, absmax=0.2499)
    'kaiming uniform'
    >>> initialiser_of((64, 16), mean=0.0, std=0.0199, absmax=0.07)
    'normal 0.02'
    >>> initialiser_of((64,), mean=1.0, std=0.0, absmax=1.0)
    'ones'
    """
    if mean is None or std is None or absmax is None:
        return "unknown"
    if std <= 1e-7 * max(absmax, 1e-30):
        return {0.0: "zeros", 1.0: "ones"}.get(mean, f"constant {mean:.3g}")
    size = math.prod(shape)
    if size < _ENOUGH:
        return f"mean {mean:.2g}, spread {std:.2g}"
    if abs(mean) > 6 * std / math.sqrt(size):
        return f"numbers around {mean:.2g} with spread {std:.2g}"
    if absmax / std < _FLATTEST:
        bound = _nearest(absmax, _bounds(shape), size=size)
        return bound or f"uniform +-{_format_number(math.sqrt(3) * std)}"
    return _nearest(std, _spreads(shape), size=size) or f"normal {_format_number(std)}"


def spreads_agree(size: int, reference: float, candidate: float) -> bool:
    """Say whether two spreads of so many numbers can be the same, but for chance."""
    allowed = 6 / math.sqrt(2 * max(size, 1))
    return reference == candidate or abs(reference - candidate) <= allowed * max(reference, candidate)


def _fans(shape: Sequence[int]) -> tuple[int, int] | None:
    """Return how many numbers go into and come out of one of the weights, as torch counts them."""
    if len(shape) < 2:
        return None
    inner = math.prod(shape[2:])
    return shape[1] * inner, shape[0] * inner


def _bounds(shape: Sequence[int]) -> Iterator[tuple[str, float]]:
    fans = _fans(shape)
    if fans is not None and min(fans) > 0:
        yield "kaiming uniform", 1 / math.sqrt(fans[0])  # as torch's own layers call it, with the root of 5
        yield "xavier uniform", math.sqrt(6 / sum(fans))
        yield "kaiming uniform for ReLU", math.sqrt(6 / fans[0])


def _spreads(shape: Sequence[int]) -> Iterator[tuple[str, float]]:
    yield "normal 0.02", 0.02
    yield "normal 1", 1.0
    fans = _fans(shape)
    if fans is not None and min(fans) > 0:
        yield "kaiming normal", math.sqrt(2 / fans[0])
        yield "xavier normal", math.sqrt(2 / sum(fans))


def _nearest(value: float, known: Iterator[tuple[str, float]], *, size: int) -> str | None:
    allowed = max(0.01, 3 / math.sqrt(size))
    near = [(abs(value / other - 1), name) for name, other in known]
    return min((pair for pair in near if pair[0] < allowed), default=(0.0, None))[1]


def _format_number(value: float) -> str:
    return f"{value:.1g}" if math.isclose(value, float(f"{value:.1g}"), rel_tol=0.05) else f"{value:.2g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """What is known of the start values of one parameter."""

    shape: tuple[int, ...]
    mean: float
    std: float
    absmax: float
    hash: int | None = None

    @property
    def looks_like(self) -> str:
        return initialiser_of(self.shape, mean=self.mean, std=self.std, absmax=self.absmax)

    def is_same(self, other: _Start) -> bool:
        if self.hash is not None and other.hash is not None:
            return self.hash == other.hash
        return (self.mean, self.std, self.absmax) == (other.mean, other.std, other.absmax)

    def is_drawn_alike(self, other: _Start) -> bool:
        size = math.prod(self.shape)
        if (self.absmax == 0) != (other.absmax == 0) or (self.std == 0) != (other.std == 0):
            return False
        spread = max(self.std, other.std)
        is_near = abs(self.mean - other.mean) <= 8 * spread / math.sqrt(max(size, 1))
        return is_near and spreads_agree(size, self.std, other.std)


def start_differences(reference: Run, candidate: Run) -> list[SettingDifference]:
    """Compare the start values of parameters that both runs have under one name and shape."""
    reference_starts, candidate_starts = _starts(reference), _starts(candidate)
    pairs = [
        (name, reference_starts[name], candidate_starts[name])
        for name in reference_starts
        if name in candidate_starts
        and reference_starts[name].shape == candidate_starts[name].shape
        and not reference_starts[name].is_same(candidate_starts[name])
    ]
    otherwise = [(name, first, second) for name, first, second in pairs if not first.is_drawn_alike(second)]
    anew = [name for name, first, second in pairs if first.is_drawn_alike(second)]
    return [
        *group_by_place(_other_initialisers(otherwise)),
        *_other_draws(anew, num_compared=len(set(reference_starts) & set(candidate_starts))),
    ]


def _other_initialisers(pairs: list[tuple[str, _Start, _Start]]) -> Iterator[SettingDifference]:
    for name, reference, candidate in pairs:
        first, second = reference.looks_like, candidate.looks_like
        if first == second:
            first, second = (
                f"{like}, spread {start.std:.3g}" for like, start in ((first, reference), (second, candidate))
            )
        yield SettingDifference(
            what="start values",
            reference=first,
            candidate=second,
            kind=SettingKind.START_VALUE,
            suspicion=0.85,
            places=(name,),
        )


def _other_draws(names: list[str], *, num_compared: int) -> Iterator[SettingDifference]:
    if names:
        yield SettingDifference(
            what="start values",
            reference="one draw",
            candidate=f"another draw of the same kind, in {len(names)} of {num_compared} parameters",
            kind=SettingKind.START_VALUE,
            suspicion=0.5,
            places=tuple(names),
        )


def _starts(run: Run) -> dict[str, _Start]:
    """Return the start values by parameter: from what the watch wrote down, else from the first recorded step."""
    for structure in run.structures()[:1]:
        return {
            facts.name: _Start(shape=facts.shape, mean=facts.mean, std=facts.std, absmax=facts.absmax)
            for facts in structure.parameters
            if facts.name is not None and facts.mean is not None and facts.std is not None and facts.absmax is not None
        }
    return _read_recorded_starts(run) if 0 in run.steps else {}


def _read_recorded_starts(run: Run) -> dict[str, _Start]:
    columns = ["parameter", "shape", "num_elements", "mean", "l2", "min", "max", "hash"]
    rows = run.events(step=0, op="parameter", rank=0, columns=columns).to_pylist()
    found: dict[str, _Start] = {}
    for row in rows:
        if row["parameter"] is not None and row["parameter"] not in found and not math.isnan(row["mean"]):
            variance = row["l2"] ** 2 / max(row["num_elements"], 1) - row["mean"] ** 2
            found[row["parameter"]] = _Start(
                shape=shape_from_text(row["shape"]),
                mean=row["mean"],
                std=math.sqrt(max(variance, 0.0)),
                absmax=max(abs(row["min"]), abs(row["max"])),
                hash=row["hash"],
            )
    return found

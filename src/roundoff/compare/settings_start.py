"""The start values of two trainings: equal, drawn anew, or drawn in another way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from roundoff.compare.initialiser import initialiser_of, spreads_agree
from roundoff.compare.setting import Difference, SettingKind, gathered
from roundoff.runs import Run, shape_from_text


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


def start_differences(reference: Run, candidate: Run) -> list[Difference]:
    """Compare the start values of parameters that both runs have under one name and shape."""
    ours, theirs = _starts(reference), _starts(candidate)
    pairs = [
        (name, ours[name], theirs[name])
        for name in ours
        if name in theirs and ours[name].shape == theirs[name].shape and not ours[name].is_same(theirs[name])
    ]
    otherwise = [(name, first, second) for name, first, second in pairs if not first.is_drawn_alike(second)]
    anew = [name for name, first, second in pairs if first.is_drawn_alike(second)]
    return [*gathered(_drawn_otherwise(otherwise)), *_drawn_anew(anew, num_compared=len(set(ours) & set(theirs)))]


def _drawn_otherwise(pairs: list[tuple[str, _Start, _Start]]) -> Iterator[Difference]:
    for name, ours, theirs in pairs:
        first, second = ours.looks_like, theirs.looks_like
        if first == second:
            first, second = (f"{like}, spread {start.std:.3g}" for like, start in ((first, ours), (second, theirs)))
        yield Difference(
            what="start values",
            reference=first,
            candidate=second,
            kind=SettingKind.START_VALUE,
            suspicion=0.85,
            places=(name,),
        )


def _drawn_anew(names: list[str], *, num_compared: int) -> Iterator[Difference]:
    if names:
        yield Difference(
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
    return _recorded(run) if 0 in run.steps else {}


def _recorded(run: Run) -> dict[str, _Start]:
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

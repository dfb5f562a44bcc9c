"""A saved step at a glance: where the bad value came from, and what is there to run it again from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from roundoff.errors import ReplayError
from roundoff.runs import JsonValue, Origin, Run, TensorFile

_FIELDS: dict[str, type] = {
    "step": int, "models": list, "optimizers": list, "optimizer_values": dict, "scalers": list, "generators": dict,
    "in_eval": list, "outside": list, "calls": list,
}  # fmt: skip
_PARTS: dict[str, tuple[str, ...]] = {
    "models": ("class", "attributes"), "outside": ("in_batch", "requires_grad", "stride"),
}  # fmt: skip
"""What each model and each tensor from outside must tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """A tensor that came into the step from outside."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    least: float | None
    """Of its finite numbers; None if it has none."""
    largest: float | None
    num_nonfinite: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedStep:
    """What was kept of one step on one rank."""

    step: int
    rank: int
    origin: Origin | None
    models: tuple[str, ...]
    """Classes of the models that a builder has to return, in order."""
    optimizers: tuple[str, ...]
    num_numbers: int
    """How many numbers the models hold."""
    batch: tuple[SavedTensor, ...]
    needs_loss: str | None
    """Why the builder has to return the loss, too; None if what the loop did was saved."""

    def to_object(self) -> dict[str, JsonValue]:
        """Return everything as JSON values."""
        return asdict(self)


def tape_of(replayed: Run, *, rank: int) -> dict[str, Any]:
    """Return what the loop did in a saved step.

    Raises:
        ReplayError: the folder does not hold a step that can be run again.
    """
    tape: Any = replayed.replay_tape(rank=rank)
    if tape is not None and replayed.has_replay_state(rank=rank):
        return _checked(tape, replayed)
    info = replayed.replay_info(rank=rank)
    why = "what its loop did was not saved: an older version made the run, or the process ended too early"
    if info is not None and info.note is not None:
        why = f"the state before it is not known, since {info.note}"
    raise ReplayError.explain(f"'{replayed.path}' does not hold a step that can be run again.", why=f"{why}.")


def _checked(tape: dict[str, Any], replayed: Run) -> dict[str, Any]:
    """Return what was read, if all of it is there; what is inside of calls is checked where they are made."""
    wrong = [name for name, kind in _FIELDS.items() if not isinstance(tape.get(name), kind)]
    wrong += [name for name, keys in _PARTS.items() if name not in wrong and not _all_tell(tape[name], keys)]
    if wrong:
        raise ReplayError.explain(
            f"The saved step in '{replayed.path}' cannot be read.",
            why=f"its tape has no {', '.join(wrong)}, or something else there.",
            fix="take the run from a copy, or from the version that wrote it.",
        )
    return tape


def _all_tell(parts: list[Any], keys: tuple[str, ...]) -> bool:
    return all(isinstance(part, dict) and part.keys() >= set(keys) for part in parts)


def look_at(replayed: Run, *, rank: int = 0) -> SavedStep:
    """Say what the folder of a replayed step holds.

    Raises:
        ReplayError: it holds nothing to run the step again from.
    """
    tape = tape_of(replayed, rank=rank)
    state, batch = replayed.replay_state(rank=rank), replayed.replay_batch(rank=rank)
    in_batch = [number for number, facts in enumerate(tape["outside"]) if facts["in_batch"]]
    return SavedStep(
        step=tape["step"],
        rank=rank,
        origin=replayed.origin(rank=rank),
        models=tuple(model["class"] for model in tape["models"] if model["attributes"] is None),
        optimizers=tuple(tape["optimizers"]),
        num_numbers=sum(state[key].size for key in state if key.startswith("model")),
        batch=tuple(_tensor(batch, f"outside{number}") for number in in_batch if f"outside{number}" in batch),
        needs_loss=tape.get("untold"),
    )


def _tensor(file: TensorFile, key: str) -> SavedTensor:
    x = file.torch(key)
    name = str(x.dtype).removeprefix("torch.")
    if x.is_complex():
        x = torch.view_as_real(x)
    wide = x.double()
    finite = wide[wide.isfinite()]
    return SavedTensor(
        name=key,
        dtype=name,
        shape=file.entry(key).shape,
        least=float(finite.min()) if finite.numel() else None,
        largest=float(finite.max()) if finite.numel() else None,
        num_nonfinite=wide.numel() - finite.numel(),
    )

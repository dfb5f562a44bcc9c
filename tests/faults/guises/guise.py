"""The guises that a training can be put into, which trainings each fits, and whether one still has its fault."""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.faults.guises.frameworks import on_two_ranks, with_accelerate, with_lightning, with_trainer
from tests.faults.guises.loop import other_batch_size, train_another, training_class, under_autocast
from tests.faults.run_rewritten import REWRITINGS, Rewriting, moved_line
from tests.faults.zoo.catalogue import Expected

FORMATS = ("autocast", "half(", "bfloat16", "float16", "float64", "double(", "GradScaler", "uint8", "int16")
"""Words of scripts whose numbers have a format that matters."""
NEEDS_ITS_BATCH = {"tiny-norm-batch", "batch-sizes-disagree"}
Check = Callable[[Sequence[float], Sequence[float]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guise:
    """A rewriting, the trainings whose faults do not depend on what it changes, and how that is checked."""

    name: str
    rewriting: Rewriting
    is_sound: Check
    """Of the losses before and after."""
    fits: Callable[[Expected, str, str], bool] = lambda entry, family, text: True
    """Of a training, the family of its fault and its text."""
    keeps_numbers: bool = True
    """If not, the step and the words of the finding may be others."""
    keeps_steps: bool = True
    keeps_words: bool = True
    """If not, the finding may say it with other words and numbers, because it was measured elsewhere."""
    ranks: int = 1
    inside: str | None = None
    """The module of the guise that the training's model is in."""

    def put_on(self, entry: Expected, family: str, folder: Path, *, seed: int) -> Expected | None:
        """Write the training in this guise and return what is expected of it; None where it does not fit."""
        text = entry.script.read_text()
        tree = ast.parse(text)
        if entry.options or (entry.ranks > 1 and self.ranks > 1) or not self.fits(entry, family, text):
            return None
        if self.rewriting(tree, random.Random(f"{seed} {entry.name} {self.name}")) is None:
            return None
        name = f"{entry.name}-{self.name}"
        after = ast.unparse(ast.fix_missing_locations(tree))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(after + "\n")
        source = entry.source and moved_line(entry.source, tree, ast.parse(after), folder.name, name)
        return replace(
            entry,
            name=name,
            folder=folder,
            source=source,
            step=entry.step if self.keeps_steps and self.keeps_numbers else None,
            says=entry.says if self.keeps_numbers and self.keeps_words else (),
            related=entry.related if self.keeps_numbers else None,
            ranks=max(entry.ranks, self.ranks),
            inside=self.inside,
        )


def same_losses(before: Sequence[float], after: Sequence[float]) -> bool:
    """Say whether the losses are the same, bit for bit."""
    return list(map(repr, before)) == list(map(repr, after))


def losses_among(before: Sequence[float], after: Sequence[float]) -> bool:
    """Say whether the losses before are among those after, in the same order."""
    left = iter(map(repr, after))
    return all(loss in left for loss in map(repr, before))


def as_many_losses(before: Sequence[float], after: Sequence[float]) -> bool:
    """Say whether there are as many losses, and bad ones among them where there were."""
    return len(before) == len(after) and _has_bad(before) == _has_bad(after)


def similar_losses(before: Sequence[float], after: Sequence[float]) -> bool:
    """Say whether there are as many losses, and the first is the same but for rounding."""
    return as_many_losses(before, after) and math.isclose(before[0], after[0], rel_tol=0.05, abs_tol=0.05)


def _has_bad(losses: Sequence[float]) -> bool:
    return not all(map(math.isfinite, losses))


def _is_format_free(_: Expected, family: str, text: str) -> bool:
    return family not in ("NaN and infinity", "Numbers and formats") and not any(word in text for word in FORMATS)


def _is_one_process(entry: Expected, family: str, text: str) -> bool:
    return family not in ("Several ranks", "The process") and entry.ranks == 1 and "num_workers" not in text


def _has_no_scaler(entry: Expected, family: str, text: str) -> bool:
    return _is_one_process(entry, family, text) and "GradScaler" not in text


GUISES = {
    guise.name: guise
    for guise in (
        *(Guise(name=name, rewriting=rewriting, is_sound=same_losses) for name, rewriting in REWRITINGS.items()),
        Guise(name="training-class", rewriting=training_class, is_sound=same_losses),
        Guise(
            name="batch-size",
            rewriting=other_batch_size,
            is_sound=as_many_losses,
            fits=lambda entry, family, text: entry.rule not in NEEDS_ITS_BATCH,
            keeps_numbers=False,
        ),
        Guise(name="trained-companion", rewriting=train_another, is_sound=losses_among, keeps_steps=False),
        Guise(
            name="autocast",
            rewriting=under_autocast,
            is_sound=similar_losses,
            fits=_is_format_free,
            keeps_numbers=False,
        ),
        Guise(name="accelerate", rewriting=with_accelerate, is_sound=same_losses, fits=_has_no_scaler),
        Guise(name="lightning", rewriting=with_lightning, is_sound=same_losses, fits=_has_no_scaler, inside="net"),
        Guise(
            name="hf-trainer",
            rewriting=with_trainer,
            is_sound=same_losses,
            fits=_has_no_scaler,
            keeps_words=False,
            inside="net",
        ),
        Guise(
            name="two-ranks",
            rewriting=on_two_ranks,
            is_sound=as_many_losses,
            fits=_has_no_scaler,
            keeps_numbers=False,
            ranks=2,
        ),
    )
}
"""By name, in the order of the table."""

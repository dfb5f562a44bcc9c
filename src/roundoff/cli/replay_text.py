"""Saved steps, and the results of running them again, as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from roundoff.diagnose.wording import format_whole
from roundoff.replay.saved.export import is_exportable
from roundoff.replay.saved.rerun import Rerun
from roundoff.replay.saved.saved_step import SavedBatchTensor, SavedStep
from roundoff.runs import Event, Origin
from roundoff.words import plural

_MAX_TENSORS = 12


def saved_text(saved: SavedStep, *, run: Path) -> str:
    """Describe what was saved of a step, and how to continue."""
    models = ", ".join(saved.models)
    lines = [
        f"step {saved.step} of {run}" + (f", rank {saved.rank}" if saved.rank else ""),
        f"  origin     {_origin_text(saved.origin)}",
        f"  model      {models}, {plural(saved.num_numbers, 'number')}",
        f"  optimizer  {', '.join(saved.optimizers) or 'none'}",
    ]
    for number, tensor in enumerate(saved.batch[:_MAX_TENSORS]):
        lines.append(f"  {'' if number else 'batch':<9}  {_tensor_text(tensor)}")
    if len(saved.batch) > _MAX_TENSORS:
        lines.append(f"{'':<13}{len(saved.batch) - _MAX_TENSORS} more")
    if saved.origin is not None and is_exportable(saved.origin):
        lines.append(f"  export     roundoff replay {run} --export repro.py")
    return "\n".join(
        [*lines, f"  run again  roundoff replay {run} --builder FILE.py:build", "", *_builder_lines(saved)]
    )


def rerun_text(again: Rerun, *, run: Path, builder: str) -> str:
    """Say whether the bad value appeared again, where, and how much of the step is as it was."""
    how = f" with recipe {again.recipe}" if again.recipe is not None else ""
    lines = [f"step {again.step}{how}: {_headline(again)}"]
    if again.place is not None:
        bad = again.place.bad
        source = f"   {bad.source}" if bad.source else ""
        lines.append(f"  origin     {bad.site} / {bad.op_name}   {bad.phase}{source}")
    lines.append(f"  loss       {_loss_text(again)}")
    if again.recipe is None:
        lines.append(f"  same       {_same_text(again)}")
    elif again.loss_scale is not None:
        scale = format_whole(again.loss_scale)
        lines.append(f"  scale      the loss was multiplied by {scale}, the largest scale without overflow")
    if not again.has_optimizer:
        lines.append("  note       without the optimizer step: the builder returns no optimizer")
    if again.is_bad and again.recipe is None and not again.has_own_recipe:
        lines.append(f"  next       roundoff replay {run} --builder {builder} --recipe fp32")
    return "\n".join(lines)


def _headline(again: Rerun) -> str:
    if not again.is_bad and not again.was_bad:
        return "everything that matters is finite, as it was."
    if not again.is_bad:
        return "everything that matters is finite." if again.recipe else "the bad value does not appear again."
    if again.place is None:
        return "the loss is not finite again."
    return "the bad value appears again, at the same op." if again.is_same_place else "a bad value appears, elsewhere."


def _loss_text(again: Rerun) -> str:
    if not again.saved_losses:
        return _numbers(again.losses)
    is_same = [str(x) for x in again.losses] == [str(x) for x in again.saved_losses]
    return (
        f"{_numbers(again.losses)}, as it was"
        if is_same
        else f"{_numbers(again.losses)}; it was {_numbers(again.saved_losses)}"
    )


def _same_text(again: Rerun) -> str:
    if again.num_same == again.num_compared:
        return f"all {plural(again.num_compared, 'tensor')} of the step, bit for bit"
    first = again.first_difference
    where = f"; the first that differs is {_event_text(first)}" if first is not None else ""
    return f"{again.num_same} of {plural(again.num_compared, 'tensor')}, bit for bit{where}"


def _event_text(event: Event) -> str:
    return f"{event.site} / {event.op_name} in {event.phase}"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" if math.isfinite(value) else str(value) for value in values) or "none"


def _origin_text(origin: Origin | None) -> str:
    if origin is None:
        return "no single op made the bad value; roundoff diagnose says more"
    width = {True: "; in fp64 it is finite", False: "; not finite in fp64 either", None: ""}[origin.is_finite_in_fp64]
    source = f"   {origin.source}" if origin.source else ""
    return f"{origin.site} / {origin.op}   {origin.phase}{source}{width}"


def _tensor_text(tensor: SavedBatchTensor) -> str:
    if tensor.least is None or tensor.largest is None:
        span = "no finite number"
    else:
        span = f"{tensor.least:.4g} to {tensor.largest:.4g}"
    bad = f", {tensor.num_nonfinite} not finite" if tensor.num_nonfinite else ""
    return f"{tensor.name:<11}{tensor.dtype:<10}{list(tensor.shape)!s:<18}{span}{bad}"


def _builder_lines(saved: SavedStep) -> list[str]:
    """Show a builder for this step."""
    names = [f"model{number + 1 if number else ''}" for number in range(len(saved.models))]
    lines = ["    def build():"]
    lines += [f"        {name} = {kind}(...)" for name, kind in zip(names, saved.models, strict=True)]
    returned = names[0] if len(names) == 1 else f"[{', '.join(names)}]"
    for kind in saved.optimizers[:1]:
        lines.append(f"        {_optimizer_line(kind, names[0])}")
    returned += ", optimizer" if len(saved.optimizers) == 1 else ", [...]" if saved.optimizers else ""
    if saved.needs_loss is None:
        return [*lines, f"        return {returned}"]
    batch = ", ".join(tensor.name for tensor in saved.batch)
    return [
        *lines,
        f"        return {returned}, lambda model, {batch}: ...",
        "",
        f"The loss is needed because {saved.needs_loss}.",
    ]


def _optimizer_line(kind: str, model: str) -> str:
    if kind == "RecipeOptimizer":
        return f"{model}, optimizer = roundoff.apply_recipe({model}, ..., ...)  # as the script does"
    return f"optimizer = {'torch.optim.' if hasattr(torch.optim, kind) else ''}{kind}({model}.parameters())"

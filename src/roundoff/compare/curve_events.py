"""Loss curves out of TensorBoard's event files."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from roundoff.compare.curve import Curve
from roundoff.compare.curve_columns import loss_column
from roundoff.errors import CompareError, first_line


def read_events(path: Path, *, column: str | None) -> Curve:
    """Return the loss out of an event file, or out of all event files of a folder; `column` is its tag.

    A value of a step that was written twice, as a resumed training does, counts as written last.
    """
    events = _loaded(path)
    scalars, tensors = events.Tags()["scalars"], events.Tags()["tensors"]
    tags = [*scalars, *(tag for tag in tensors if _is_scalar(events, tag))]
    if not tags:
        raise CompareError.explain(
            f"'{path}' holds no scalars of TensorBoard.", fix="name the folder in which the events of one run are."
        )
    tag = loss_column(tags, chosen=column, path=path)
    if tag in scalars:
        points = [(event.step, float(event.value)) for event in events.Scalars(tag)]
    else:
        points = [(event.step, float(_array(event.tensor_proto))) for event in events.Tensors(tag)]
    return Curve.of([step for step, _ in points], [value for _, value in points], name=path.name)


def _loaded(path: Path) -> Any:
    try:
        module = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    except ImportError as error:
        raise CompareError.explain(
            f"'{path}' holds TensorBoard's events, which need a package.",
            why=f"{first_line(error)}.",
            fix="pip install 'roundoff[tensorboard]'",
        ) from error
    # 0 keeps every event; the default is a sample of them.
    events = module.EventAccumulator(str(path), size_guidance={module.SCALARS: 0, module.TENSORS: 0})
    try:
        events.Reload()
    except Exception as error:  # whatever a broken file makes of a parser that is not ours
        raise CompareError.explain(f"The events in '{path}' cannot be read.", why=f"{first_line(error)}.") from error
    return events


def _is_scalar(events: Any, tag: str) -> bool:
    """Say whether a tag holds single numbers, which newer writers keep as tensors."""
    first = events.Tensors(tag)[:1]
    return bool(first) and not first[0].tensor_proto.tensor_shape.dim and bool(_array(first[0].tensor_proto).ndim == 0)


def _array(proto: Any) -> Any:
    return importlib.import_module("tensorboard.util.tensor_util").make_ndarray(proto)

"""One op caught with its real inputs, and tried in fp64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from roundoff.replay.op_catcher import OpCatcher
from roundoff.runs import Origin, Run, RunInfo, RunWriter
from roundoff.runs.records.event import Event

aten = torch.ops.aten


def event(order: int = 0) -> Event:
    numbers = dict.fromkeys(("min", "max", "mean", "sum_abs", "l2"), 0.0)
    counts = dict.fromkeys(("num_nan", "num_posinf", "num_neginf", "num_zero", "num_subnormal", "hash"), 0)
    return Event(
        step=3, rank=0, microbatch=0, phase="forward", site="fc", op="aten.mul", nth=0, output="0", order=order,
        parameter=None, source="model.py:41", dtype="float16", shape=(2,), device="cpu", num_elements=2,
        **numbers, **counts,
    )  # fmt: skip


def catch(folder: Path, func: Any, *args: Any, order: int = 0, num_rows: int = 0) -> tuple[Run, Origin | None]:
    """Run one op under a catcher that waits for the result at `order`."""
    with RunWriter.create(folder, RunInfo()) as writer:
        catcher = OpCatcher(event(order), writer=writer)
        catcher.num_rows = lambda: num_rows
        call = catcher.before(func, args, {})
        assert call is not None
        result = func(*args)
        found = [result] if isinstance(result, Tensor) else list(result)
        assert catcher.after(call, func, args, {}, found) is None
    run = Run.open(folder)
    return run, run.origin()


def test_a_product_that_only_its_format_cannot_hold_is_finite_in_fp64(tmp_path: Path) -> None:
    x = torch.tensor([1.0, 300.0], dtype=torch.float16)
    run, origin = catch(tmp_path / "run", aten.mul.Tensor, x, x)
    assert origin is not None
    assert (origin.is_finite_in_fp64, origin.fp64_absmax, origin.bad_index) == (True, 90000.0, (1,))
    assert (origin.overload, origin.source) == ("aten::mul.Tensor", "model.py:41")
    tensors = run.origin_tensors()
    assert tensors["self"].tolist() == [1, 300]
    assert tensors["output0"].tolist() == [1, float("inf")]


def test_what_leaves_its_domain_is_not_finite_in_any_format(tmp_path: Path) -> None:
    _, origin = catch(tmp_path / "run", aten.log.default, torch.tensor([-1.0]))
    assert origin is not None
    assert (origin.is_finite_in_fp64, origin.fp64_absmax) == (False, 0.0)


def test_an_argument_that_the_op_writes_into_is_kept_as_it_was_before(tmp_path: Path) -> None:
    x = torch.tensor([3e38])
    run, _ = catch(tmp_path / "run", aten.mul_.Tensor, x, torch.tensor([10.0]))
    assert x.isinf().all()
    assert run.origin_tensors()["self"].tolist() == pytest.approx([3e38])


def test_arguments_of_every_kind_are_written(tmp_path: Path) -> None:
    parts = [torch.ones(2), torch.full((2,), float("inf"))]
    _, origin = catch(tmp_path / "run", aten.cat.default, parts, 0)
    assert origin is not None
    assert origin.arguments["tensors"] == [{"tensor": "tensors.0"}, {"tensor": "tensors.1"}]
    assert origin.arguments["dim"] == 0
    _, origin = catch(tmp_path / "other", aten.add.Tensor, torch.ones(2, 3).t(), torch.tensor(float("inf")))
    assert origin is not None
    assert origin.arguments["self"] == {"tensor": "self", "stride": [1, 3]}


@pytest.mark.parametrize(("order", "num_rows", "is_caught"), [(5, 5, True), (4, 5, False), (6, 5, False)])
def test_only_the_op_at_its_place_in_the_step_is_caught(
    order: int, num_rows: int, is_caught: bool, tmp_path: Path
) -> None:
    _, origin = catch(tmp_path / "run", aten.log.default, torch.tensor([-1.0]), order=order, num_rows=num_rows)
    assert (origin is not None) is is_caught


def test_once_it_has_its_op_it_looks_at_no_other(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run", RunInfo()) as writer:
        catcher = OpCatcher(event(), writer=writer)
        catcher.num_rows = lambda: 0
        args = (torch.tensor([-1.0]),)
        assert catcher.before(print, args, {}) is None
        call = catcher.before(aten.log.default, args, {})
        assert call is not None
        catcher.after(call, aten.log.default, args, {}, [torch.log(args[0])])
        assert catcher.before(aten.log.default, args, {}) is None

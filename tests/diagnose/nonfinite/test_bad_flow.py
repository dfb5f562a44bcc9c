"""Bad values are followed from their origin through every result that holds them; masks and healthy steps are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from roundoff.diagnose.nonfinite.origin import BadFlow, bad_flow
from roundoff.runs import Event, Run
from tests.diagnose.planted import BAD_STEP, mlp_with, train


def overflowing(x: Tensor) -> Tensor:
    return (x * 300) @ (x * 300).T @ x


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(mlp_with(overflowing), tmp_path_factory.mktemp("flow") / "run", dtype=torch.float16)


@pytest.fixture(scope="module")
def flow(run: Run) -> BadFlow:
    found = bad_flow(run, step=BAD_STEP)
    assert found is not None
    return found


def events_by_order(run: Run) -> dict[int, Event]:
    return {event.order: event for event in run.iter_events(step=BAD_STEP, rank=0)}


def test_begins_at_the_op_that_made_the_first_bad_value(run: Run, flow: BadFlow) -> None:
    assert flow.origin is not None
    assert flow.start == flow.origin.order
    assert events_by_order(run)[flow.start].op_name == "aten.mm#0"


def test_every_way_leads_back_to_the_origin(flow: BadFlow) -> None:
    for order in flow.came_from:
        at = order
        while at != flow.start:
            assert flow.came_from[at] < at
            at = flow.came_from[at]


def test_every_bad_result_after_the_origin_is_on_a_way(run: Run, flow: BadFlow) -> None:
    events = events_by_order(run)
    bad = {e.order for e in events.values() if e.num_nonfinite and e.output.startswith("output")}
    assert bad == {flow.start, *flow.came_from, *flow.others}
    phases = {events[order].phase for order in flow.came_from}
    assert phases >= {"forward", "backward"}


def test_a_result_has_its_bad_values_from_a_result_that_it_reads(run: Run, flow: BadFlow) -> None:
    events = events_by_order(run)
    (second,) = [order for order, event in events.items() if event.op_name == "aten.mm#1" and event.phase == "forward"
                 and event.output == "output0"]  # fmt: skip
    assert flow.came_from[second] == flow.start


def test_bad_data_begins_at_the_tensor_it_came_with(tmp_path: Path) -> None:
    found = bad_flow(train(mlp_with(lambda x: x * torch.tensor(torch.nan)), tmp_path / "run"), step=BAD_STEP)
    assert found is not None
    assert found.start is not None
    assert found.came_from


def test_is_silent_on_healthy_steps_and_on_masks(tmp_path: Path) -> None:
    def masked(x: Tensor) -> Tensor:
        future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        return torch.softmax((x @ x.T).masked_fill(future, -torch.inf), dim=-1) @ x

    run = train(mlp_with(masked), tmp_path / "run")
    assert bad_flow(run, step=BAD_STEP) is None
    assert bad_flow(run, step=0) is None


def test_what_is_clamped_away_has_no_origin_and_is_distinguished(tmp_path: Path) -> None:
    run = train(mlp_with(lambda x: x + (1 / (x - x).abs()).detach().clamp(max=1.0)), tmp_path / "run")
    found = bad_flow(run, step=BAD_STEP)
    assert found is not None
    assert (found.origin, found.start, found.came_from) == (None, None, {})
    assert found.others

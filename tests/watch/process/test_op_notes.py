import signal
from pathlib import Path

import pytest
import torch

from roundoff.diagnose.process.deaths import process_deaths
from roundoff.runs import FlightRecorder, Run, flight_path, read_flight
from roundoff.watch.process.op_notes import noting_ops


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return flight_path(tmp_path, rank=0)


def test_every_op_of_forward_and_backward_is_noted(path: Path):
    weight = torch.ones(3, requires_grad=True)
    with noting_ops(FlightRecorder.create(path)):
        (weight * 2).sum().backward()
    flight = read_flight(path)
    names = [record.name for record in flight.records if record.kind == "op"]
    assert names[:2] == ["aten.mul", "aten.sum"]
    assert names.count("aten.mul") == 2  # the second is its derivative
    assert flight.is_op_done


def test_an_op_that_raised_stays_noted_as_running(path: Path):
    with noting_ops(FlightRecorder.create(path)), pytest.raises(RuntimeError):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    flight = read_flight(path)
    assert (flight.op, flight.is_op_done) == ("aten.mm", False)


def test_results_are_the_same(path: Path):
    def train() -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).pow(2).mean().backward()
            optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    plain = train()
    with noting_ops(FlightRecorder.create(path)):
        noted = train()
    assert torch.equal(plain, noted)


def test_a_custom_op_that_crashes_is_named(supervised):
    outcome = supervised("custom-op")
    assert outcome.code == -signal.SIGSEGV
    (finding,) = process_deaths(Run.open(outcome.folder))
    assert (finding.rule, finding.op, finding.step, finding.site) == ("native-crash", "planted.scatter", 3, "blocks.1")
    assert finding.source is not None
    assert "supervised.py" in finding.source

"""Parameters of a parallel model that no loss depends on: an error where the exchange fails for them, else a note."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.diagnose.ranks.division_of_work import unused_parameters
from roundoff.runs import Anomaly, ExceptionDetail, ModuleFacts, ParameterFacts, Run, Severity, Structure
from tests.run_folders import losses, write_run


def write(folder: Path, *, unused: tuple[bool, bool], message: str | None) -> Run:
    for rank in range(2):
        facts = [
            ParameterFacts(
                name=name, site=name, shape=(2,), dtype="float32", requires_grad=True, has_gradient=not is_unused,
                is_reached=not is_unused,
            )
            for name, is_unused in (("head.weight", False), ("other.weight", unused[rank]))
        ]  # fmt: skip
        module = ModuleFacts(site="<model>", kind="DistributedDataParallel", training=True)
        raised = Anomaly(step=1, kind="exception", name="RuntimeError", detail=ExceptionDetail(message=message))
        structure = Structure(step=0, parameters=tuple(facts), modules=(module,))
        run = write_run(folder, structure, [raised] if message else [], losses(1.0), rank=rank, ranks=2)
    return run


@pytest.mark.parametrize(
    ("message", "severity"), [("Expected to have finished reduction in the prior iteration", "error"), (None, "note")]
)
def test_what_no_rank_reaches_is_named(message: str | None, severity: str, tmp_path: Path) -> None:
    (finding,) = unused_parameters(write(tmp_path / "run", unused=(True, True), message=message))
    assert (finding.parameter, finding.severity) == ("other.weight", Severity(severity))


def test_what_one_rank_reaches_is_used(tmp_path: Path) -> None:
    assert unused_parameters(write(tmp_path / "run", unused=(True, False), message=None)) == []

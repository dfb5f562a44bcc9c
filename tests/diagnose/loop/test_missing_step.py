"""An optimizer that never steps is reported; without gradients, or without an optimizer, there is silence."""

from __future__ import annotations

from pathlib import Path

from roundoff.diagnose.loop.step_calls import missing_steps
from roundoff.runs import (
    Finding,
    OptimizerFacts,
    ParameterFacts,
    Severity,
    Structure,
)
from tests.run_folders import LoopCall, call, calls_by_step, write_run

BACKWARD, CLEAR = call("backward"), call("zero_grad")


def parameter(optimizer: str, *, is_reached: bool = True) -> ParameterFacts:
    return ParameterFacts(
        name=f"{optimizer}.weight",
        site="0",
        shape=(2, 2),
        dtype="float32",
        requires_grad=True,
        optimizers=(optimizer,),
        is_reached=is_reached,
    )


def found(folder: Path, calls: list[LoopCall], *parameters: ParameterFacts) -> list[Finding]:
    optimizers = tuple(OptimizerFacts(name=entry.optimizers[0]) for entry in parameters)
    structure = Structure(step=0, parameters=parameters, optimizers=optimizers)
    return missing_steps(write_run(folder / "run", structure, calls_by_step([calls] * 20)))


def test_a_loop_without_a_step_is_reported(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, [CLEAR, BACKWARD], parameter("Adam"))
    assert (finding.rule, finding.step, finding.severity) == ("missing-step", 0, Severity.ERROR)
    assert finding.title == "Adam never steps"


def test_one_of_two_optimizers_that_never_steps_is_a_warning_if_the_loop_clears_its_gradients(tmp_path: Path) -> None:
    calls = [call("zero_grad", of="Adam"), BACKWARD, call("step", optimizer="SGD")]
    (finding,) = found(tmp_path, calls, parameter("SGD"), parameter("Adam"))
    assert (finding.title, finding.severity) == ("Adam never steps", Severity.WARNING)


def test_an_optimizer_that_the_loop_never_touches_is_a_note(tmp_path: Path) -> None:
    calls = [call("zero_grad", of="SGD"), BACKWARD, call("step", optimizer="SGD")]
    (finding,) = found(tmp_path, calls, parameter("SGD"), parameter("Adam"))
    assert (finding.title, finding.severity) == ("Adam never steps", Severity.NOTE)


def test_other_loops_are_silent(tmp_path: Path) -> None:
    stepping = call("step", optimizer="SGD")
    assert found(tmp_path / "a", [BACKWARD, stepping], parameter("SGD"), parameter("Adam", is_reached=False)) == []
    assert found(tmp_path / "b", [BACKWARD, stepping], parameter("SGD")) == []
    assert found(tmp_path / "c", [BACKWARD]) == []

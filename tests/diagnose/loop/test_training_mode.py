"""Steps in eval mode are reported from the first on; frozen parts and attacks in eval mode are silent."""

from __future__ import annotations

from pathlib import Path

from roundoff.diagnose.loop.training_mode import training_in_eval_mode
from roundoff.runs import (
    Finding,
    ModuleFacts,
    ParameterFacts,
    Severity,
    Structure,
)
from tests.run_folders import LoopCall, call, calls_by_step, write_run

TRAINING = call("forward", site="<model>", training=True)
EVALUATING = call("forward", site="<model>", training=False)
BACKWARD = call("backward")


def found(
    folder: Path, steps: list[list[LoopCall]], *, kind: str = "Dropout", optimizers: tuple[str, ...] = ("SGD",)
) -> list[Finding]:
    parameter = ParameterFacts(
        name="0.weight", site="0", shape=(2, 2), dtype="float32", requires_grad=True, optimizers=optimizers
    )
    module = ModuleFacts(site="1", kind=kind, training=True)
    structure = Structure(step=0, parameters=(parameter,), modules=(module,))
    return training_in_eval_mode(write_run(folder / "run", structure, calls_by_step(steps)))


def test_the_first_step_in_eval_mode_is_named(tmp_path: Path) -> None:
    steps = [*[[TRAINING, BACKWARD]] * 4, [TRAINING, BACKWARD, call("eval")], *[[EVALUATING, BACKWARD]] * 3]
    (finding,) = found(tmp_path, steps)
    assert (finding.rule, finding.step, finding.site) == ("eval-mode-training", 5, "<model>")
    assert finding.severity is Severity.ERROR


def test_a_model_without_modes_is_a_note(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, [[TRAINING, BACKWARD], *[[EVALUATING, BACKWARD]] * 3], kind="Linear")
    assert finding.severity is Severity.NOTE


def test_eval_mode_from_the_start_or_of_a_frozen_part_or_within_a_step_is_silent(tmp_path: Path) -> None:
    assert found(tmp_path / "a", [[EVALUATING, BACKWARD]] * 4) == []
    assert found(tmp_path / "b", [[TRAINING, BACKWARD], *[[EVALUATING, BACKWARD]] * 3], optimizers=()) == []
    assert found(tmp_path / "c", [[TRAINING, BACKWARD], *[[EVALUATING, BACKWARD, TRAINING, BACKWARD]] * 3]) == []


def test_an_evaluation_before_the_first_step_is_named_where_training_mode_was_wanted(tmp_path: Path) -> None:
    steps = [[EVALUATING, BACKWARD]] * 3
    (finding,) = found(tmp_path / "a", [[call("train"), call("eval"), EVALUATING, BACKWARD], *steps])
    assert (finding.rule, finding.step) == ("eval-mode-training", 0)
    assert found(tmp_path / "b", [[call("eval"), EVALUATING, BACKWARD], *steps]) == []

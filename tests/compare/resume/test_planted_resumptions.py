"""Resumed trainings as users write them, run with `roundoff run`: what one forgets is named, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line
from roundoff.runs import Run
from tests.watch.script_server import ScriptServer

SCRIPTS = Path(__file__).parent
EPOCHS, STEPS, BY_EPOCH = (SCRIPTS / f"{name}.py" for name in ("epochs_script", "steps_script", "epochs_by_epoch"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: ScriptServer) -> Path:
    """A folder with the runs that save."""
    made = tmp_path_factory.mktemp("resumptions")
    watch(server, made, "epochs", EPOCHS, "start")
    watch(server, made, "steps", STEPS, "start")
    watch(server, made, "by-epoch", BY_EPOCH, "start", "5")
    return made


def watch(server: ScriptServer, folder: Path, name: str, *words: str | Path) -> None:
    ended = server.run(words, folder=folder, watched=["--name", name])
    assert ended.code == 0, ended.stderr
    assert "are off" not in ended.stderr
    assert Run.open(folder / "runs" / name).failures() == []


def compare(folder: Path, *words: str) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "runs")
        result = CliRunner().invoke(command_line, ["compare", "--resume", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def compare_as_json(folder: Path, *words: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(compare(folder, *words, "--json").output)
    return value


PLANTS = {
    "optimizer": (
        ["optimizer state"],
        "The optimizer's state was not restored: AdamW begins without exp_avg and exp_avg_sq, which the run had after "
        "30 updates.",
    ),
    "sampler": (["data order"], "The sampler starts again from the first batch: the first "),
    "generator": (
        ["generators"],
        "The generators were not restored: the state of torch is another, from which Dropout and RandomSampler draw.",
    ),
    "scaler": (["loss scale"], "The loss scale is 65536 again; the run had 147456."),
    "head": (
        ["weights"],
        "Only some weights were loaded: head.weight and head.bias are not as in the run; load_state_dict missed "
        "head.weight and head.bias.",
    ),
    "buffers": (
        ["buffers"],
        "The buffers were not restored: body.1.running_mean and body.1.running_var are not as in the run.",
    ),
    "average": (
        ["copies of the model"],
        "The average or copy of the model was not restored: AveragedModel, which is a copy of the loaded weights now.",
    ),
}


@pytest.mark.parametrize("fault", PLANTS)
def test_names_the_one_thing_that_was_forgotten(fault: str, folder: Path, server: ScriptServer):
    watch(server, folder, f"without-{fault}", EPOCHS, "resume", fault)
    value = compare_as_json(folder, "epochs", f"without-{fault}")
    lost, verdict = PLANTS[fault]
    assert value["lost"] == lost, value["parts"]
    result = compare(folder, "epochs", f"without-{fault}")
    text = " ".join(result.output.split())
    assert text.startswith(verdict)
    assert "step 30 of the run is step 0 of the resumed one, by its weights: " in text
    assert result.exit_code == 1


def test_a_forgotten_schedule_is_named_although_the_optimizer_brings_back_the_first_rate(
    folder: Path, server: ScriptServer
):
    watch(server, folder, "without-schedule", EPOCHS, "resume", "schedule")
    value = compare_as_json(folder, "epochs", "without-schedule")
    assert value["lost"] == ["learning rate"], value["parts"]
    assert "LambdaLR is at 0, where the run was at 30" in value["verdict"]


def test_names_all_that_was_forgotten_when_only_the_weights_were_loaded(folder: Path, server: ScriptServer):
    watch(server, folder, "weights-only", EPOCHS, "resume", "all")
    value = compare_as_json(folder, "epochs", "weights-only")
    everything = ["optimizer state", "learning rate", "loss scale", "data order", "generators", "copies of the model"]
    assert value["lost"] == everything
    assert value["verdict"].startswith("6 things were not restored at step 30: optimizer state, learning rate, ")
    assert "the learning rate starts again as at step 0: 0.0005 against 0.00769231" in value["finding"]["why"]
    assert value["drift"]["first_different"] == 30


@pytest.mark.parametrize(("fault", "shift", "other"), [("behind", -1, 25), ("ahead", 1, 27)])
def test_names_a_step_counter_that_is_off_by_one(
    fault: str, shift: int, other: int, folder: Path, server: ScriptServer
):
    watch(server, folder, fault, STEPS, "resume", fault)
    value = compare_as_json(folder, "steps", fault)
    assert value["lost"] == ["step counter"], value["parts"]
    assert value["verdict"] == (
        f"the step counter is 1 {fault}: step 26 trains with the batch and the learning rate of step {other}"
    )
    assert value["finding"]["evidence"] == [{"part": "step counter", "shift": shift}]


def test_says_that_everything_was_restored_and_the_losses_are_identical(folder: Path, server: ScriptServer):
    watch(server, folder, "complete", EPOCHS, "resume")
    result = compare(folder, "epochs", "complete")
    assert " ".join(result.output.split()).startswith(
        "All that was compared was restored at step 30: weights, buffers, optimizer state, learning rate, loss scale, "
        "data order, generators and copies of the model; the losses of the 12 steps from there on are identical."
    )
    assert result.exit_code == 0


def test_is_silent_about_a_training_that_computes_everything_from_its_step(folder: Path, server: ScriptServer):
    watch(server, folder, "right-step", STEPS, "resume")
    value = compare_as_json(folder, "steps", "right-step")
    assert value["lost"] == []
    assert value["drift"]["num_identical"] == value["drift"]["num_steps"] == 14


def test_another_state_of_generators_that_nothing_draws_from_does_not_matter(folder: Path, server: ScriptServer):
    watch(server, folder, "next-epoch", BY_EPOCH, "resume", "5")
    value = compare_as_json(folder, "by-epoch", "next-epoch")
    assert value["lost"] == []
    assert value["seam"]["step"] == 36
    answers = {part["part"]: part["answer"] for part in value["parts"]}
    assert answers["generators"] == "not used"
    assert answers["losses"] == "restored"


def test_a_run_that_was_stopped_when_it_had_saved_is_compared_as_far_as_it_went(folder: Path, server: ScriptServer):
    there = folder / "stopped"
    watch(server, there, "start", EPOCHS, "start", "stop")
    watch(server, there, "complete", EPOCHS, "resume")
    value = compare_as_json(there, "start", "complete")
    assert value["lost"] == []
    assert value["verdict"].endswith("; the run has no loss after it to compare.")
    watch(server, there, "fresh", EPOCHS, "resume", "all")
    lost = compare_as_json(there, "start", "fresh")["lost"]
    assert lost == ["optimizer state", "learning rate", "loss scale", "data order", "copies of the model"]


def test_refuses_runs_that_have_no_seam(folder: Path, server: ScriptServer):
    watch(server, folder, "again", STEPS, "resume")
    result = compare(folder, "epochs", "steps")
    assert result.exit_code == 2
    assert "'steps' was not resumed: it loaded no checkpoint." in result.output
    result = compare(folder, "again", "steps")
    assert "name the run that was resumed second." in result.output
    result = compare(folder, "epochs", "again")
    assert result.exit_code == 2
    assert "'again' was not resumed from a checkpoint of 'epochs', as far as the two tell." in result.output
    result = compare(folder, "steps", "steps")
    assert "A run cannot be its own resumption." in result.output
    result = compare(folder, "steps", "../steps.pt")
    assert "'../steps.pt' is a checkpoint, not a run." in result.output


def test_at_names_the_seam(folder: Path, server: ScriptServer):
    watch(server, folder, "at", STEPS, "resume")
    value = compare_as_json(folder, "steps", "at", "--at", "26")
    assert value["lost"] == []
    assert value["seam"]["found_by"] == "as --at says"
    assert "step counter" in compare_as_json(folder, "steps", "at", "--at", "25")["lost"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "runs")
        result = CliRunner().invoke(command_line, ["compare", "steps", "at", "--at", "3"])
    assert result.exit_code == 2
    assert "--at 3 does not apply to two runs" in result.output


def test_table_csv_and_page_tell_the_same(folder: Path, server: ScriptServer, tmp_path: Path):
    watch(server, folder, "shown", EPOCHS, "resume", "optimizer")
    page, table = tmp_path / "page.html", tmp_path / "table.csv"
    output = compare(folder, "epochs", "shown", "--table", "--html", str(page), "--csv", str(table)).output
    assert "optimizer state" in output
    assert "AdamW begins without exp_avg" in page.read_text()
    assert table.read_text().splitlines()[0] == "part,answer,found"
    assert "optimizer state,not restored," in table.read_text()

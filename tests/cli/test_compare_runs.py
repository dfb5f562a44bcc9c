"""`roundoff compare` on runs and on steps of runs, as a user types it."""

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line
from roundoff.record import recording
from tests.compare.variants import Variant, transformer_training


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    for name, variant in {"ref": Variant(), "same": Variant(), "eps": Variant(norm_eps=1e-3)}.items():
        train = transformer_training(variant)
        with recording(to=runs / name, steps=range(2), inputs=True, stacks=True, command=("train.py",), seed=0):
            train()
    return runs


def compare(folder: Path, *arguments: str) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return CliRunner().invoke(command_line, ["compare", *arguments])


def test_identical_runs_end_with_0_and_one_line(folder: Path):
    result = compare(folder, "ref", "same")
    assert result.exit_code == 0
    assert result.output.startswith("The runs are identical bit for bit: ")
    assert len(result.output.splitlines()) == 1


def test_the_first_sentence_names_the_op_and_its_line(folder: Path):
    result = compare(folder, "ref", "eps")
    assert result.exit_code == 1
    first, second, *_ = result.output.splitlines()
    assert first.startswith("blocks.1.ln1 / aten.native_layer_norm#0 introduces the first difference: step 0, forward")
    assert second.endswith("everything before it agrees within its format.") or "variants.py:" in second
    assert "variants.py:" in result.output
    assert all(len(line) <= 100 for line in result.output.splitlines())
    assert compare(folder, "ref", "eps", "--exit-zero").exit_code == 0


def test_what_an_op_inherited_is_not_claimed_where_its_inputs_were_not_recorded(tmp_path: Path):
    for name, variant in {"ref": Variant(), "eps": Variant(norm_eps=1e-3)}.items():
        train = transformer_training(variant)
        with recording(to=tmp_path / name, steps=range(1)):
            train()
    text = compare(tmp_path, "ref", "eps").output
    assert text.startswith("blocks.1.ln1 / aten.native_layer_norm#0 is the first result that differs by more than its")
    assert "its inputs were not recorded, so it may have inherited that" in text.replace("\n ", "")
    assert "everything before it agrees" not in text


def test_json_csv_table_and_page_tell_the_same(folder: Path):
    result = compare(folder, "ref", "eps", "--json", "--csv", "rows.csv", "--html", "page.html")
    reported = json.loads(result.output)
    assert reported["finding"]["rule"] == "first-divergence"
    assert (reported["finding"]["site"], reported["finding"]["op"]) == ("blocks.1.ln1", "aten.native_layer_norm#0")
    with (folder / "rows.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == reported["num_tensors"]
    worst = max(rows, key=lambda row: float(row["excess"]))
    assert (worst["site"], worst["op"]) == ("blocks.1.ln1", "aten.native_layer_norm#0")
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "blocks.1.ln1" in page
    assert "http" not in page.replace("http-equiv", "")
    table = compare(folder, "ref", "eps", "--table").output.split("\n\n", 1)[1]
    assert any(line.split()[2:4] == ["blocks.1.ln1", "aten.native_layer_norm#0"] for line in table.splitlines())


def test_two_steps_of_a_run_tell_which_weights_moved(folder: Path):
    result = compare(folder, "ref@0", "ref@1")
    assert result.exit_code == 0
    assert result.output.startswith("41 of 41 parameters changed from step 0 to step 1.")
    assert json.loads(compare(folder, "ref@0", "ref@1", "--json").output)["candidate_step"] == 1


def test_two_steps_have_a_table_a_csv_file_and_a_page(folder: Path):
    result = compare(folder, "ref@0", "ref@1", "--table", "--csv", "steps.csv", "--html", "steps.html")
    assert result.exit_code == 0
    assert "reference absmax" in result.output
    with (folder / "steps.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 41
    assert all(float(row["change"]) > 0 for row in rows)
    page = (folder / "steps.html").read_text(encoding="utf-8")
    assert "41 of 41 parameters changed from step 0 to step 1." in page
    assert rows[0]["parameter"] in page


def test_a_rank_of_two_steps_can_be_chosen(folder: Path):
    assert compare(folder, "ref@0", "ref@1", "--rank", "0").exit_code == 0


@pytest.mark.parametrize(
    ("option", "value", "kinds"),
    [
        ("--step", "0", "runs"),
        ("--map", "names.txt", "runs, checkpoints and folders of tensors"),
        ("--pattern", "x", "curves"),
        ("--column", "loss", "curves"),
    ],
)
def test_an_option_that_has_no_effect_on_two_steps_is_refused(folder: Path, option: str, value: str, kinds: str):
    result = compare(folder, "ref@0", "ref@1", option, value)
    assert result.exit_code == 2
    assert result.output == (
        f"UsageError: {option} {value} does not apply to two steps.\n"
        f"  why: it applies to {kinds}.\n"
        f"  fix: leave {option} out.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ref", "nowhere"), "There is no 'nowhere'."),
        (("ref@0", "eps"), "A step and a run cannot be compared."),
        (("ref@0", "ref@9"), "contains nothing about step 9"),
        (("ref", "eps", "--step", "9"), "Step 9 cannot be compared."),
        (("ref", "eps", "--map", "nowhere.txt"), "The map 'nowhere.txt' cannot be read."),
        (("ref", "eps", "--csv", "no/such/folder.csv"), "'no/such/folder.csv' cannot be written."),
    ],
)
def test_what_cannot_be_compared_ends_with_2_and_says_why(folder: Path, arguments: tuple[str, ...], words: str):
    result = compare(folder, *arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_a_run_and_a_log_cannot_be_compared(folder: Path):
    (folder / "log.csv").write_text("step,loss\n0,1.0\n", encoding="utf-8")
    result = compare(folder, "ref", "log.csv")
    assert result.exit_code == 2
    assert "A run and a curve cannot be compared." in result.output

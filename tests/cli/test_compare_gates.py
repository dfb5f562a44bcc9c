"""`roundoff compare --gate` as continuous integration calls it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line
from roundoff.runs import Metrics, RunInfo, RunWriter

FACTORS = {"ref": 1.0, "seed1": 1.01, "seed2": 0.99, "worse": 1.05, "close": 1.012}


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, factor in FACTORS.items():
        with RunWriter.create(tmp_path / name, RunInfo()) as writer:
            for step in range(50):
                writer.write(Metrics(step=step, loss=factor * 2 * 0.98**step, grad_norm=factor))
        lines = "".join(f"{step},{factor * 2 * 0.98**step},{factor}\n" for step in range(50))
        (tmp_path / f"{name}.csv").write_text(f"step,loss,grad_norm\n{lines}")


def compare(*arguments: str) -> Result:
    result = CliRunner().invoke(command_line, ["compare", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


GATES = ("--gate", "mean-loss=2%", "--gate", "matched-step=0.01", "--gate", "grad-norm=6%")


@pytest.mark.parametrize("suffix", ["", ".csv"])
def test_each_gate_has_a_line_and_the_exit_code_tells(suffix: str):
    result = compare(f"ref{suffix}", f"worse{suffix}", *GATES)
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        "2 of 3 gates failed.",
        "  mean-loss: failed, +5 % (limit 2 %)",
        "  matched-step: failed, +0.098 at step 0 (limit 0.01)",
        "  grad-norm: passed, +5 % (limit 6 %)",
    ]
    assert compare(f"ref{suffix}", f"worse{suffix}", *GATES, "--exit-zero").exit_code == 0


def test_several_reference_runs_show_their_noise():
    result = compare("ref", "close", "--reference", "seed1", "--reference", "seed2", *GATES[:4])
    assert result.exit_code == 0
    first, mean, matched = result.output.splitlines()
    assert first == "2 gates passed."
    assert mean == "  mean-loss: passed, +1.2 % (limit 2 %; 3 reference runs differ by up to 1.51 %)"
    assert matched.startswith("  matched-step: passed, +0.02")
    assert compare("ref", "worse", "--reference", "seed1", "--reference", "seed2", *GATES[:4]).exit_code == 1


def test_json_and_page_hold_the_same_numbers(tmp_path: Path):
    value = json.loads(compare("ref", "worse", *GATES, "--json").output)
    assert not value["passed"]
    assert [(gate["gate"], gate["passed"]) for gate in value["gates"]] == [
        ("mean-loss", False),
        ("matched-step", False),
        ("grad-norm", True),
    ]
    assert value["gates"][0]["gap"] == pytest.approx(0.05)
    compare("ref", "worse", *GATES, "--html", "page.html", "--csv", "gates.csv")
    assert "mean-loss: failed, +5 % (limit 2 %)" in Path("page.html").read_text()
    assert Path("gates.csv").read_text().startswith("gate,answer,gap,limit,noise,steps\nmean-loss,failed,")


def test_what_has_no_gate_ends_with_2():
    assert compare("ref", "worse", "--gate", "accuracy=2%").exit_code == 2
    assert compare("ref", "worse", "--reference", "seed1").exit_code == 2
    result = compare("ref", "worse.csv", *GATES)
    assert result.exit_code == 2
    assert "A run and a curve cannot be compared." in result.output

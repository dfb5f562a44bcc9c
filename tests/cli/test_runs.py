import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line
from roundoff.runs import EventColumns, Finding, Interned, Metrics, Run, RunInfo, RunWriter, Severity
from tests.run_folders import write_run


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(command_line, ["runs", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def events(step: int) -> EventColumns:
    """Three events: a matmul forward and backward, and a loss that is infinite."""
    zeros = np.zeros(3, dtype=np.int64)
    return EventColumns(
        step=zeros + step,
        microbatch=zeros,
        phase=Interned.of(["forward", "forward", "backward"]),
        site=Interned.of(["blocks.0.mlp", "<loop>", "blocks.0.mlp"]),
        op=Interned.of(["aten.addmm", "aten.mean", "aten.mm"]),
        nth=np.array([0, 0, 1]),
        output=Interned.constant("output0", 3),
        order=np.arange(3),
        dtype=Interned.of(["float32", "float16", "float32"]),
        shape=Interned.of(["8x4", "", "8x128x256"]),
        device=Interned.constant("cpu", 3),
        num_elements=np.array([32, 1, 2**18]),
        min=np.array([-1.25, np.nan, -3e-7]),
        max=np.array([12345.678, np.nan, 2e-7]),
        mean=np.array([0.5, np.nan, 0.0]),
        sum_abs=zeros,
        l2=zeros,
        num_nan=zeros,
        num_posinf=np.array([0, 1, 0]),
        num_neginf=zeros,
        num_zero=zeros,
        num_subnormal=zeros,
        hash=np.array([1, 2, 2**63], dtype=np.uint64),
    )


def write_steps(folder: Path, *, started: str, ranks: int = 1, num_steps: int = 3, **info: Any) -> Run:
    contents = [(events(step), Metrics(step=step, loss=2.0 / (step + 1))) for step in range(num_steps)]
    for rank in range(ranks):
        run = write_run(folder, contents, rank=rank, started=started, **info)
    return run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def finding(rule: str) -> Finding:
    return Finding(rule=rule, severity=Severity.ERROR, confidence=0.9, title="t", why="w", fix="f")


def test_lists_the_runs_in_the_default_folder():
    write_steps(Path("runs/train-1"), started="1", recipe="O2", num_steps=120).write_findings([])
    write_steps(Path("runs/train-2"), started="2").write_findings([finding("overflow"), finding("loss-nonfinite")])
    RunWriter.create("runs/train-10", RunInfo(started="3", recipe="bf16"))
    result = invoke()
    assert result.stdout == (
        "run            recipe  status    steps  last loss  findings\n"
        "runs/train-1   O2      finished    120    0.01667  none\n"
        "runs/train-2   -       finished      3     0.6667  overflow, 1 more\n"
        "runs/train-10  bf16    running       0          -  not diagnosed\n"
    )
    assert result.exit_code == 0


def test_lists_the_runs_of_another_folder_and_one_run_alone():
    write_steps(Path("elsewhere/a"), started="1")
    expected = (
        "run          recipe  status    steps  last loss  findings\n"
        "elsewhere/a  -       finished      3     0.6667  not diagnosed\n"
    )
    assert invoke("elsewhere").stdout == expected
    assert invoke("list", "elsewhere").stdout == expected
    assert invoke("elsewhere/a").stdout == expected


def test_an_unreadable_run_is_listed_as_such():
    write_steps(Path("runs/a"), started="1")
    write_steps(Path("runs/b"), started="2")
    Path("runs/b/run.json").write_text("[]")
    result = invoke()
    assert result.exit_code == 0
    assert result.stdout.splitlines()[2:] == [
        "runs/b  cannot be read",
        "  'runs/b/run.json' cannot be read.",
        "    why: it does not hold a JSON object.",
        "    fix: take the file from a copy of the run.",
    ]
    Path("runs/a/run.json").write_text("[]")
    assert invoke().exit_code == 2


@pytest.mark.parametrize(
    ("name", "why"), [("empty", "no directory in it contains a run.json."), ("missing", "it is not a directory.")]
)
def test_a_folder_without_runs_is_an_error(name: str, why: str):
    Path("empty").mkdir()
    result = invoke(name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"UsageError: No runs in '{name}'.\n  why: {why}\n  fix: record one: roundoff run train.py\n"
    )


def test_lists_as_json():
    write_steps(Path("runs/a"), started="1").write_findings([finding("overflow")])
    (listed,) = json.loads(invoke("--json").stdout)
    assert listed.pop("findings")[0]["rule"] == "overflow"
    assert listed == {
        "path": "runs/a",
        "started": "1",
        "status": "finished",
        "recipe": None,
        "num_steps": 3,
        "last_loss": 2 / 3,
    }


def test_shows_events():
    write_steps(Path("a"), started="1")
    result = invoke("show", "a", "--step", "1")
    assert result.stdout == (
        "step  phase     site          op                    dtype    shape         min        max  mean  nonfinite\n"
        "1     forward   blocks.0.mlp  aten.addmm#0:output0  float32  8x4         -1.25  1.235e+04   0.5          0\n"
        "1     forward   <loop>        aten.mean#0:output0   float16  scalar        nan        nan   nan          1\n"
        "1     backward  blocks.0.mlp  aten.mm#1:output0     float32  8x128x256  -3e-07      2e-07     0          0\n"
    )
    assert result.exit_code == 0


def test_shows_the_rank_where_there_are_several():
    write_steps(Path("a"), started="1", ranks=2)
    result = invoke("show", "a", "--step", "0", "--op", "aten.mean")
    assert result.stdout == (
        "step  rank  phase    site    op                   dtype    shape   min  max  mean  nonfinite\n"
        "0     0     forward  <loop>  aten.mean#0:output0  float16  scalar  nan  nan   nan          1\n"
        "0     1     forward  <loop>  aten.mean#0:output0  float16  scalar  nan  nan   nan          1\n"
    )
    assert len(invoke("show", "a", "--rank", "1").stdout.splitlines()) == 10


def test_shows_parameter_and_source_where_they_are_known():
    names = Interned.of([None, None, "blocks.0.mlp.weight"])
    write_run(Path("a"), replace(events(0), parameter=names, source=Interned.constant("model.py:41", 3)))
    shown = invoke("show", "a", "--phase", "backward").stdout
    assert shown == (
        "step  phase     site          op                 parameter            dtype    shape         min    max  mean"
        "  nonfinite  source\n"
        "0     backward  blocks.0.mlp  aten.mm#1:output0  blocks.0.mlp.weight  float32  8x128x256  -3e-07  2e-07     0"
        "          0  model.py:41\n"
    )


def test_says_how_many_lines_it_left_out():
    write_steps(Path("a"), started="1")
    lines = invoke("show", "a", "--limit", "2").stdout.splitlines()
    assert len(lines) == 4
    assert lines[-1] == "7 more; --limit 0 prints all, --json all columns"
    assert len(invoke("show", "a", "--limit", "0").stdout.splitlines()) == 10
    assert len(invoke("show", "a", "--limit", "9").stdout.splitlines()) == 10


def test_shows_events_as_json():
    write_steps(Path("a"), started="1")
    shown = json.loads(invoke("show", "a", "--site", "blocks.*", "--phase", "backward", "--json").stdout)
    assert [event["step"] for event in shown] == [0, 1, 2]
    assert (shown[0]["hash"], shown[0]["shape"], shown[0]["op"]) == ("8000000000000000", [8, 128, 256], "aten.mm")
    (loss,) = json.loads(invoke("show", "a", "--op", "aten.mean#0", "--step", "2", "--json").stdout)
    assert loss["min"] == "nan"


@pytest.mark.parametrize(
    ("filters", "has", "why"),
    [
        (("--step", "9"), "step '9'", "recorded steps: 0, 1, 2."),
        (("--site", "head.*"), "site 'head.*'", "recorded sites: <loop>, blocks.0.mlp."),
        (("--phase", "eval"), "phase 'eval'", "recorded phases: backward, forward."),
        (("--rank", "3"), "rank '3'", "recorded ranks: 0."),
        (("--op", "aten.bmm", "--step", "1"), "op 'aten.bmm'", "recorded ops: aten.addmm, aten.mean, aten.mm."),
        (
            ("--phase", "backward", "--site", "<loop>"),
            "site '<loop>' and phase 'backward'",
            "each of them occurs, but not together.",
        ),
    ],
)
def test_a_filter_that_matches_nothing_is_an_error_that_lists_what_exists(filters: tuple[str, ...], has: str, why: str):
    write_steps(Path("a"), started="1")
    result = invoke("show", "a", *filters)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"UsageError: No event of 'a' has {has}.\n  why: {why}\n"


def test_only_some_of_many_names_are_listed():
    write_run(Path("a"), [events(step) for step in range(20)])
    assert invoke("show", "a", "--step", "99").stderr.splitlines()[1] == (
        "  why: recorded steps: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 8 more."
    )


def test_a_run_without_events_is_an_error():
    write_steps(Path("a"), started="1", num_steps=0)
    result = invoke("show", "a")
    assert result.exit_code == 2
    assert result.stderr == (
        "UsageError: 'a' contains no events.\n  why: no step was recorded.\n"
        "  fix: record some: roundoff record --steps 0-1 SCRIPT\n"
    )


def test_a_run_without_events_names_its_replayed_step():
    write_steps(Path("a"), started="1", num_steps=0)
    write_steps(Path("a/replay/step7"), started="1")
    assert invoke("show", "a").stderr.endswith("fix: see the replayed step: roundoff runs show a/replay/step7\n")


def test_a_folder_that_is_no_run_is_an_error():
    result = invoke("show", "missing")
    assert result.exit_code == 2
    assert result.stderr == (
        "RunFolderError: 'missing' does not exist.\n  fix: see which runs there are: roundoff runs\n"
    )


def test_help_ends_with_an_example_and_names_both_uses():
    for arguments in (["--help"], ["list", "--help"], ["show", "--help"]):
        result = invoke(*arguments)
        assert result.exit_code == 0
        assert result.stdout.splitlines()[-1].strip().startswith("Example: roundoff runs ")
    assert invoke("--help").stdout.splitlines()[0] == "Usage: roundoff runs [OPTIONS] [DIR] | show RUN"


def test_asking_for_help_imports_nothing_heavy():
    script = """
import sys
from roundoff.cli import command_line
command_line(["runs", "--help"], standalone_mode=False)
assert not {"torch", "backports.zstd", "numpy", "rich"} & set(sys.modules), "heavy"
"""
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL, timeout=300)

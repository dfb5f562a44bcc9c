"""`roundoff record`: the script behaves as without us, and the last lines say what was recorded."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line
from roundoff.runs import Run

TRAIN = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--steps", type=int, default=3)
options = parser.parse_args()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
x = torch.randn(4, 3)
for step in range(options.steps):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    return tmp_path


def record(*words: str) -> Result:
    result = CliRunner().invoke(command_line, ["record", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def timeless(text: str) -> str:
    return re.sub(r"in \d+\.\d s", "in 0.0 s", text)


def plain(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=300)


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "roundoff", "record", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_script_prints_what_it_prints_and_we_say_where_the_run_is():
    result = record("train.py", "--lr", "0.1")
    assert result.exit_code == 0
    assert result.stdout == plain("train.py", "--lr", "0.1").stdout
    num_events = Run.open("runs/train-1").events().num_rows
    assert timeless(result.stderr) == (
        f"recorded 2 steps, {num_events} events in 0.0 s to runs/train-1\n"
        "next   roundoff runs show runs/train-1 --step 0\n"
    )


def test_options_of_the_script_are_its_own():
    result = record("--steps", "0", "train.py", "--steps", "5")
    assert len(result.stdout.splitlines()) == 5
    assert Run.open("runs/train-1").steps == [0]
    assert Run.open("runs/train-1").info.command == ("python", "train.py", "--steps", "5")


def test_the_hint_names_a_step_that_was_recorded():
    result = record("--steps", "1-2", "train.py")
    assert result.stderr.splitlines()[-1] == "next   roundoff runs show runs/train-1 --step 1"
    assert CliRunner().invoke(command_line, result.stderr.splitlines()[-1].split()[2:]).exit_code == 0


def test_one_step_is_one_step():
    assert record("--steps", "1", "train.py").stderr.startswith("recorded 1 step, ")


def test_json_is_the_last_line_of_stdout():
    result = record("--json", "train.py")
    *script, last = result.stdout.splitlines()
    assert len(script) == 3
    assert json.loads(last) == {
        "schema": "roundoff/record/1",
        "run": "runs/train-1", "steps": 2, "events": Run.open("runs/train-1").events().num_rows, "complaints": [],
    }  # fmt: skip
    assert result.stderr == ""


def test_every_option_reaches_the_run():
    result = record(
        "--steps", "all", "--level", "tensors", "--sites", "0", "--sites", "2", "--ops", "*mm", "--phases", "forward",
        "--inputs", "--stacks", "--seed", "5", "--deterministic", "--repeat-batch", "--name", "mine",
        "--runs", "elsewhere", "train.py",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    run = Run.open("elsewhere/mine")
    assert run.steps == [0, 1, 2]
    assert {(e.phase, e.site, e.op) for e in run.iter_events()} == {
        ("forward", "0", "aten.addmm"), ("forward", "2", "aten.addmm"),
    }  # fmt: skip
    assert {e.source for e in run.iter_events()} == {"train.py:16"}
    assert {e.output for e in run.iter_events()} == {"input0", "input1", "input2", "output0"}
    assert len(run.tensor_steps) == 3
    assert run.info.seed == 5
    assert run.info.settings == {
        "level": "tensors", "inputs": True, "histograms": False, "reference": None, "stacks": True,
        "deterministic": True, "repeat_batch": True,
    }  # fmt: skip


def test_runs_of_one_script_are_numbered():
    assert [record("train.py").exit_code for _ in range(2)] == [0, 0]
    assert sorted(path.name for path in Path("runs").iterdir()) == ["train-1", "train-2"]


@pytest.mark.parametrize("level", ["summary", "tensors"])
def test_a_script_can_make_a_folder_of_the_same_name_itself(level: str):
    Path("own.py").write_text('import os\nos.mkdir("runs")\nopen("runs/log", "w").close()\n' + TRAIN)
    result = record("--level", level, "own.py")
    assert result.exit_code == 0, result.stderr
    assert sorted(os.listdir("runs")) == ["log", "own-1"]
    assert Run.open("runs/own-1").steps == [0, 1]
    assert not [name for name in os.listdir() if name.startswith(".roundoff")]


def test_a_module_is_recorded_under_its_own_name():
    Path("project").mkdir()
    Path("project/__init__.py").write_text("")
    Path("project/learn.py").write_text(TRAIN)
    assert record("-m", "project.learn", "--lr", "0.1").exit_code == 0
    assert Run.open("runs/learn-1").info.command == ("python", "-m", "project.learn", "--lr", "0.1")
    del sys.modules["project"]


# -- what cannot be done -----------------------------------------------------------------------------------------------

REFUSED = {
    "no script": (
        [],
        "ScriptError: No script was named.\n  fix: for example: roundoff record --steps 0-3 train.py --lr 0.1\n",
    ),
    "a script that does not exist": (
        ["trian.py"],
        "ScriptError: There is no script 'trian.py'.\n  why: it does not exist.\n"
        "  fix: name a Python file, or -m MODULE.\n",
    ),
    "a module that does not exist": (
        ["-m", "trian"],
        "ScriptError: There is no module 'trian'.\n  why: no 'trian' is in the current folder or installed.\n",
    ),
    "a level": (
        ["--level", "all", "train.py"],
        "RecordError: There is no level 'all'.\n  why: the levels are summary, tensors.\n  fix: use one of them.\n",
    ),
    "a reference": (
        ["--reference", "fp128", "train.py"],
        "RecordError: There is no reference 'fp128'.\n  why: the references are fp64, cpu.\n  fix: use one of them.\n",
    ),
    "a phase": (
        ["--phases", "train", "train.py"],
        "RecordError: There is no phase 'train'.\n  why: the phases are forward, backward, optimizer, eval.\n"
        "  fix: use one of them.\n",
    ),
    "steps": (
        ["--steps", "first", "train.py"],
        "RecordError: 'first' is not a list of steps.\n  why: 'first' is not a number.\n"
        "  fix: write 0-3 or 0-3,10 or all.\n",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_done_is_said_at_once_and_leaves_no_run(kind):
    words, message = REFUSED[kind]
    result = record(*words)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", message)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stpes", "3", "train.py"], "No such option"),
        (["--seed", "-1", "train.py"], "-1 is not in the range"),
        (["--seed", "99999999999999999999", "train.py"], "99999999999999999999 is not in the range"),
    ],
)
def test_wrong_options_are_refused(words, message):
    result = record(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not Path("runs").exists()


def test_a_name_that_is_taken_is_refused():
    record("--name", "mine", "train.py")
    result = record("--name", "mine", "train.py")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "RunFolderError: 'runs/mine' already holds a run.\n"
        "  why: a run is never written over.\n"
        "  fix: name another folder, or remove this one.\n"
    )


# -- nothing is recorded in silence ------------------------------------------------------------------------------------


def test_steps_that_were_never_reached_are_said_and_fail_if_strict():
    assert record("--strict", "--name", "strict", "--steps", "7-9", "train.py").exit_code == 2
    result = record("--steps", "7-9", "train.py")
    assert result.exit_code == 0
    assert timeless(result.stderr) == (
        "roundoff: steps from 7 on were never reached: the loop took 3 steps.\n"
        "recorded 0 steps, 0 events in 0.0 s to runs/train-1\n"
    )


def test_some_steps_that_were_not_reached_are_said_but_end_with_0():
    result = record("--steps", "2-5", "train.py")
    assert result.exit_code == 0
    assert result.stderr.startswith(
        "roundoff: steps from 3 on were never reached: the loop took 3 steps.\nrecorded 1 step, "
    )


def test_a_filter_that_matched_nothing_is_said_and_fails_if_strict():
    assert record("--strict", "--name", "strict", "--sites", "blocks.*", "train.py").exit_code == 2
    result = record("--sites", "blocks.*", "train.py")
    assert result.exit_code == 0
    assert timeless(result.stderr) == (
        "roundoff: the site pattern 'blocks.*' matched nothing; there were 0, 1, 2, <loop>, <model>.\n"
        "recorded 2 steps, 0 events in 0.0 s to runs/train-1\n"
    )


@pytest.mark.parametrize("text", ["", "import torch\n", "import torch\ntorch.ones(3) * 2\n"])
def test_a_script_that_trains_nothing_is_said_and_fails_if_strict(text):
    Path("idle.py").write_text(text)
    assert record("--strict", "idle.py").exit_code == 2
    result = record("idle.py")
    assert result.exit_code == 0
    assert "roundoff: no training step was seen" in result.stderr


def test_the_help_of_a_script_is_no_training():
    result = record("train.py", "--help")
    assert result.exit_code == 0
    assert result.stdout == plain("train.py", "--help").stdout
    assert "roundoff: no training step was seen, so nothing was recorded.\n" in result.stderr


# -- how scripts end ---------------------------------------------------------------------------------------------------


def test_an_exception_is_printed_as_python_prints_it_and_ends_with_1():
    Path("train.py").write_text(TRAIN + "raise ValueError('a bad batch')\n")
    result = record("train.py")
    assert result.exit_code == 1
    assert timeless(result.stderr).splitlines()[:-2] == [
        "Traceback (most recent call last):",
        f'  File "{Path.cwd()}/train.py", line 20, in <module>',
        "    raise ValueError('a bad batch')",
        "ValueError: a bad batch",
    ]
    run = Run.open("runs/train-1")
    assert run.steps == [0, 1]
    assert run.info.status == "failed"


@pytest.mark.parametrize(("code", "status"), [(0, "finished"), (3, "failed")])
def test_the_exit_code_of_the_script_is_ours(code, status):
    Path("train.py").write_text(TRAIN + f"import sys\nsys.exit({code})\n")
    assert record("train.py").exit_code == code
    assert Run.open("runs/train-1").info.status == status


def test_the_recording_failing_does_not_fail_the_script():
    Path("train.py").write_text(TRAIN.replace("    print", "    import shutil; shutil.rmtree('runs', True)\n    print"))
    result = record("--steps", "all", "train.py")
    assert "the training goes on" in result.stderr
    assert result.stdout == plain("train.py").stdout
    assert result.exit_code == 0
    assert "recorded 0 steps, 0 events" in result.stderr


def test_strict_turns_that_around():
    Path("train.py").write_text(TRAIN.replace("    print", "    import shutil; shutil.rmtree('runs', True)\n    print"))
    result = record("--strict", "--steps", "all", "train.py")
    assert result.exit_code == 2
    run = Path.cwd() / "runs" / "train-1"
    assert result.stderr.startswith(f"RunFolderError: The run in '{run}' cannot be written.\n  why: ")
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_an_interrupt_ends_it_by_the_signal_and_says_where_the_run_is():
    Path("train.py").write_text(TRAIN + "import time\nprint('waiting', flush=True)\ntime.sleep(60)\n")
    process = start("train.py")
    while process.stdout.readline() != "waiting\n":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    lines = errors.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "KeyboardInterrupt" in lines
    assert not any("roundoff/record" in line for line in lines)
    assert lines[-1] == "next   roundoff runs show runs/train-1 --step 0"
    assert Run.open("runs/train-1").steps == [0, 1]


@pytest.mark.slow
def test_a_child_that_the_script_forked_says_nothing():
    Path("train.py").write_text("import os, sys\nif os.fork() == 0:\n    sys.exit(0)\nos.wait()\n" + TRAIN)
    _, errors = start("train.py").communicate(timeout=120)
    assert len(errors.splitlines()) == 2


WORKERS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.full((3,), float(index))

def main():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(Numbers(), 4, num_workers=1, multiprocessing_context="spawn"):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    print("trained")

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_workers_that_are_spawned_find_the_script():
    Path("train.py").write_text(WORKERS)
    process = start("train.py")
    output, errors = process.communicate(timeout=240)
    assert (process.returncode, output) == (0, "trained\n"), errors
    assert Run.open("runs/train-1").steps == [0, 1]


@pytest.mark.slow
def test_the_seed_makes_two_runs_the_same():
    Path("train.py").write_text(TRAIN.replace("torch.manual_seed(0)", ""))
    for name in ("a", "b"):
        process = start("--seed", "3", "--name", name, "train.py")
        process.communicate(timeout=120)
        assert process.returncode == 0
    a, b = ([(e.key, e.hash) for e in Run.open(f"runs/{name}").iter_events()] for name in ("a", "b"))
    assert a == b


def test_the_process_is_left_as_it_was():
    importlib.import_module("torch._dynamo")  # which any optimizer imports, and which sets a variable of its own
    environment, began = dict(os.environ), time.monotonic()
    record("--deterministic", "--repeat-batch", "train.py")
    assert dict(os.environ) == environment
    assert time.monotonic() - began < 60


def test_switches_of_the_environment_are_on_while_the_script_runs(monkeypatch: pytest.MonkeyPatch):
    Path("random.py").write_text(TRAIN.replace("torch.manual_seed(0)", ""))
    monkeypatch.setenv("ROUNDOFF_SWITCHES", json.dumps({"randomness": "5"}))
    first = record("--steps", "0", "random.py").stdout
    assert record("--steps", "0", "random.py").stdout == first
    monkeypatch.setenv("ROUNDOFF_SWITCHES", json.dumps({"randomness": "6"}))
    assert record("--steps", "0", "random.py").stdout != first


def test_a_switch_that_is_invalid_is_reported_before_anything_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ROUNDOFF_SWITCHES", json.dumps({"randomness": "often"}))
    result = CliRunner().invoke(command_line, ["record", "train.py"])
    assert result.exit_code == 2
    assert "Invalid value 'often' of the switch randomness." in result.output
    assert not Path("runs").exists()

"""A script runs as Python would run it: arguments, path, output, exceptions and exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from roundoff.errors import RunFolderError, ScriptError
from roundoff.record.loop.follower import LoopFollower
from roundoff.record.loop.observer import observing_loop
from roundoff.record.loop.sites import Sites
from roundoff.record.script import Script, folder_for, parse_script_command, run_script
from roundoff.runs import RunInfo, RunWriter


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)  # torch.distributed, once used, puts ranks before lines
    return tmp_path


def write(name: str, text: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return name


def run(name: str, text: str, *args: str) -> int:
    return run_script(Script(target=write(name, text), args=args))


def plain(*command: str) -> subprocess.CompletedProcess[str]:
    """What Python itself makes of it."""
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, timeout=300)


def test_a_script_is_the_main_program_with_its_own_arguments(capsys):
    code = run("train.py", "import sys\nprint(__name__, __file__, sys.argv)\n", "--lr", "0.1")
    assert code == 0
    assert capsys.readouterr().out == f"__main__ {Path.cwd()}/train.py ['train.py', '--lr', '0.1']\n"


def test_the_main_module_is_as_python_makes_it(capsys):
    text = (
        "import sys\nnames = sorted(name for name in globals() if name.startswith('__'))\n"
        "print(names, __file__, __spec__, __package__, __doc__, type(__loader__), sys.path[0], sys.argv)\n"
        "print(vars(sys.modules['__main__']) is globals())\n"
    )
    run("project/train.py", text)
    assert capsys.readouterr().out == plain("project/train.py").stdout


def test_the_block_under_the_guard_runs(capsys):
    run("train.py", "if __name__ == '__main__':\n    print('trained')\n")
    assert capsys.readouterr().out == "trained\n"


def test_a_script_imports_its_neighbours(capsys):
    write("project/neighbour.py", "name = 'next door'\n")
    run("project/train.py", "import sys, os\nimport neighbour\nprint(neighbour.name, os.path.basename(sys.path[0]))\n")
    assert capsys.readouterr().out == "next door project\n"
    del sys.modules["neighbour"]


def test_a_module_runs_with_its_relative_imports(capsys):
    write("package/__init__.py", "")
    write("package/parts.py", "name = 'a part'\n")
    write(
        "package/train.py", "import sys\nfrom .parts import name\nprint(__name__, name, sys.argv[1:], __spec__.name)\n"
    )
    assert run_script(Script(target="package.train", args=("-x",), is_module=True)) == 0
    assert capsys.readouterr().out == "__main__ a part ['-x'] package.train\n"
    for name in ("package", "package.parts"):
        del sys.modules[name]


def test_a_package_runs_its_main_module(capsys):
    write("program/__init__.py", "")
    write("program/__main__.py", "print('the main module')\n")
    assert run_script(Script(target="program", is_module=True)) == 0
    assert capsys.readouterr().out == "the main module\n"
    del sys.modules["program"]


def test_nothing_of_the_script_is_left_in_the_process():
    before = sys.argv[:], sys.path[:], sys.modules["__main__"]
    run("train.py", "import sys\nsys.argv.append('more')\nsys.path.append('/nowhere')\n")
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


def test_what_a_script_defines_can_be_pickled_while_it_runs():
    text = "import pickle\nclass Config: pass\nassert isinstance(pickle.loads(pickle.dumps(Config())), Config)\n"
    assert run("train.py", text) == 0


@pytest.mark.parametrize(
    ("statement", "code"),
    [("sys.exit()", 0), ("sys.exit(0)", 0), ("sys.exit(3)", 3), ("sys.exit(None)", 0), ("raise SystemExit(4)", 4),
     ("sys.exit('no data')", 1), ("sys.exit(True)", 1), ("sys.exit((1, 2))", 1), ("pass", 0)],
)  # fmt: skip
def test_the_exit_code_is_that_of_python(statement, code, capsys):
    assert run("train.py", f"import sys\n{statement}\n") == code
    expected = plain("train.py")
    assert (expected.returncode, expected.stderr) == (code, capsys.readouterr().err)


RAISING = {
    "plain": "def inner():\n    raise ValueError('a bad batch')\n\ninner()\n",
    "chained": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('x') from error\n",
    "during another": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    {}['x']\n",
    "in a library": "import json\njson.loads('{')\n",
    "missing module": "import no_such_module_anywhere\n",
    "missing module that begins like the script": "import tra\n",
    "syntax": "def f(:\n    pass\n",
    "syntax in a neighbour": "import broken\n",
    "a group": "raise ExceptionGroup('several', [ValueError(1), TypeError(2)])\n",
    "with a note": "error = ValueError('a')\nerror.add_note('look here')\nraise error\n",
}


@pytest.mark.parametrize("kind", RAISING)
def test_an_exception_is_printed_as_python_prints_it(kind, capsys):
    write("broken.py", "x = = 1\n")
    assert run("train.py", RAISING[kind]) == 1
    expected = plain(str(Path("train.py")))
    shown = capsys.readouterr().err
    assert shown.replace(f'"{Path.cwd()}/', '"') == expected.stderr.replace(f'"{Path.cwd()}/', '"')


@pytest.mark.parametrize("call", ["torch.optim.SGD([x], 0.1).load_state_dict(None)", "Bad.apply(x).backward()"])
def test_an_exception_that_went_through_an_observed_call_is_printed_without_our_frames(call, capsys):
    text = (
        "import torch\n\nclass Bad(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        return x.sum()\n"
        "    @staticmethod\n    def backward(ctx, gradient):\n        raise ValueError('a bad batch')\n\n"
        "x = torch.ones(2, requires_grad=True)\ntry:\n"
        f"    {call}\nexcept Exception as error:\n    raise KeyError('x') from error\n"
    )
    with observing_loop(LoopFollower(sites=Sites())):
        assert run("train.py", text) == 1
    shown = capsys.readouterr().err
    assert call in shown
    assert "roundoff/" not in shown.replace(str(Path.cwd()), "")


def test_an_exception_in_a_module_is_printed_without_our_frames(capsys):
    write("package/__init__.py", "")
    write("package/train.py", "raise ValueError('a bad batch')\n")
    assert run_script(Script(target="package.train", is_module=True)) == 1
    shown = capsys.readouterr().err
    assert shown == (
        "Traceback (most recent call last):\n"
        f'  File "{Path.cwd()}/package/train.py", line 1, in <module>\n'
        "    raise ValueError('a bad batch')\n"
        "ValueError: a bad batch\n"
    )
    del sys.modules["package"]


def test_the_hook_that_a_script_sets_for_its_exceptions_is_called(capsys):
    text = "import sys\nsys.excepthook = lambda kind, error, trace: print('mine:', error)\n"
    before = sys.excepthook
    assert run("train.py", f"{text}raise ValueError('a bad batch')\n") == 1
    assert capsys.readouterr().out == "mine: a bad batch\n"
    sys.excepthook = before


def test_an_interrupt_is_printed_as_python_prints_it_and_ends_with_130(capsys):
    text = "def train():\n    raise KeyboardInterrupt\n\ntrain()\n"
    assert run("train.py", text) == 130
    assert capsys.readouterr().err == plain("train.py").stderr


def test_what_was_printed_comes_before_the_exception(capfd):
    run("train.py", "print('epoch 1')\nraise ValueError\n")
    assert capfd.readouterr().out == "epoch 1\n"


# -- scripts that cannot be started ------------------------------------------------------------------------------------


def test_says_that_a_script_does_not_exist():
    with pytest.raises(ScriptError) as error:
        Script(target="trian.py").check()
    assert str(error.value) == (
        "There is no script 'trian.py'.\n  why: it does not exist.\n  fix: name a Python file, or -m MODULE."
    )


def test_says_that_a_script_is_a_folder(tmp_path):
    with pytest.raises(ScriptError) as error:
        Script(target=str(tmp_path)).check()
    assert str(error.value) == (
        f"There is no script '{tmp_path}'.\n  why: it is a folder.\n  fix: name a Python file, or -m MODULE."
    )


@pytest.mark.parametrize("name", ["no_such_module", "no_such_module.train"])
def test_says_that_a_module_does_not_exist(name):
    with pytest.raises(ScriptError) as error:
        Script(target=name, is_module=True).check()
    assert str(error.value) == (
        f"There is no module '{name}'.\n  why: no 'no_such_module' is in the current folder or installed."
    )


def test_says_that_a_part_of_a_package_does_not_exist():
    write("package/__init__.py", "")
    script = Script(target="package.nothing", is_module=True)
    script.check()
    with pytest.raises(
        ScriptError, match=r"There is no module 'package.nothing'\.\n  why: No module named package.nothing"
    ):
        run_script(script)
    del sys.modules["package"]


def test_a_module_of_the_current_folder_exists():
    write("train.py", "")
    Script(target="train", is_module=True).check()
    Script(target="json.tool", is_module=True).check()


def test_the_first_word_is_the_script_and_the_rest_is_its_own():
    script = parse_script_command(["train.py", "--steps", "3", "-m"], is_module=False, example="")
    assert (script.target, script.args) == ("train.py", ("--steps", "3", "-m"))
    assert script.command == ("python", "train.py", "--steps", "3", "-m")
    assert parse_script_command(["package.train"], is_module=True, example="").command == (
        "python",
        "-m",
        "package.train",
    )


def test_says_that_no_script_was_named():
    with pytest.raises(ScriptError) as error:
        parse_script_command([], is_module=False, example="roundoff record --steps 0-3 train.py --lr 0.1")
    assert str(error.value) == (
        "No script was named.\n  fix: for example: roundoff record --steps 0-3 train.py --lr 0.1"
    )


# -- the name of the run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "name"),
    [
        (Script(target="a/b/train.py"), "train-1"),
        (Script(target="package.train", is_module=True), "train-1"),
        (Script(target="train"), "train-1"),
    ],
)
def test_a_run_is_named_after_its_script_and_numbered(script, name):
    assert folder_for(script, name=None, base=Path("runs")) == Path("runs") / name


def test_the_next_run_has_the_next_number():
    RunWriter.create("runs/train-1", RunInfo())
    assert folder_for(Script(target="train.py"), name=None, base=Path("runs")) == Path("runs/train-2")
    assert folder_for(Script(target="train.py"), name="mine", base=Path("runs")) == Path("runs/mine")


def test_another_rank_finds_the_folder_of_rank_0(monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    RunWriter.create("runs/train-1", RunInfo(launch="another"))
    RunWriter.create("runs/train-2", RunInfo(launch="here:1::0"))
    assert folder_for(Script(target="train.py"), name=None, base=Path("runs")) == Path("runs/train-2")


def test_another_rank_reports_that_no_folder_appeared(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("roundoff.record.script._MAX_WAIT_SECONDS", 0.1)
    with pytest.raises(RunFolderError, match="Rank 1 found no run folder of rank 0 in 'runs'"):
        folder_for(Script(target="train.py"), name=None, base=Path("runs"))

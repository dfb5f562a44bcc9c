"""What `roundoff plan` refuses, and with which words; its journeys are in tests/flows/test_plan.py."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from roundoff.cli import command_line


def refused(*words: str) -> str:
    """Return what the command says that could not look."""
    ended = CliRunner().invoke(command_line, ["plan", "--jobs", "0", *words])
    assert ended.exit_code == 2, ended.output
    return ended.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "No training is given.\n  fix: for example: roundoff plan --base half train"),
        (("no-such-thing",), "Cannot plan 'no-such-thing'."),
        (("no-such-thing",), "or: roundoff plan train.py --epochs 1"),
        (("crashes.py",), "TrialError: A trial of `crashes.py` failed."),
        (("--base", "fp33", "train"), "No recipe 'fp33'"),
        (("--base", "fp32", "train"), "A plan cannot start from recipe 'fp32'"),
        (("--target", "accuracy=1%", "train"), "Invalid --target 'accuracy=1%'"),
        (("--bits", "20", "--memory", "1MB", "train"), "2 are given"),
        (("--formats", "fp17", "train"), "No format 'fp17'"),
        (("-o", "planned", "train"), "Invalid -o planned"),
        (("-o", "nowhere/planned.toml", "train"), "there is no folder 'nowhere'"),
        (("--activations", "20%", "--fixed", "8", "train"), "cannot be combined"),
        (("--activations", "much", "train"), "Invalid --activations much."),
        (("--activations", "500%", "train"), "a share of what saved activations take, 0% to 100%."),
        (("--activations", "10%", "script.py"), "The bits of saved activations cannot be planned for `script.py`."),
        (("--fixed", "8", "script.py"), "Fixed point cannot be planned for `script.py`."),
        (("--measure-step", "9", "script.py"), "Step 9 was not measured"),
        (("missing.py",), "There is no script 'missing.py'"),
        (("true",), "`true` cannot be measured"),
        (("--watch", "half", "true"), "`true` cannot be watched."),
        (("--watch", "half"), "No training is given."),
        (("--watch", "fp32", "train"), "Recipe 'fp32' has no margins to watch.\n  why: it computes in fp32."),
        (("--watch", "fixed", "train"), "its bits are set per tensor, not per layer."),
        (("--watch", "nowhere.toml", "script.py"), "nowhere.toml"),
        (("--watch", "half", "--every", "0", "script.py"), "--every"),
    ],
)
def test_invalid_options_are_errors(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("import torch\ntorch.nn.Linear(1, 1)(torch.ones(1)).sum().backward()\n")
    Path("crashes.py").write_text("raise ValueError('no data')\n")
    assert re.search(re.escape(message), refused(*words))

"""The pytest plugin, on tests as people write them; each runs in a pytest of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from roundoff.runs import Run
from tests.pages import blocks_of
from tests.watch.script_server import ScriptServer

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
IS_INSTALLED = any(point.name == "roundoff" for point in entry_points(group="pytest11"))
PLUGIN = () if IS_INSTALLED else ("-p", "roundoff.testing.plugin")  # installed before there was a plugin
WARNINGS = ("-W", "error", "-W", "ignore::pytest.PytestAssertRewriteWarning")  # an editable install causes that one

TRAINING = """
import pytest
import torch
from torch import nn


def train(*, lr=0.1, steps=25, poison=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    weight = torch.randn(8, 1)
    losses = []
    for step in range(steps):
        x = torch.randn(32, 8)
        optimizer.zero_grad()
        output = model(x)
        if step == poison:
            output = output / 0
        loss = nn.functional.mse_loss(output, x @ weight)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """How a pytest ended that ran tests of its own."""

    stdout: pytest.LineMatcher
    counts: dict[str, int]

    def assert_outcomes(self, **counts: int) -> None:
        assert self.counts == counts, str(self.stdout)


@pytest.fixture
def run_test(tmp_path: Path, server: ScriptServer) -> Callable[..., Inner]:
    """Return a function that runs a test file with a pytest of its own, in a process that has torch loaded."""

    def run(text: str, *arguments: str) -> Inner:
        (tmp_path / "inner.py").write_text("import sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))\n")
        (tmp_path / "test_mine.py").write_text(TRAINING + text)
        words = ["inner.py", "-p", "no:cacheprovider", *WARNINGS, *PLUGIN, *arguments, "test_mine.py"]
        ended = server.run(words, folder=tmp_path)
        assert ended.code in (0, 1), ended.stdout + ended.stderr
        lines = ended.stdout.splitlines()
        return Inner(stdout=pytest.LineMatcher(lines), counts=pytest.RunResult.parse_summary_nouns(lines))

    return run


# -- a training that must be healthy ---------------------------------------------------------------------------------

HEALTHY = """
def test_it_trains(roundoff_healthy):
    with roundoff_healthy() as watch:
        losses = train()
    assert losses[-1] < losses[0]
    assert watch.num_steps == 25
"""
POISONED = """
def test_it_trains(roundoff_healthy):
    with roundoff_healthy():
        train(poison=7)
"""


def test_a_healthy_training_passes_and_leaves_nothing(run_test, tmp_path: Path) -> None:
    run_test(HEALTHY, "--roundoff-artifacts", "kept").assert_outcomes(passed=1)
    assert list(tmp_path.glob("kept/*")) == []
    assert not (tmp_path / "runs").exists()


def test_a_training_that_breaks_fails_with_the_verdict(run_test) -> None:
    result = run_test(POISONED)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "domain-error   <loop> / aten.div#0   step 7, forward *test_mine.py:*",
            "  > * |     output = output / 0",
            "  fix *",
            "To keep the run and a page about it: pytest --roundoff-artifacts DIR",
        ]
    )
    assert "roundoff report" not in str(result.stdout)  # the run is gone
    assert "Traceback" not in str(result.stdout)


def test_a_failed_test_keeps_its_run_and_a_page(run_test, tmp_path: Path) -> None:
    result = run_test(POISONED, "--roundoff-artifacts", "kept")
    result.assert_outcomes(failed=1)
    (folder,) = tmp_path.glob("kept/*")
    assert folder.name == "test_mine.py-test_it_trains"
    result.stdout.fnmatch_lines(["  next   roundoff report *", "*runs and pages: *kept*test_it_trains"])
    run = Run.open(folder / "run-1")
    assert [finding.step for finding in run.findings() or ()][:1] == [7]
    assert "output / 0" in (folder / "run-1/report.html").read_text()


def test_a_test_that_fails_for_another_reason_keeps_its_run_too(run_test, tmp_path: Path) -> None:
    run_test(HEALTHY.replace("== 25", "== 26"), "--roundoff-artifacts", "kept").assert_outcomes(failed=1)
    assert [path.name for path in tmp_path.glob("kept/*/*")] == ["run-1"]


def test_a_block_without_a_training_fails(run_test) -> None:
    result = run_test("\ndef test_nothing(roundoff_healthy):\n    with roundoff_healthy():\n        pass\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Nothing was watched: no training step was seen in this process."])


def test_an_assertion_in_the_block_comes_with_the_verdict(run_test) -> None:
    result = run_test(POISONED.replace("train(poison=7)", "assert train(poison=7)[-1] < 1"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *assert nan < 1", "E *step 7, forward*"])


def test_a_test_may_train_twice(run_test, tmp_path: Path) -> None:
    text = """
def test_twice(roundoff_healthy):
    with roundoff_healthy():
        train()
    with roundoff_healthy():
        train(poison=3)
"""
    result = run_test(text, "--roundoff-artifacts", "kept")
    result.assert_outcomes(failed=1)
    assert sorted(path.name for path in tmp_path.glob("kept/*/*")) == ["run-1", "run-2"]


# -- ops that must be exact ------------------------------------------------------------------------------------------

EXACT = """
@pytest.mark.numerics(reference="fp64", max_ulps=1)
def test_attention():
    torch.manual_seed(0)
    q, k = torch.randn(2, 4, 16, requires_grad=True), torch.randn(2, 4, 16)
    (q @ k.transpose(1, 2)).softmax(-1).sum().backward()
"""
INEXACT = """
@torch.library.custom_op("mine::tanh", mutates_args=())
def tanh(x: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.float64:
        return torch.tanh(x)
    return x * (27 + x * x) / (27 + 9 * x * x)  # a kernel that is too simple


@pytest.mark.numerics(max_ulps=4)
def test_kernel():
    tanh(torch.linspace(-3, 3, 99) * 2)
"""


def test_exact_ops_pass(run_test) -> None:
    run_test(EXACT).assert_outcomes(passed=1)


def test_an_inexact_op_fails_with_its_name_place_and_error(run_test) -> None:
    result = run_test(INEXACT)
    result.assert_outcomes(failed=1)
    text = str(result.stdout)
    line = TRAINING.count("\n") + INEXACT[: INEXACT.index("tanh(torch.linspace")].count("\n") + 1
    assert re.search(r"1 of \d+ results of ops is further from fp64 than 4 ulp:", text)
    assert re.search(rf"[\d.e+]+ ulp of float32 +mine\.tanh#0 +<loop> +forward +test_mine\.py:{line}\b", text)


def test_only_the_chosen_ops_are_held_against_fp64(run_test) -> None:
    text = INEXACT.replace("max_ulps=4", "max_ulps=4, ops='aten.mul'")
    run_test(text).assert_outcomes(passed=1)


def test_a_test_without_ops_fails(run_test) -> None:
    result = run_test("\n@pytest.mark.numerics(max_ulps=1)\ndef test_nothing():\n    pass\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["No op of this test could be held against fp64."])


def test_a_failure_of_the_test_itself_goes_first(run_test) -> None:
    result = run_test(
        INEXACT.replace("    tanh(torch", "    assert not tanh(torch").replace("99) * 2)", "99) * 2).any()")
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *assert*"])
    result.stdout.no_fnmatch_line("*further from fp64*")


def test_wrong_arguments_are_an_error_before_the_test(run_test) -> None:
    for arguments, message in (
        ("", "missing 1 required keyword-only argument: 'max_ulps'"),
        ("max_ulp=1", "'max_ulp'"),
    ):
        result = run_test(EXACT.replace('reference="fp64", max_ulps=1', arguments))
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines([f"*@pytest.mark.numerics: *{message}*"])


def test_a_healthy_training_can_be_exact_too(run_test) -> None:
    text = HEALTHY.replace("\ndef", "\n@pytest.mark.numerics(max_ulps=2)\ndef")
    run_test(text).assert_outcomes(passed=1)


def test_a_failed_check_keeps_the_recording(run_test, tmp_path: Path) -> None:
    run_test(INEXACT, "--roundoff-artifacts", "kept").assert_outcomes(failed=1)
    assert (next(tmp_path.glob("kept/*")) / "run-1/report.html").exists()


# -- runs that must agree --------------------------------------------------------------------------------------------

SAME = """
from roundoff import recording
from roundoff.testing import assert_same_run


def test_same(tmp_path):
    for name, lr in (("reference", 0.1), ("candidate", {lr})):
        with recording(to=tmp_path / name, inputs=True):
            train(lr=lr, steps=2)
    assert_same_run(tmp_path / "reference", tmp_path / "candidate")
"""


def test_runs_that_agree_pass(run_test) -> None:
    run_test(SAME.format(lr=0.1)).assert_outcomes(passed=1)


def test_runs_that_differ_fail_with_the_comparison_and_keep_its_page(run_test, tmp_path: Path) -> None:
    result = run_test(SAME.format(lr=0.3), "--roundoff-artifacts", "kept")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *RunsDiffer: *"])
    (page,) = tmp_path.glob("kept/*/comparison.html")
    assert page.read_text().startswith("<!doctype html")


# -- with other plugins ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_workers_of_xdist_keep_runs_too(run_test, tmp_path: Path) -> None:
    run_test(
        POISONED + HEALTHY.replace("it_trains", "it_learns"), "-n", "1", "--roundoff-artifacts", "kept"
    ).assert_outcomes(passed=1, failed=1)
    assert [path.name for path in tmp_path.glob("kept/*/run-1/report.html")] == ["report.html"]


# -- where the plugin is not used ------------------------------------------------------------------------------------


def test_pytest_starts_without_torch_and_without_our_rooms(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "import sys\n\ndef test_mine():\n"
        "    heavy = ('torch', 'numpy', 'click', 'roundoff.watch', 'roundoff.runs', 'roundoff.report')\n"
        "    assert 'roundoff.testing.plugin' in sys.modules\n"
        "    assert [name for name in heavy if name in sys.modules] == []\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:hypothesispytest", "-p", "no:cacheprovider", *PLUGIN]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert answer.returncode == 0, answer.stdout


def test_the_plugin_is_an_entry_point_and_says_what_it_adds(pytester: pytest.Pytester) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"roundoff": "roundoff.testing.plugin"}
    assert "--roundoff-artifacts" in pytester.runpytest_inprocess("--help", *PLUGIN).stdout.str()
    assert "@pytest.mark.numerics(max_ulps" in pytester.runpytest_inprocess("--markers", *PLUGIN).stdout.str()
    assert "roundoff_healthy" in pytester.runpytest_inprocess("--fixtures", *PLUGIN).stdout.str()


def test_the_page_does_what_it_says(tmp_path: Path, server: ScriptServer) -> None:
    (block,) = [block.text for block in blocks_of((ROOT / "docs/testing.md").read_text()) if block.language == "python"]
    (command,) = [block.text for block in blocks_of((ROOT / "docs/testing.md").read_text()) if block.language == "sh"]
    (tmp_path / "test_training.py").write_text(block)
    (tmp_path / "inner.py").write_text("import sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))\n")
    ended = server.run(["inner.py", *WARNINGS, *PLUGIN, *command.split()[1:]], folder=tmp_path)
    assert ended.code == 0, ended.stdout
    assert "3 passed" in ended.stdout

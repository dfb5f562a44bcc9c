"""`roundoff check-device`: a healthy device is silent, and each planted fault is named, with a script that shows it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from roundoff.cli import command_line
from roundoff.record.device_check import CheckedOp, checking_device
from roundoff.record.event_selection import EventSelection
from tests.device.simulated_device import Execution, behaving, faulty
from tests.device.test_record import Attention, conv_net, train

MODELS = {"convolution": conv_net, "attention": Attention}


def check(model: str = "attention", **selection: Any) -> list[CheckedOp]:
    with checking_device(EventSelection.of(steps=0, **selection)) as checker:
        train("sim", MODELS[model])
    assert checker.steps == [0]
    return checker.ops


def reported(ops: list[CheckedOp]) -> list[CheckedOp]:
    return [op for op in ops if op.is_reported]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("execution", "fp64"), [("at once", True), ("when waited for", False)])
def test_a_healthy_device_is_silent(model: str, execution: Execution, fp64: bool) -> None:
    with behaving(execution=execution, fp64=fp64):
        ops = check(model)

    assert not reported(ops)
    assert {op.place.phase for op in ops} == {"forward", "backward", "optimizer"}
    assert {op.device for op in ops} == {"sim:0"}
    assert all(op.cpu_ulps is not None and max(op.max_ulps, op.cpu_ulps) < 4 for op in ops)


@pytest.mark.parametrize(
    ("model", "kernel", "op"),
    [
        ("convolution", "convolution", "convolution"),
        ("convolution", "convolution_backward", "convolution_backward"),
        ("convolution", "native_batch_norm_backward", "native_batch_norm_backward"),
        ("convolution", "_log_softmax", "_log_softmax"),
        ("attention", "addmm", "addmm"),
        ("attention", "_softmax_backward_data", "_softmax_backward_data"),
        ("attention", "native_batch_norm", "native_layer_norm"),  # layer norm is made of it on this device
        ("attention", "_foreach_addcdiv", "_foreach_addcdiv_"),
    ],
)
def test_an_op_that_is_one_percent_off_is_the_only_one_named(model: str, kernel: str, op: str) -> None:
    with faulty(kernel, factor=1.01):
        wrong = reported(check(model))

    assert {found.place.op for found in wrong} == {f"aten.{op}"}
    assert all(found.is_wrong and found.is_repeatable for found in wrong)


def test_a_wrong_channel_is_named() -> None:
    with faulty("convolution", factor=1.05, channel=3):
        (wrong,) = reported(check("convolution"))

    assert (wrong.channels, wrong.num_channels) == ((3,), 8)


def test_a_shape_that_is_wrong_is_distinguished_from_the_others() -> None:
    with faulty("addmm", factor=1.01, shape=(16, 10)):
        ops = check()

    (wrong,) = reported(ops)
    assert wrong.arguments.endswith("[16x10]")
    assert any(op.place.op == "aten.addmm" for op in ops if op is not wrong)


def test_an_op_that_varies_is_named() -> None:
    with faulty("addmm", factor=1 + 1e-7, varies=True):
        wrong = reported(check())

    assert {op.place.op for op in wrong} == {"aten.addmm"}
    assert not any(op.is_repeatable for op in wrong)


def test_the_training_is_untouched_until_its_step_is_checked() -> None:
    with checking_device(EventSelection.of(steps=1)):
        result = train("sim", num_steps=2)

    assert all(torch.equal(x, y) for x, y in zip(result, train("sim", num_steps=2), strict=True))


def test_an_op_that_cannot_be_checked_is_noted_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> bool:
        raise RuntimeError("no memory\nleft")

    monkeypatch.setattr("roundoff.record.device_check._HostJudge.repeats", fail)
    with checking_device(EventSelection.of(steps=0, ops="aten.addmm")) as checker:
        train("sim")
    assert checker.steps == [0]
    assert checker.not_judged == {"aten.addmm": "no memory"}


# -- the command -------------------------------------------------------------------------------------------------------

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to("{device}")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(16, 4).to("{device}")
for step in range(3):
    print("step", step)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


def run(tmp_path: Path, *options: str, device: str = "sim") -> Result:
    (tmp_path / "train.py").write_text(SCRIPT.format(device=device))
    return CliRunner().invoke(command_line, ["check-device", *options, str(tmp_path / "train.py")])


def test_the_command_stops_the_script_and_says_that_nothing_is_wrong(tmp_path: Path) -> None:
    result = run(tmp_path)

    assert result.exit_code == 0, result.output
    assert "nothing to report." in result.stdout
    assert "step 2" not in result.stdout


def test_the_command_reports_and_exports(tmp_path: Path) -> None:
    with faulty("addmm", factor=1.05, channel=1):
        result = run(tmp_path, "--export", str(tmp_path / "repros"), "--json")

    answer = json.loads(result.stdout.splitlines()[-1])
    assert result.exit_code == 1
    assert {op["op"] for op in answer["reported"]} == {"aten.addmm.default"}
    assert [op["wrong_channels"] for op in answer["reported"]] == [[1], [1]]
    # The script needs only torch; on a healthy device it finds nothing.
    for script in answer["scripts"]:
        done = subprocess.run([sys.executable, script, "cpu"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "largest error" in done.stdout
        assert _run_here(script) == 0
        with faulty("addmm", factor=1.05, channel=1):
            assert _run_here(script) == 1


def _run_here(script: str) -> int:
    """Run a script in this process, which has the device."""
    import runpy

    argv, sys.argv = sys.argv, [script]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as leaving:
        return int(leaving.code or 0)
    finally:
        sys.argv = argv
    return 0


@pytest.mark.parametrize(
    ("options", "device", "why"),
    [
        ((), "cpu", "ran on the CPU"),
        (("--steps", "7"), "sim", "ended before the chosen steps"),
        (("--ops", "nonsense"), "sim", "matched nothing"),
        (("--steps", "all"), "sim", "Not every step"),
    ],
)
def test_what_cannot_be_checked_is_said(tmp_path: Path, options: tuple[str, ...], device: str, why: str) -> None:
    result = run(tmp_path, *options, device=device)

    assert result.exit_code == 2
    assert why in result.stderr


def test_a_script_that_fails_is_said(tmp_path: Path) -> None:
    result = run(tmp_path, device="nothing")

    assert result.exit_code == 2
    assert "exited with 1" in result.stderr

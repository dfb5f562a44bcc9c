"""`roundoff params` lists what a checkpoint or a model is made of, and marks what cannot be right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

from roundoff.cli import command_line

SAMPLES = Path(__file__).parents[1] / "checkpoints" / "samples"


def invoke(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(command_line, ["params", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_totals_come_first_and_then_a_line_for_each_tensor():
    result = invoke(SAMPLES / "ms_opt.ckpt")
    assert result.exit_code == 0
    assert result.output.split("\n", 1)[1] == (
        "  parameter  9 tensors  2,708 elements  10.8 kB\n"
        "  optimizer  9 tensors  2,708 elements  10.8 kB\n"
        "  other      3 tensors      3 elements     12 B\n"
        "\n"
        "name                 kind       dtype    shape    elements\n"
        "global_step          other      int32    1               1\n"
        "learning_rate        other      float32  scalar          1\n"
        "conv.weight          parameter  float32  4x1x3x3        36\n"
        "conv.bias            parameter  float32  4               4\n"
        "bn.gamma             parameter  float32  4               4\n"
        "bn.beta              parameter  float32  4               4\n"
        "fc.weight            parameter  float32  10x256      2,560\n"
        "fc.bias              parameter  float32  10             10\n"
        "ln.gamma             parameter  float32  10             10\n"
        "ln.beta              parameter  float32  10             10\n"
        "emb.embedding_table  parameter  float32  7x10           70\n"
        "momentum             other      float32  scalar          1\n"
        "9 of the optimizer: --optimizer lists them\n"
    )


def test_the_optimizer_is_listed_on_request():
    assert "moments.fc.weight" not in invoke(SAMPLES / "ms_opt.ckpt").output
    assert "moments.fc.weight" in invoke(SAMPLES / "ms_opt.ckpt", "--optimizer").output


def test_nan_and_infinity_are_named_and_end_with_1(tmp_path: Path):
    weight = torch.ones(2, 3)
    weight[0, 1], weight[1, 1], weight[1, 2] = torch.nan, torch.inf, -torch.inf
    torch.save({"fc.weight": weight, "fc.bias": torch.ones(2)}, tmp_path / "bad.pt")
    result = invoke(tmp_path / "bad.pt")
    assert result.exit_code == 1
    assert "  not finite fc.weight: 1 NaN, 2 inf\n" in result.output
    assert "fc.weight  parameter  float32  2x3           6  1 NaN, 2 inf\n" in result.output


def test_masks_and_best_losses_may_be_infinite(tmp_path: Path):
    mask = torch.full((3, 3), -torch.inf).triu(1)
    saved = {"model": {"w": torch.ones(2), "attn_mask": mask}, "callbacks": {"best": torch.tensor(torch.inf)}}
    torch.save(saved, tmp_path / "a.pt")
    result = invoke(tmp_path / "a.pt")
    assert (result.exit_code, "not finite" in result.output, "3 inf" in result.output) == (0, False, True)
    saved["model"]["attn_mask"] = -mask
    torch.save(saved, tmp_path / "a.pt")
    assert invoke(tmp_path / "a.pt").exit_code == 1


def test_weights_that_are_all_zero_are_marked_and_no_error(tmp_path: Path):
    np.savez(tmp_path / "a.npz", **{"fc.weight": np.zeros((2, 3)), "bn.running_mean": np.zeros(3)})
    result = invoke(tmp_path / "a.npz")
    assert result.exit_code == 0
    assert "  all zero   fc.weight\n" in result.output
    assert result.output.count("all zero") == 2


def test_values_are_shown_on_request_and_are_right(tmp_path: Path):
    torch.save({"w": torch.tensor([1.0, 2.0, 6.0])}, tmp_path / "a.pt")
    line = invoke(tmp_path / "a.pt", "--values").output.splitlines()[-1]
    assert line.split() == ["w", "parameter", "float32", "3", "3", "2.16", "1", "6"]


def test_json_holds_everything(tmp_path: Path):
    torch.save({"model": {"w": torch.tensor([1.0, torch.nan])}, "epoch": 3}, tmp_path / "a.pt")
    result = invoke(tmp_path / "a.pt", "--json")
    assert result.exit_code == 1
    reported = json.loads(result.output)
    assert (reported["format"], reported["num_elements"], reported["settings"]) == ("torch-zip", 2, {"epoch": 3})
    assert reported["tensors"] == [
        {
            "name": "w",
            "shape": [2],
            "dtype": "float32",
            "kind": "parameter",
            "num_bytes": 8,
            "num_nan": 1,
            "num_inf": 0,
            "num_negative_inf": 0,
            "is_zero": False,
            "mean": 1.0,
            "std": 0.0,
            "min": 1.0,
            "max": 1.0,
            "num_elements": 2,
        }
    ]


def test_only_keeps_names_like_a_pattern_and_refuses_one_that_matches_nothing():
    output = invoke(SAMPLES / "ms_tiny.ckpt", "--only", "bn.*").output
    assert "4 tensors" in output.splitlines()[0]
    assert "fc.weight" not in output
    result = invoke(SAMPLES / "ms_tiny.ckpt", "--only", "bm.*")
    assert result.exit_code == 2
    assert "ms_tiny.ckpt' is like 'bm.*'.\n  why: it has conv.weight, conv.bias, bn.moving_mean" in result.output


def test_a_model_is_built_and_tells_trainable_from_frozen(tmp_path: Path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))\n"
        "    model[0].weight.requires_grad_(False)\n"
        "    return model\n"
    )
    result = invoke(f"{tmp_path / 'net.py'}:build")
    assert result.exit_code == 0
    kinds = {line.split()[0]: line.split()[1] for line in result.output.split("\n\n")[1].splitlines()[1:]}
    assert (kinds["0.weight"], kinds["0.bias"], kinds["1.running_mean"]) == ("frozen", "trainable", "buffer")
    assert "  trainable  3 tensors  12 elements  48 B\n" in result.output


def test_a_model_in_an_installed_package_is_found_by_its_module():
    result = invoke("torch.nn:Identity")
    assert (result.exit_code, result.output) == (0, "torch.nn:Identity  model, 0 tensors\n")


@pytest.mark.parametrize(
    ("source", "reported"),
    [
        ("absent.pt", "CheckpointError: There is no checkpoint 'absent.pt'."),
        ("absent.py:build", "UsageError: There is no builder 'absent.py:build'."),
        ("torch.nn:no_such_thing", "UsageError: 'torch.nn' has no function 'no_such_thing'."),
        (str(Path(__file__).parents[2] / "pyproject.toml"), "cannot be read as a checkpoint"),
        (str(Path(__file__)), "is a script, not a checkpoint"),
    ],
)
def test_what_cannot_be_looked_at_ends_with_2(source: str, reported: str):
    result = invoke(source)
    assert result.exit_code == 2
    assert reported in result.output


@pytest.mark.parametrize("options", [(), ("--values",), ("--optimizer", "--values")])
@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.iterdir() if path.is_file()))
def test_fits_a_hundred_columns(name: str, options: tuple[str, ...]):
    assert max(map(len, invoke(SAMPLES / name, *options).output.splitlines()[1:])) <= 100


def test_long_names_are_cut_in_the_middle(tmp_path: Path):
    torch.save({f"{'encoder.' * 20}{leaf}": torch.ones(1) for leaf in ("weight", "bias")}, tmp_path / "a.pt")
    output = invoke(tmp_path / "a.pt").output
    assert max(map(len, output.splitlines()[1:])) <= 100
    assert "…" in output
    assert "encoder.bias" in output


def test_writes_plain_text_into_a_pipe():
    command = [sys.executable, "-m", "roundoff", "params", str(SAMPLES / "flax.msgpack")]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.splitlines()[-1].split() == ["dense.bias", "parameter", "bfloat16", "2", "2", "all", "zero"]


def test_a_whole_model_is_listed_like_its_state(tmp_path: Path):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    torch.save(model, tmp_path / "model.pt")
    torch.save(model.state_dict(), tmp_path / "state.pt")
    whole, state = (invoke(tmp_path / name).output.split("\n", 1)[1] for name in ("model.pt", "state.pt"))
    assert whole == state


def test_a_run_is_distinguished_from_a_checkpoint(tmp_path: Path):
    (tmp_path / "run.json").write_text("{}")
    result = invoke(tmp_path)
    assert result.exit_code == 2
    assert result.output == (
        f"UsageError: '{tmp_path}' is a run, not a checkpoint.\n"
        "  why: a run contains measurements of a training, not its weights.\n"
        f"  fix: roundoff diagnose {tmp_path}, or roundoff params with the checkpoint that the training wrote.\n"
    )


def test_a_script_needs_the_function_that_builds_the_model(tmp_path: Path):
    script = tmp_path / "mlp.py"
    script.write_text("from torch import nn\n\ndef build():\n    return nn.Linear(2, 3)\n")
    result = invoke(script)
    assert result.exit_code == 2
    assert f"'{script}' is a script, not a checkpoint." in result.output
    assert f"fix: roundoff params {script}:FUNCTION" in result.output
    assert invoke(f"{script}:build").exit_code == 0

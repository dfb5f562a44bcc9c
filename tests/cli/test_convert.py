from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.cli import command_line


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command_line, ["convert", *map(str, arguments)])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    torch.save({"bn.weight": torch.ones(3), "bn.running_mean": torch.zeros(3)}, tmp_path / "a.pth")
    return tmp_path / "a.pth"


def test_writes_by_the_suffix_and_says_what_to_type_next(source: Path):
    target = source.with_name("b.ckpt")
    result = run(source, target)
    assert result.exit_code == 0
    assert result.output == (
        f"Wrote 2 tensors to {target} (mindspore), read back and equal to those of {source}.\n"
        f"  next   roundoff compare {source} {target}\n"
    )
    assert list(read_checkpoint(target).entries) == ["bn.gamma", "bn.moving_mean"]


def test_an_option_says_the_format_where_the_suffix_does_not(source: Path):
    target = source.with_name("weights")
    assert run(source, target).exit_code == 2
    assert run(source, target, "--to", "safetensors").exit_code == 0
    assert read_checkpoint(target).format == "safetensors"


def test_replaces_only_by_force(source: Path):
    before = source.read_bytes()
    result = run(source, source)
    assert result.exit_code == 2
    assert "already exists" in result.output
    assert source.read_bytes() == before
    assert run(source, source.with_name("b.npz"), "--force").exit_code == 0
    assert run(source, source.with_name("b.npz"), "--force").exit_code == 0


def test_takes_names_and_dtypes_from_another_checkpoint_and_a_map(source: Path, tmp_path: Path):
    like = {"norm.scale": torch.zeros(3).half(), "norm.average": torch.zeros(3)}
    torch.save(like, tmp_path / "like.pth")
    (tmp_path / "names.txt").write_text("bn.weight = norm.scale\nbn.running_mean = norm.average\n")
    result = run(source, tmp_path / "b.pth", "--like", tmp_path / "like.pth", "--map", tmp_path / "names.txt")
    assert result.exit_code == 0, result.output
    found = torch.load(tmp_path / "b.pth", weights_only=True)
    assert {name: value.dtype for name, value in found.items()} == {
        "norm.scale": torch.float16,
        "norm.average": torch.float32,
    }


def test_an_empty_checkpoint_is_not_converted(tmp_path: Path):
    torch.save({}, tmp_path / "empty.pth")
    result = run(tmp_path / "empty.pth", tmp_path / "b.npz")
    assert result.exit_code == 2
    assert result.output.startswith(f"CheckpointError: '{tmp_path / 'empty.pth'}' has no tensors.\n")
    assert not (tmp_path / "b.npz").exists()

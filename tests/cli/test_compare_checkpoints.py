from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from roundoff.cli import command_line


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command_line, ["compare", *map(str, arguments)])


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(4, 6, generator=generator), torch.randn(4, generator=generator)
    torch.save({"fc.weight": weight, "fc.bias": bias}, tmp_path / "a.pth")
    np.savez(tmp_path / "b.npz", **{"dense.kernel": weight.numpy().T, "dense.bias": bias.numpy()})
    return tmp_path / "a.pth", tmp_path / "b.npz"


def test_two_frameworks_agree_and_the_command_ends_clean(files: tuple[Path, Path]):
    result = run(*files)
    assert result.exit_code == 0
    assert result.output == (
        "All 2 tensors are equal, 1 of them after the layouts' change of axes.\n  torch-zip against npz\n"
    )


def test_a_difference_ends_with_1_and_exit_zero_forgives_it(files: tuple[Path, Path], tmp_path: Path):
    np.savez(tmp_path / "b.npz", **{"dense.kernel": np.ones((6, 4), np.float32), "dense.bias": np.ones(4, np.float32)})
    assert run(*files).exit_code == 1
    assert "was not loaded: every value is 1" in run(*files).output
    assert run(*files, "--exit-zero").exit_code == 0


def test_everything_is_in_the_table_the_csv_the_page_and_the_json(files: tuple[Path, Path], tmp_path: Path):
    result = run(*files, "--table", "--csv", tmp_path / "t.csv", "--html", tmp_path / "t.html")
    assert "fc.weight" in result.output
    assert "dense.kernel" in result.output
    with (tmp_path / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["kind"], row["reference"], row["candidate"]) for row in rows] == [
        ("equal", "fc.weight", "dense.kernel"),
        ("equal", "fc.bias", "dense.bias"),
    ]
    assert "dense.kernel" in (tmp_path / "t.html").read_text()
    reported = json.loads(run(*files, "--json").output)
    assert reported["pairs"][0]["axes"] == [1, 0]
    assert reported["differs"] is False


def test_a_map_decides(files: tuple[Path, Path], tmp_path: Path):
    (tmp_path / "names.txt").write_text("# by hand\nfc.weight = dense.kernel  # as Keras has it\n")
    reported = json.loads(run(*files, "--map", tmp_path / "names.txt", "--json").output)
    assert [each["paired_by"] for each in reported["pairs"]] == ["map", "shape"]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("fc.weight", "Line 1 of the map"),
        ("\nfc.weight = dense.kernel\nfc.weight = dense.bias", "Line 3 of the map"),
        ("fc.wait = dense.kernel", "'fc.wait', which the reference does not have"),
    ],
)
def test_a_map_that_says_nothing_is_an_error(files: tuple[Path, Path], tmp_path: Path, text: str, reported: str):
    (tmp_path / "names.txt").write_text(text)
    result = run(*files, "--map", tmp_path / "names.txt")
    assert result.exit_code == 2
    assert reported in result.output


@pytest.mark.parametrize(
    ("option", "value", "kinds"),
    [
        ("--step", "3", "runs"),
        ("--rank", "0", "runs, steps and runs of a resumed training"),
        ("--pattern", "x", "curves"),
        ("--column", "x", "curves"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(files: tuple[Path, Path], option: str, value: str, kinds: str):
    result = run(*files, option, value)
    assert result.exit_code == 2
    assert result.output == (
        f"UsageError: {option} {value} does not apply to two checkpoints.\n"
        f"  why: it applies to {kinds}.\n"
        f"  fix: leave {option} out.\n"
    )

"""`roundoff compare` on two folders of tensors: what is printed, written, and the way it ends."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from roundoff import save_tensor
from roundoff.cli import command_line

X = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
WRONG = torch.cat([X[:, :7], 1.05 * X[:, 7:8], X[:, 8:]], dim=1)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, names, second in (
        ("ref", ("conv", "fc"), X),
        ("cand", ("conv", "fc"), WRONG),
        ("same", ("conv", "fc"), X),
        ("ported", ("Conv2d", "Dense"), X),
    ):
        save_tensor(names[0], X + 1, to=folder)
        save_tensor(names[1], second, to=folder)


def compare(*arguments: str) -> Result:
    result = CliRunner().invoke(command_line, ["compare", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_says_which_tensor_differs_first_and_ends_with_1():
    result = compare("ref", "cand")
    assert result.exit_code == 1
    assert result.output.startswith("00001-fc is the first that differs: relative error 0.0")
    assert "channel 7 of 32" in result.output.replace("\n", " ")


def test_ends_with_0_where_nothing_differs_or_with_exit_zero():
    result = compare("ref", "same")
    assert (result.exit_code, result.output) == (0, "All 2 pairs agree bit for bit.\n")
    assert compare("ref", "cand", "--exit-zero").exit_code == 0


def test_a_map_says_which_is_which():
    Path("names.txt").write_text("conv = Conv2d\nfc = Dense\n")
    assert "on order and shape alone" in compare("ref", "ported").output
    assert "on order and shape alone" not in compare("ref", "ported", "--map", "names.txt").output


def test_prints_and_writes_a_table_of_every_pair():
    result = compare("ref", "cand", "--table", "--csv", "table.csv")
    header, first, second = result.output.splitlines()[-3:]
    assert header.split()[:3] == ["verdict", "reference", "candidate"]
    assert first.split()[:3] == ["equal", "00000-conv", "same"]
    assert second.split()[:3] == ["different", "00001-fc", "same"]
    with Path("table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["verdict"] for row in rows] == ["equal", "different"]
    assert (rows[1]["channel"], rows[1]["shape"]) == ("7", "8x32")


def test_answers_in_json_and_writes_a_page():
    result = compare("ref", "cand", "--json", "--html", "page.html")
    found = json.loads(result.output)
    assert (found["first"], found["pairs"][1]["channel"]) == ("00001-fc", 7)
    assert "00001-fc is the first that differs" in Path("page.html").read_text()


def test_single_files_are_compared_too():
    result = compare("ref/00001-fc.npy", "cand/00001-fc.npy")
    assert result.exit_code == 1
    assert result.output.startswith("00001-fc is the first that differs")


def test_a_file_that_cannot_be_written_ends_with_2():
    result = compare("ref", "cand", "--csv", "no/such/table.csv")
    assert result.exit_code == 2
    assert "'no/such/table.csv' cannot be written." in result.output


def test_a_broken_file_ends_with_2_and_is_named():
    Path("cand/00001-fc.npy").write_bytes(b"\x93NUMPY")
    result = compare("ref", "cand")
    assert result.exit_code == 2
    assert "'cand/00001-fc.npy' cannot be read" in result.output

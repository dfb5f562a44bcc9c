"""Tables of log-probabilities: written in one line, read from three kinds of files, refused with a reason."""

import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from roundoff.compare.logprobs.logprob_comparison import compare_logprobs
from roundoff.compare.logprobs.logprob_files import read_logprobs
from roundoff.compare.logprobs.save_logprobs import save_logprobs
from roundoff.errors import CompareError, RoundoffError

SUFFIXES = (".parquet", ".jsonl", ".npz")


def rows(path: Path, content: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return path


GOOD = [{"sample": "a", "position": n, "token": n + 5, "logprob": -0.5 * n} for n in range(4)]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_what_is_saved_is_read_again(tmp_path: Path, suffix: str, dtype: torch.dtype):
    tokens, logprobs = torch.randint(0, 9, (3, 5)), -torch.rand(3, 5).to(dtype)
    mask = torch.ones(3, 5)
    mask[1, :2] = 0
    path = save_logprobs(
        tmp_path / f"t{suffix}", tokens, logprobs.requires_grad_(), sample=["x", "y", "z"], mask=mask, version=7,
        padding=[0, 2, 0], routing=torch.randint(0, 4, (3, 5, 2, 2)), dtype=dtype, head_dtype="float32", layers=2,
    )  # fmt: skip
    table = read_logprobs(path)
    kept = mask.bool()
    assert torch.equal(torch.tensor(table.tokens).long(), tokens[kept])
    assert torch.equal(torch.tensor(np.asarray(table.logprobs, np.float64)), logprobs.detach()[kept].double())
    assert [table.sample_name(row) for row in (0, 5, 8)] == ["x", "y", "z"]
    assert table.positions.tolist() == [*range(5), *range(3), *range(5)]
    assert (table.facts.dtype, table.facts.head_dtype, table.facts.layers) == (str(dtype)[6:], "float32", 2)
    assert set(table.version.tolist()) == {7}
    assert table.padding.tolist() == [0] * 5 + [2] * 3 + [0] * 5
    assert table.routing.shape == (13, 4)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_every_call_appends(tmp_path: Path, suffix: str):
    for step in range(3):
        path = save_logprobs(tmp_path / f"t{suffix}", [1, 2], [-1.0, -2.0], sample=step)
    table = read_logprobs(path)
    assert table.samples.tolist() == [0, 0, 1, 1, 2, 2]


def test_an_npz_file_does_not_grow(tmp_path: Path):
    save_logprobs(tmp_path / "t.npz", [1], [-1.0], sample=0)
    with pytest.raises(CompareError, match="cannot grow"):
        save_logprobs(tmp_path / "t.npz", [1], [-1.0], sample=1)


def test_shapes_that_do_not_fit_are_refused(tmp_path: Path):
    with pytest.raises(CompareError, match=r"'logprobs' is of shape \[1\]"):
        save_logprobs(tmp_path / "t.npz", [1, 2], [-1.0], sample=0)
    with pytest.raises(CompareError, match=r"'sample' is of shape \[1\]"):
        save_logprobs(tmp_path / "t.npz", [[1], [2]], [[-1.0], [-1.0]], sample=0)


def test_all_kinds_of_files_give_the_same_comparison(tmp_path: Path):
    tokens, first = torch.randint(0, 99, (6, 40)), -torch.rand(6, 40)
    second = first + 0.01 * torch.randn(6, 40).clamp(max=0)
    for suffix in SUFFIXES:
        save_logprobs(tmp_path / f"a{suffix}", tokens, first, sample=range(6))
        save_logprobs(tmp_path / f"b{suffix}", tokens, second, sample=range(6))
    found = [
        compare_logprobs(read_logprobs(tmp_path / f"a{one}"), read_logprobs(tmp_path / f"b{two}")).statistics
        for one, two in zip(SUFFIXES, (*SUFFIXES[1:], SUFFIXES[0]), strict=True)
    ]
    assert found[0].num_tokens == 240
    assert found[0] == found[1] == found[2]


def test_rows_in_another_order_and_tokens_that_one_side_lacks_are_paired(tmp_path: Path):
    a = rows(tmp_path / "a.jsonl", GOOD)
    b = rows(tmp_path / "b.jsonl", [*GOOD[:0:-1], {**GOOD[0], "position": 9}])
    found = compare_logprobs(read_logprobs(a), read_logprobs(b))
    assert (found.num_tokens, found.num_only_reference, found.num_only_candidate) == (3, 1, 1)
    assert found.statistics.max_abs == 0
    assert not found.differs


def test_lists_for_each_sample_and_nulls_are_read(tmp_path: Path):
    line = {"id": "a", "token_ids": [5, 6, 7], "logprobs": [None, -1.0, -2.0], "position": 4, "version": 2}
    table = read_logprobs(rows(tmp_path / "a.jsonl", [line]))
    assert table.positions.tolist() == [5, 6]
    assert table.version.tolist() == [2, 2]


def test_arrays_of_samples_by_tokens_are_read(tmp_path: Path):
    np.savez(tmp_path / "a.npz", tokens=np.ones((2, 3), int), logprobs=-np.ones((2, 3)), mask=[[1, 1, 0], [1, 1, 1]])
    assert read_logprobs(tmp_path / "a.npz").samples.tolist() == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("compression", ["zstd", "snappy"])
def test_tables_of_pyarrow_are_read(tmp_path: Path, compression: str):
    columns = {name: [row[name] for row in GOOD] for name in GOOD[0]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", compression=compression)
    lists = {"sample": ["a"], "tokens": [columns["token"]], "logprobs": [columns["logprob"]]}
    pq.write_table(pa.table(lists), tmp_path / "b.parquet")
    found = compare_logprobs(read_logprobs(tmp_path / "a.parquet"), read_logprobs(tmp_path / "b.parquet"))
    assert found.num_tokens == 4
    assert found.statistics.max_abs == 0


def test_a_table_that_needs_pyarrow_says_so_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    columns = {name: [row[name] for row in GOOD] for name in GOOD[0]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", compression="snappy")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CompareError, match="fix: pip install pyarrow"):
        read_logprobs(tmp_path / "a.parquet")


def lacks(name: str) -> list[dict]:
    return [{key: value for key, value in row.items() if key != name} for row in GOOD]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lacks("logprob"), "has no column 'logprob'"),
        (lacks("token"), "has no column 'token'"),
        (lacks("sample"), "has no column 'sample'"),
        ([], "holds no token"),
        ([*GOOD, {**GOOD[0], "position": 8, "logprob": float("nan")}], "1 log-probability that is NaN"),
        ([*GOOD, {**GOOD[0], "position": 8, "logprob": 1.5}], "log-probabilities above 0"),
        ([*GOOD, {"sample": "a"}], "not every line has"),
        ([{"sample": "a", "token": [1, 2], "logprob": [-1.0]}], "'logprob' of line 1 does not have 2 entries"),
        ([{**GOOD[0], "token": "the"}], "Column 'token' of '.*' holds no integers"),
        ([{**GOOD[0], "position": -1}], "positions below 0"),
    ],
)
def test_a_wrong_table_is_refused_with_the_reason(tmp_path: Path, content: list[dict], message: str):
    with pytest.raises(CompareError, match=message):
        read_logprobs(rows(tmp_path / "a.jsonl", content))


def test_keys_that_occur_twice_or_in_one_table_only_are_refused(tmp_path: Path):
    good = read_logprobs(rows(tmp_path / "a.jsonl", GOOD))
    twice = read_logprobs(rows(tmp_path / "b.jsonl", [*GOOD, GOOD[2]]))
    other = read_logprobs(rows(tmp_path / "c.jsonl", [{**row, "sample": "b"} for row in GOOD]))
    with pytest.raises(CompareError, match=r"has 1 token more than once\.\n  why: the first is sample a, position 2"):
        compare_logprobs(good, twice)
    with pytest.raises(CompareError, match="have no token in common"):
        compare_logprobs(good, other)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_truncated_file_is_refused(tmp_path: Path, suffix: str):
    path = save_logprobs(tmp_path / f"t{suffix}", list(range(1000)), [-1.0] * 1000, sample=0)
    file = next(path.glob("*.parquet")) if path.is_dir() else path
    content = file.read_bytes()
    for size in (len(content) - 3, len(content) // 2, 5, 0):
        file.write_bytes(content[:size])
        with pytest.raises(RoundoffError):
            read_logprobs(path)


def test_a_file_that_claims_far_more_than_it_has_takes_no_memory(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
        archive.writestr("token.npy", header.ljust(127) + b"\n" + bytes(1000))
        archive.writestr("logprob.npy", b"x")
    with pytest.raises(CompareError, match="cannot be read"):
        read_logprobs(tmp_path / "a.npz")
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("token.npy", bytes(2**29))
    with pytest.raises(CompareError, match="far more than its size"):
        read_logprobs(tmp_path / "b.npz")


def test_what_is_no_table_is_refused(tmp_path: Path):
    with pytest.raises(CompareError, match="There is no"):
        read_logprobs(tmp_path / "a.npz")
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(CompareError, match="is no table of log-probabilities"):
        read_logprobs(tmp_path / "a.csv")

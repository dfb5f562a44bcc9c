"""Tables in JSON lines are the same, and refused in the same words, with the compiled loop and without."""

from __future__ import annotations

import json
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roundoff.compare.logprobs import logprob_lines
from roundoff.compare.logprobs.logprob_files import read_logprobs
from roundoff.compare.logprobs.logprob_table import LogprobTable
from roundoff.errors import RoundoffError
from roundoff.kernels.json_lines import can_scan_lines

pytestmark = pytest.mark.skipif(not can_scan_lines(), reason="the compiled kernels are not built")

CHANCE = random.Random(0)


def token_lines(**more: Any) -> list[dict]:
    return [
        {"sample": f"s{n // 7}", "position": n % 7, "token": n, "logprob": -CHANCE.random() * (n % 3), **more}
        for n in range(50)
    ]


def sample_lines(**more: Any) -> list[dict]:
    return [
        {"id": n, "token_ids": list(range(size)), "logprobs": [-CHANCE.random() for _ in range(size)], **more}
        for n, size in enumerate([3, 4, 1, 0, 5, 5, 2, 9])
    ]


def with_lists(**values: Any) -> list[dict]:
    return [line | {name: [each] * len(line["token_ids"]) for name, each in values.items()} for line in sample_lines()]


TABLES = {
    "tokens": token_lines(),
    "tokens with more": token_lines(
        version=3, text='a "b" é', top_tokens=[1, 2], top_logprobs=[-1.0, -2.5], other={"a": [None]}
    ),
    "tokens by number": [line | {"sample": 5 + n // 9, "position": n} for n, line in enumerate(token_lines())],
    "tokens without positions": [{k: v for k, v in line.items() if k != "position"} for line in token_lines()],
    "a null": [line | ({"logprob": None} if n % 5 == 0 else {}) for n, line in enumerate(token_lines())],
    "whole numbers too": [line | ({"logprob": -1} if n % 5 == 0 else {}) for n, line in enumerate(token_lines())],
    "samples": sample_lines(),
    "samples with one version": sample_lines(version=7, batch_size=4),
    "samples that begin later": sample_lines(position=11),
    "samples without a name": [{k: v for k, v in line.items() if k != "id"} for line in sample_lines()],
    "samples with lists": with_lists(mask=True, routing=[[1, 2], [3, 4]], top_tokens=[1, 2], version=2),
    "nulls": [line | {"logprobs": [None, *line["logprobs"]][: len(line["logprobs"])]} for line in sample_lines()],
    "facts between": [x for line in sample_lines() for x in ({"facts": {"dtype": "bfloat16"}}, line)],
    "names and numbers": [line | ({"id": "x"} if line["id"] == 2 else {}) for line in sample_lines()],
    "another order": [dict(reversed(line.items())) if n % 3 else line for n, line in enumerate(token_lines())],
    "samples and tokens": [*sample_lines(), {"id": 99, "token_ids": 1, "logprobs": -1.0, "position": 0}],
    "lists of several sizes": [line | {"top_tokens": [1] * (n % 2 + 1)} for n, line in enumerate(token_lines())],
    "one line has less": [*token_lines(), {"sample": "a"}],
    "one line has more": [*token_lines(), {**token_lines()[0], "version": 1}],
    "a huge number": [*token_lines(), {**token_lines()[0], "token": 2**70}],
    "a large number": [*token_lines(), {**token_lines()[0], "token": 2**40, "position": 99}],
    "no number": [*token_lines(), {**token_lines()[0], "logprob": "x"}],
    "minus infinity": [*token_lines(), {**token_lines()[0], "position": 99, "logprob": float("-inf")}],
}  # fmt: skip


def answer(path: Path, monkeypatch: pytest.MonkeyPatch, *, compiled: bool) -> LogprobTable | str:
    with monkeypatch.context() as patched:
        if not compiled:
            patched.setattr(logprob_lines, "can_scan_lines", lambda: False)
        try:
            return read_logprobs(path)
        except RoundoffError as error:
            return str(error)


def assert_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> LogprobTable | str:
    ours, plain = (answer(path, monkeypatch, compiled=compiled) for compiled in (True, False))
    assert type(ours) is type(plain), (ours, plain)
    if isinstance(ours, str) or isinstance(plain, str):
        assert ours == plain
        return ours
    assert [ours.sample_name(row) for row in range(len(ours))] == [plain.sample_name(row) for row in range(len(plain))]
    for field in fields(LogprobTable):
        one, other = getattr(ours, field.name), getattr(plain, field.name)
        if isinstance(one, np.ndarray) and field.name != "samples":
            assert one.dtype == other.dtype, field.name
            assert one.tobytes() == other.tobytes(), field.name
        elif field.name not in ("samples", "sample_names"):
            assert one == other, field.name
    return ours


@pytest.mark.parametrize("name", TABLES)
def test_the_compiled_loop_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in TABLES[name]))
    assert_same(path, monkeypatch)


@pytest.mark.parametrize("name", ["tokens with more", "samples with lists", "facts between"])
def test_it_changes_nothing_on_damaged_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in TABLES[name]]
    chance = random.Random(2)
    num_tables = 0
    for _ in range(300):
        damaged = bytearray(b"".join(lines))
        at = chance.randrange(len(damaged))
        damaged[at : at + chance.randrange(4)] = chance.choice(
            [b"", b"\n", b"\r", b"0", b"1e5", b'"', b"]", b"null", b"\xff", b"\x00", b",", b"\xc3", b"1" * 25, b"-"]
        )
        path.write_bytes(damaged)
        num_tables += not isinstance(assert_same(path, monkeypatch), str)
    assert num_tables > 20


def test_a_bad_line_is_named_with_its_number(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps(line) for line in token_lines()]
    for bad, message in [
        ('{"sample": "a", ', "line 31 is not JSON: "),
        ("[1]", "line 31 is not an object"),
        ('{"sample": "a", "position": 1, "token": [5, 6], "logprob": [-1]}', "'logprob' of line 31 does not have 2"),
        ('{"sample": "a", "position": 1, "token": 5}', "not every line has 'logprob': line 31 does not"),
    ]:
        path.write_text("\n".join([*lines[:30], bad, *lines[30:]]))
        with pytest.raises(RoundoffError, match=message):
            read_logprobs(path)


def test_lines_that_are_cut_by_the_blocks_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in sample_lines()))
    whole = answer(path, monkeypatch, compiled=True)
    monkeypatch.setattr(logprob_lines, "_BLOCK_BYTES", 37)
    assert np.array_equal(answer(path, monkeypatch, compiled=True).logprobs, whole.logprobs)


def test_a_line_without_an_end_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logprob_lines, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(logprob_lines, "MAX_LINE_BYTES", 5000)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(token_lines()[0]) + "\n" + " " * 20_000)
    with pytest.raises(RoundoffError, match="line 2 is longer than"):
        read_logprobs(path)

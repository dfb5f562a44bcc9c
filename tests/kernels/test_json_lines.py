"""The compiled loop over JSON lines reads what `json.loads` reads, bit for bit, and stops before anything else."""

from __future__ import annotations

import json
import math
import random
import struct
from typing import Any

import numpy as np
import pytest

from roundoff.kernels.json_lines import ANY_SIZE, LineField, LineKind, can_scan_lines, scan_lines

pytestmark = pytest.mark.skipif(not can_scan_lines(), reason="the compiled kernels are not built")

NUMBER = LineField(key="x", kind=LineKind.NUMBER)
INTEGER = LineField(key="x", kind=LineKind.INTEGER)
NUMBERS = LineField(key="x", kind=LineKind.NUMBER, sizes=(ANY_SIZE,), has_nulls=True)
TEXT = LineField(key="x", kind=LineKind.TEXT)
SKIPPED = LineField(key="x", kind=LineKind.SKIPPED)


def line(text: str) -> bytes:
    return f'{{"x": {text}}}\n'.encode()


def bits(values: Any) -> list[int]:
    return np.asarray(values, dtype=np.float64).view(np.int64).tolist()


def random_number(chance: random.Random) -> str:
    value = struct.unpack("d", chance.randbytes(8))[0]
    near = chance.uniform(-20, 0)
    forms = (repr(value), repr(near), f"{near:.{chance.randrange(1, 25)}f}", f"{near:.{chance.randrange(25)}e}",
             repr(float(np.float32(near))),
             str(chance.randrange(-(10 ** chance.randrange(1, 19)), 10**17)))  # fmt: skip
    return chance.choice(forms).replace("nan", "NaN").replace("inf", "Infinity")


def test_numbers_are_those_of_json_bit_for_bit():
    chance = random.Random(0)
    texts = [random_number(chance) for _ in range(50_000)]
    texts += [
        "-0",
        "-0.0",
        "0",
        "5e-324",
        "1.7976931348623157e308",
        "9007199254740993.0",
        "0.1e1",
        "1E+2",
        "0.30000000000000004",
    ]
    texts += ["2.2250738585072011e-308", "8.5e-23", "123456789012345678.5", "1" * 18, "0." + "0" * 30 + "1" * 30]
    data = b"".join(map(line, texts))
    found = scan_lines(data, 0, [NUMBER])
    assert (len(found), found.end) == (len(texts), len(data))
    assert bits(found.columns[0].values) == bits([json.loads(text) for text in texts])


@pytest.mark.parametrize(
    "text",
    ["", "01", "1.", ".5", "+1", "1e", "1e+", "-", "--1", "0x1", "1_0", "NaN1", "-NaN", "nan", "Infinit", "1e999",
     "1e-999", "1" * 19, "null", "true", '"1"', "[1]", "{}", "1 2", "1,", "1\x00", "1\x0b"],
)  # fmt: skip
def test_what_is_no_number_ends_it(text: str):
    found = scan_lines(line("1.5") + line(text) + line("2.5"), 0, [NUMBER])
    assert (len(found), found.end) == (1, len(line("1.5")))
    assert found.columns[0].values.tolist() == [1.5]


def test_a_fraction_ends_integers():
    assert scan_lines(line("1") + line("2.0"), 0, [INTEGER]).columns[0].values.tolist() == [1]


def test_lists_nulls_and_spaces_are_read():
    data = (
        b'{"x":[ null ,1.5 , NaN],\t"y" : [[1,2],[3,4],[5,6]] } \r\n{"x": [], "y": []}\n{"x": [1], "y": [[1, 2, 3]]}\n'
    )
    fields = [NUMBERS, LineField(key="y", kind=LineKind.INTEGER, sizes=(ANY_SIZE, 2))]
    found = scan_lines(data, 0, fields)
    assert found.sizes.tolist() == [3, 0]
    assert found.columns[0].nulls.tolist() == [True, False, False]
    assert found.columns[0].values[1] == 1.5
    assert math.isnan(found.columns[0].values[2])
    assert found.columns[1].values.tolist() == [1, 2, 3, 4, 5, 6]


def test_lists_of_other_sizes_in_one_line_end_it():
    fields = [NUMBERS, LineField(key="y", kind=LineKind.INTEGER, sizes=(ANY_SIZE,))]
    assert len(scan_lines(b'{"x": [1, 2], "y": [1]}\n', 0, fields)) == 0


def test_texts_are_kept_once_as_long_as_they_repeat():
    texts = ['"a"', '"a"', r'"\u00e9\n\""', '"é"', '"é"', '"a"']
    found = scan_lines(b"".join(map(line, texts)), 0, [TEXT])
    written = [json.loads(b'"' + text + b'"') for text in found.columns[0].texts]
    assert [written[place] for place in found.columns[0].values] == [json.loads(text) for text in texts]
    assert len(written) == 4


@pytest.mark.parametrize("text", ['"a', '"\x01"', r'"\x"', r'"\u00g0"', r'"\u12"', '"\t"', "'a'"])
@pytest.mark.parametrize("field", [TEXT, SKIPPED])
def test_what_is_no_text_ends_it(text: str, field: LineField):
    assert len(scan_lines(line(text), 0, [field])) == 0


@pytest.mark.parametrize(
    ("text", "is_read"),
    [('{"a": [1, {"b": null}], "c": "x"}', True), ("[]", True), ("{}", True), ("true", True), ("[1, ]", False),
     ('{"a"}', False), ('{"a": 1, }', False), ("[1 2]", False), ("[" * 50 + "]" * 50, True),
     ("[" * 5000 + "]" * 5000, False), ("tru", False)],
)  # fmt: skip
def test_what_is_skipped_must_be_json(text: str, is_read: bool):
    assert len(scan_lines(line(text), 0, [SKIPPED])) == is_read


@pytest.mark.parametrize(
    "data", [b'{"y": 1}\n', b'{"x": 1, "y": 2}\n', b"{}\n", b"\n", b"[1]\n", b'{"x": 1', b'{"x": 1}}\n', b' {"x": 1}\n']
)
def test_other_objects_end_it(data: bytes):
    assert len(scan_lines(data, 0, [NUMBER])) == 0


def test_a_part_of_a_block_is_read_and_the_last_line_may_lack_its_end():
    data = line("1") + line("2") + line("3") + b'{"x": 4}'
    begin, end = len(line("1")), 3 * len(line("1"))
    assert scan_lines(data, begin, [INTEGER], end=end).columns[0].values.tolist() == [2, 3]
    assert scan_lines(data, begin, [INTEGER]).columns[0].values.tolist() == [2, 3, 4]


def test_damaged_lines_are_read_as_json_reads_them_or_not_at_all():
    chance = random.Random(1)
    fields = [NUMBERS, LineField(key="s", kind=LineKind.TEXT), LineField(key="z", kind=LineKind.SKIPPED)]
    num_read = 0
    for _ in range(20_000):
        good = json.dumps({"x": [chance.uniform(-9, 0), None, chance.randrange(99)], "s": "aé\n", "z": {"a": [1, "b"]}})
        damaged = bytearray(good.encode())
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(damaged))
            damaged[at : at + chance.randrange(3)] = chance.choice(
                [b"", b'"', b"0", b"-", b".", b"]", b",", b" ", b"e", b"\\"]
            )
        data = bytes(damaged)
        found = scan_lines(data, 0, fields)
        if not len(found):
            continue
        num_read += 1
        value = json.loads(data)
        assert list(value) == ["x", "s", "z"]
        assert bits(found.columns[0].values) == bits([0.0 if each is None else each for each in value["x"]])
        assert json.loads(b'"' + found.columns[1].texts[0] + b'"') == value["s"]
    assert num_read > 1000

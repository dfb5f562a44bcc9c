"""Lining up ops: what agrees, what may be skipped, and what is left over."""

import itertools
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from roundoff.compare.runs import alignment as module
from roundoff.compare.runs.alignment import align, common_subsequence, is_passing_on, sites_by_order
from roundoff.runs import Event
from roundoff.runs.records.event import StepOp

PLAIN = Event(
    step=0, rank=0, microbatch=0, phase="forward", site="<model>", op="aten.mm", nth=0, output="output0", order=0,
    parameter=None, source=None, dtype="float32", shape=(4, 4), device="cpu", num_elements=16, min=0.0, max=1.0,
    mean=0.5, sum_abs=8.0, l2=3.0, num_nan=0, num_posinf=0, num_neginf=0, num_zero=0, num_subnormal=0, hash=1,
)  # fmt: skip


def ops(*words: str, site: str = "<model>", start: int = 0, shape: tuple[int, ...] = (4, 4)) -> list[StepOp]:
    return [
        StepOp(outputs=[replace(PLAIN, op=f"aten.{word}", site=site, order=start + i, shape=shape)])
        for i, word in enumerate(words)
    ]


def words(found: tuple[StepOp, ...]) -> list[str]:
    return [op.first.op for op in found]


def test_casts_and_copies_are_skipped_and_other_ops_are_left_over():
    found = align(ops("mm", "add", "relu"), ops("_to_copy", "mm", "mul", "add_", "relu"))
    assert [(a.first.op, b.first.op) for a, b in found.pairs] == [
        ("aten.mm", "aten.mm"),
        ("aten.add", "aten.add_"),
        ("aten.relu", "aten.relu"),
    ]
    assert found.only_reference == ()
    assert words(found.only_candidate) == ["aten._to_copy", "aten.mul"]
    assert [is_passing_on(op) for op in found.only_candidate] == [True, False]


def test_a_list_op_lines_up_with_a_loop_over_its_tensors():
    outputs = [
        replace(PLAIN, op="aten._foreach_mul_", parameter=name, output=f"output{i}") for i, name in enumerate("ab")
    ]
    inputs = [replace(event, output=f"input{i}") for i, event in enumerate(outputs)]
    loop = [
        StepOp(outputs=[replace(PLAIN, op="aten.mul_", parameter=name, order=i)], inputs=[])
        for i, name in enumerate("ab")
    ]
    found = align(loop, [StepOp(inputs=inputs, outputs=outputs)])
    assert [(a.first.parameter, b.outputs[0].parameter) for a, b in found.pairs] == [("a", "a"), ("b", "b")]


def test_the_same_op_with_another_batch_lines_up_last():
    found = align(ops("mm", "mm"), ops("mm", shape=(2, 4)) + ops("mm", start=1))
    assert [(a.first.order, b.first.order) for a, b in found.pairs] == [(0, 0), (1, 1)]
    assert align(ops("mm"), ops("mm", shape=(2, 4))).pairs


def test_sites_with_other_names_are_recognised_by_their_ops():
    reference = ops("mm", "relu", site="fc1") + ops("mm", site="fc2", start=2)
    candidate = ops("mm", "relu", site="up", start=0) + ops("mm", site="down", start=2)
    assert sites_by_order(reference, candidate) == {"up": "fc1", "down": "fc2"}
    assert len(align(reference, candidate, sites=sites_by_order(reference, candidate)).pairs) == 3


TEXTS = st.text(alphabet="abc", max_size=12)


@given(TEXTS, TEXTS)
def test_a_longest_common_subsequence_is_common_rising_and_longest(left: str, right: str):
    found = common_subsequence(left, right)
    assert all(left[i] == right[j] for i, j in found)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(found))
    assert len(found) == longest(left, right)


def longest(left: str, right: str) -> int:
    if not left or not right:
        return 0
    row = [0] * (len(right) + 1)
    for a in left:
        before = row[:]
        for j, b in enumerate(right):
            row[j + 1] = before[j] + 1 if a == b else max(before[j + 1], row[j])
    return row[-1]


def test_very_long_sites_are_lined_up_the_quicker_way(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_CELLS", 1)
    assert common_subsequence("xabcdy", "zabqcdw") == [(1, 1), (2, 2), (3, 4), (4, 5)]

"""Looks at growing memory become one finding, or none where it was given back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from roundoff.diagnose.process.memory import growing_memory
from roundoff.runs import GrownObject, GrownTensors, MemoryLook, Severity
from tests.run_folders import write_run

MIB = 2**20
LOSSES = GrownObject(
    name="losses",
    source="train.py:12",
    kind="list",
    num=180,
    num_more=40,
    bytes_more=160,
    has_graph=True,
    item="float32 scalar tensor",
)
CACHE = replace(LOSSES, name="cache", has_graph=False, bytes_more=40 * MIB, item="float32 512x512 tensor")
TENSORS = GrownTensors(item="float32 512x512 tensor", num=90, num_more=40, bytes_more=40 * MIB)


def look(step: int, mib: int, **what: Any) -> MemoryLook:
    return MemoryLook(step=step, rss_bytes=mib * MIB, start_step=20, start_bytes=330 * MIB, **what)


def test_graphs_that_are_kept_name_variable_line_and_slope(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", look(60, 380), look(120, 450, keepers=(LOSSES,)), look(220, 562, is_last=True))
    (finding,) = growing_memory(run)
    assert (finding.rule, finding.severity, finding.source) == ("graph-leak", Severity.ERROR, "train.py:12")
    assert finding.why == (
        "losses holds 180 entries with the graphs they were computed from, with all their activations\n"
        "The process grew from 346 MB to 589 MB in 200 steps, 1.22 MB per step."
    )
    assert finding.fix == "keep the number or the detached tensor: .item() or .detach()"


def test_growth_without_graphs_names_what_grew(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", look(60, 380), look(120, 450, keepers=(CACHE,), tensors=(TENSORS,)))
    (finding,) = growing_memory(run)
    assert (finding.rule, finding.source) == ("memory-growth", "train.py:12")
    assert "cache grew by 40 entries between two measurements, 41.9 MB (float32 512x512 tensor)" in finding.why


def test_growth_that_no_one_keeps_names_the_tensors_or_says_that_it_is_native(tmp_path: Path) -> None:
    (finding,) = growing_memory(write_run(tmp_path / "a", look(60, 380), look(120, 450, tensors=(TENSORS,))))
    assert "40 more tensors like float32 512x512 tensor" in finding.why
    (finding,) = growing_memory(write_run(tmp_path / "b", look(60, 380), look(120, 450)))
    assert "native library" in finding.why


def test_memory_that_was_given_back_is_silent(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", look(60, 380), look(120, 450, keepers=(CACHE,)), look(220, 340, is_last=True))
    assert growing_memory(run) == []


def test_memory_that_had_stopped_growing_is_silent(tmp_path: Path) -> None:
    looks = look(60, 380), look(120, 450, keepers=(CACHE,)), look(220, 500, is_last=True, goes_on=False)
    assert growing_memory(write_run(tmp_path / "run", *looks)) == []


def test_one_look_is_not_enough(tmp_path: Path) -> None:
    assert growing_memory(write_run(tmp_path / "a", look(60, 380), look(220, 400, is_last=True))) == []
    assert growing_memory(write_run(tmp_path / "b")) == []

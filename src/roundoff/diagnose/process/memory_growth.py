"""Memory that grows from step to step: graphs that are kept, and everything else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roundoff.diagnose.rule import Code, Rule
from roundoff.runs import Finding, JsonValue, MemoryLook, Run, Severity
from roundoff.words import plural

_MIB = 2**20
_MIN_GROWTH = 16 * _MIB


def growing_memory(run: Run) -> list[Finding]:
    """Find ranks whose memory grew until the end: because of tensors kept with their graphs, or something else."""
    return [finding for rank in run.ranks for finding in _of_rank(run.memory(rank=rank), rank)]


def _of_rank(looks: list[MemoryLook], rank: int) -> list[Finding]:
    compared = [look for look in looks if not look.is_last][1:]  # the first has nothing to compare with
    if not compared or _was_released(looks):
        return []
    last = looks[-1]
    keepers = [_facts(keeper) for look in reversed(compared) for keeper in look.keepers]
    leak = next((keeper for keeper in keepers if keeper.get("has_graph")), None)
    if leak is not None:
        return [_graph_leak(leak, last, rank, compared[-1].keepers)]
    return [_memory_growth(compared[-1], last, rank, keepers)]


def _was_released(looks: list[MemoryLook]) -> bool:
    """Say whether the process uses little more memory at the end than at the start."""
    peak = max(look.rss_bytes for look in looks)
    kept = looks[-1].rss_bytes - looks[-1].start_bytes
    return kept < max(_MIN_GROWTH, (peak - looks[-1].start_bytes) // 2)


def _graph_leak(keeper: Mapping[str, Any], last: MemoryLook, rank: int, evidence: tuple[JsonValue, ...]) -> Finding:
    name = keeper["name"]
    if keeper["kind"] == "variable":
        kept = f"{name} is connected to the graphs of all steps since, {keeper['num']} nodes by now"
        fix = f"add numbers, not tensors: {name} + loss.item(), or loss.detach()"
    else:
        kept = f"{name} holds {keeper['num']} entries with the graphs they were computed from"
        fix = "keep the number or the detached tensor: .item() or .detach()"
    return Finding(
        rule="graph-leak",
        severity=Severity.ERROR,
        confidence=0.95 if keeper["source"] else 0.85,
        step=last.start_step,
        rank=rank,
        source=keeper["source"],
        title="graphs of past steps are kept in memory",
        why=f"{kept}, with all their activations\n{_growth(last)}",
        fix=fix,
        evidence=evidence,
    )


def _memory_growth(look: MemoryLook, last: MemoryLook, rank: int, keepers: list[Mapping[str, Any]]) -> Finding:
    keeper = keepers[0] if keepers else None
    tensors = [_facts(tensor) for tensor in look.tensors]
    if keeper is not None:
        more = plural(keeper["num_more"], "entry", "entries")
        why = (
            f"{keeper['name']} grew by {more} between two measurements, {_mib(keeper['bytes_more'])} ({keeper['item']})"
        )
        fix = f"clear {keeper['name']} regularly, or limit its length"
    elif tensors:
        why = (
            f"there are {tensors[0]['num_more']} more tensors like {tensors[0]['item']} than at the measurement before"
        )
        fix = "release them at the end of each step"
    else:
        why = "no Python container and no tensor grew with it: a native library holds it, or it is fragmented"
        fix = "look for native leaks:  roundoff run --valgrind SCRIPT"
    return Finding(
        rule="memory-growth",
        severity=Severity.ERROR,
        confidence=0.85 if keeper is not None else 0.6,
        step=last.start_step,
        rank=rank,
        source=keeper["source"] if keeper is not None else None,
        title="the memory of the process grows steadily",
        why=f"{why}\n{_growth(last)}",
        fix=fix,
        evidence=(*look.keepers, *look.tensors),
    )


def _growth(last: MemoryLook) -> str:
    num_steps = max(1, last.step - last.start_step)
    slope = (last.rss_bytes - last.start_bytes) / num_steps
    per_step = f"{slope / _MIB:.1f} MiB" if slope >= _MIB / 10 else f"{slope / 1024:.0f} KiB"
    return (
        f"The process grew from {_mib(last.start_bytes)} to {_mib(last.rss_bytes)} in {plural(num_steps, 'step')}, "
        f"{per_step} per step."
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:.0f} MiB"


def _facts(value: JsonValue) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _measured_memory(run: Run) -> str | None:
    """Look for a watch: it measures memory all the time, and writes it down only when it grows."""
    is_watched = any(run.structures(rank=rank) or run.memory(rank=rank) for rank in run.ranks)
    return None if is_watched else "memory was not measured"


RULES = (
    Rule(
        order=1120,
        checks="growing memory",
        find=growing_memory,
        needs=(_measured_memory,),
        codes=(
            Code(
                name="graph-leak",
                means="Tensors of past steps are kept together with their graphs and all the activations in them.",
                detected="The memory of the process is tracked. When it grows, containers and variables that grow with "
                "it are inspected, and these hold tensors with a graph.",
                fix="Keep numbers, not tensors: `loss.item()` or `loss.detach()`.",
            ),
            Code(
                name="memory-growth",
                means="The memory of the process grows steadily, but not because of graphs.",
                detected="As for a graph leak, but none of what grows holds a tensor with a graph.",
                fix="Look at the lines that the finding names: growing lists, caches without a limit.",
            ),
        ),
    ),
)

"""Memory of the process: growth from step to step, and the errors that valgrind's memcheck reported."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, error, on_each_rank, rule, warning
from roundoff.errors import RunFolderError
from roundoff.runs import Finding, GrownObject, JsonValue, MemoryLook, Run, object_of, script_words
from roundoff.words import plural, size_text

_MIN_GROWTH = 16 * 2**20


@rule(
    Code(
        name="graph-leak",
        means="Tensors of past steps are kept together with their graphs and all the activations in them.",
        detected="The memory of the process is tracked. When it grows, containers and variables that grow with it are "
        "inspected, and these hold tensors with a graph.",
        fix="Keep numbers, not tensors: `loss.item()` or `loss.detach()`.",
    ),
    Code(
        name="memory-growth",
        means="The memory of the process grows steadily, but not because of graphs.",
        detected="As for a graph leak, but none of what grows holds a tensor with a graph.",
        fix="Look at the lines that the finding names: growing lists, caches without a limit.",
    ),
    order=1120,
    checks="growing memory",
    needs=[
        needs.some(
            lambda run: any(run.structures(rank=rank) or run.memory(rank=rank) for rank in run.ranks),
            "memory was not measured",
        )
    ],
)
@on_each_rank
def growing_memory(run: Run, rank: int) -> Finding | None:
    """Find ranks whose memory grew until the end: because of tensors kept with their graphs, or something else."""
    looks = run.memory(rank=rank)
    compared = [look for look in looks if not look.is_last][1:]  # the first has nothing to compare with
    if not compared or _has_ended(looks):
        return None
    last = looks[-1]
    keepers = [keeper for look in reversed(compared) for keeper in look.keepers]
    leak = next((keeper for keeper in keepers if keeper.has_graph), None)
    if leak is not None:
        return _graph_leak(leak, last, rank, compared[-1].keepers)
    return _memory_growth(compared[-1], last, rank, keepers, script=script_words(run.info))


def _has_ended(looks: list[MemoryLook]) -> bool:
    """Say whether the process uses little more memory at the end than at the start, or had stopped growing."""
    if not looks[-1].goes_on:
        return True
    peak = max(look.rss_bytes for look in looks)
    kept = looks[-1].rss_bytes - looks[-1].start_bytes
    return kept < max(_MIN_GROWTH, (peak - looks[-1].start_bytes) // 2)


def _graph_leak(keeper: GrownObject, last: MemoryLook, rank: int, evidence: Sequence[GrownObject]) -> Finding:
    name = keeper.name
    if keeper.kind == "variable":
        kept = f"{name} is connected to the graphs of all steps since, {keeper.num} nodes by now"
        fix = f"add numbers, not tensors: {name} + loss.item(), or loss.detach()"
    else:
        kept = f"{name} holds {keeper.num} entries with the graphs they were computed from"
        fix = "keep the number or the detached tensor: .item() or .detach()"
    return error(
        rule="graph-leak",
        confidence=0.95 if keeper.source else 0.85,
        step=last.start_step,
        rank=rank,
        source=keeper.source,
        title="graphs of past steps are kept in memory",
        why=f"{kept}, with all their activations\n{_growth(last)}",
        fix=fix,
        evidence=tuple(map(object_of, evidence)),
    )


def _memory_growth(
    look: MemoryLook, last: MemoryLook, rank: int, keepers: Sequence[GrownObject], *, script: str
) -> Finding:
    keeper = keepers[0] if keepers else None
    if keeper is not None:
        more = plural(keeper.num_more, "entry", "entries")
        why = f"{keeper.name} grew by {more} between two measurements, {size_text(keeper.bytes_more)} ({keeper.item})"
        fix = f"clear {keeper.name} regularly, or limit its length"
    elif look.tensors:
        tensors = look.tensors[0]
        why = f"there are {tensors.num_more} more tensors like {tensors.item} than at the measurement before"
        fix = "release them at the end of each step"
    else:
        why = "no Python container and no tensor grew with it: a native library holds it, or it is fragmented"
        fix = f"look for native leaks:  roundoff run --valgrind {script}"
    return error(
        rule="memory-growth",
        confidence=0.85 if keeper is not None else 0.6,
        step=last.start_step,
        rank=rank,
        source=keeper.source if keeper is not None else None,
        title="the memory of the process grows steadily",
        why=f"{why}\n{_growth(last)}",
        fix=fix,
        evidence=tuple(map(object_of, (*look.keepers, *look.tensors))),
    )


def _growth(last: MemoryLook) -> str:
    num_steps = max(1, last.step - last.start_step)
    slope = (last.rss_bytes - last.start_bytes) / num_steps
    return (
        f"The process grew from {size_text(last.start_bytes)} to {size_text(last.rss_bytes)} "
        f"in {plural(num_steps, 'step')}, {size_text(slope)} per step."
    )


_ALLOCATORS = re.compile(
    r"^(malloc|calloc|realloc|free|memalign|posix_memalign|aligned_alloc|strn?dup|operator (new|delete))"
)
_PYTHON = re.compile(r"/(libpython[\d.]+\w*\.so[\d.]*|python[\d.]*)$")
_START = re.compile(r"^(\(below main\)|__libc_start\w*|_start|start_thread|clone\d?)$")
_ONCE = re.compile(
    r"^(_?dl_\w+|call_init|dlopen|PyInit_\w+|_PyImport_LoadDynamicModule|PyModule_ExecDef|_GLOBAL__sub_I_|"
    r"torch::(FunctionParameter|FunctionSignature|PythonArgParser)\b)"
)
"""Frames that run once per process, when libraries are loaded and torch builds its argument parsers."""
_MAX_FINDINGS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    function: str
    library: str
    source: str | None

    @property
    def text(self) -> str:
        return f"{self.function.partition('(')[0]} ({self.source or self.library.rpartition('/')[2] or '?'})"


@dataclass(slots=True, kw_only=True)
class _ErrorGroup:
    """Errors of one kind from one frame."""

    frame: _Frame
    stack: list[_Frame]
    what: str
    is_loss: bool
    num_bytes: int = 0
    num_times: int = 0


@rule(
    Code(
        name="invalid-access",
        means="With `--valgrind`: native code read or wrote memory that was never allocated or was already freed.",
        detected="The script runs under memcheck; its reports are grouped by the first native frame outside the "
        "allocator.",
        fix="Fix the native frame that the finding names; its evidence contains the stack.",
    ),
    Code(
        name="native-leak",
        means="With `--valgrind`: native code lost memory that nothing points to any more.",
        detected="The script runs under memcheck, which counts lost blocks when the process ends.",
        fix="Free what the named frame allocates.",
    ),
    order=120,
    checks="native memory errors, under --valgrind",
    needs=[needs.some(lambda run: run.memcheck_file() is not None, "the script did not run under --valgrind")],
)
def wrong_memory(run: Run) -> list[Finding]:
    """Find the errors that memcheck reported."""
    path = run.memcheck_file()
    return [] if path is None else memcheck_findings(path)


def memcheck_findings(path: Path) -> list[Finding]:
    """Return invalid accesses in order, then lost memory, the largest loss first; both by native frame.

    Memory that Python keeps until it exits, or that is lost once when a library is loaded, is not reported. A truncated
    file is read as far as it goes.
    """
    groups: dict[tuple[str, str], _ErrorGroup] = {}
    for element in _errors(path):
        kind, stack = element.findtext("kind") or "", _frames(element)
        frame = _responsible_frame(stack)
        is_loss = kind == "Leak_DefinitelyLost"
        if frame is None or not (is_loss or kind.startswith(("Invalid", "Mismatched"))):
            continue
        if any(_ONCE.match(place.function) for place in stack):
            continue
        group = groups.setdefault(
            (kind, frame.text),
            _ErrorGroup(frame=frame, stack=stack, what=element.findtext("what") or kind, is_loss=is_loss),
        )
        group.num_bytes += int(element.findtext("xwhat/leakedbytes") or 0)
        group.num_times += int(element.findtext("xwhat/leakedblocks") or 1)
    accesses = [group for group in groups.values() if not group.is_loss]
    losses = sorted((group for group in groups.values() if group.is_loss), key=lambda group: -group.num_bytes)
    return [*map(_access_finding, accesses[:_MAX_FINDINGS]), *map(_loss_finding, losses[:_MAX_FINDINGS])]


def _access_finding(group: _ErrorGroup) -> Finding:
    return error(
        rule="invalid-access",
        confidence=0.9,
        title=f"{group.what} in {group.frame.text}",
        why="the memory was never allocated, or was already freed",
        fix=f"fix {group.frame.text}; the evidence contains the stack",
        source=group.frame.source,
        evidence=(_stack(group),),
    )


def _loss_finding(group: _ErrorGroup) -> Finding:
    return warning(
        rule="native-leak",
        confidence=0.8,
        title=f"{group.num_bytes} bytes were lost in {group.frame.text}",
        why=f"{group.num_times} blocks allocated there are no longer referenced",
        fix=f"free what {group.frame.text} allocates",
        source=group.frame.source,
        evidence=({"bytes": group.num_bytes, "blocks": group.num_times}, _stack(group)),
    )


def _stack(group: _ErrorGroup) -> JsonValue:
    return {"native_stack": [frame.text for frame in group.stack[:12]]}


def _errors(path: Path) -> Iterator[ElementTree.Element]:
    try:
        for _, element in ElementTree.iterparse(path, events=("end",)):
            if element.tag == "error":
                yield element
                element.clear()
    except ElementTree.ParseError:
        return  # the process was killed while valgrind was writing
    except OSError as problem:
        raise RunFolderError.explain(f"'{path}' cannot be read.", why=f"{problem.strerror}.") from problem


def _frames(element: ElementTree.Element) -> list[_Frame]:
    """Return the first stack of an error, innermost first: a second one says where the memory came from."""
    stack = element.find("stack")
    found = []
    for frame in stack.findall("frame") if stack is not None else ():
        file, line = frame.findtext("file"), frame.findtext("line")
        found.append(
            _Frame(
                function=frame.findtext("fn") or "?",
                library=frame.findtext("obj") or "",
                source=f"{file}:{line}" if file and line else None,
            )
        )
    return found


def _responsible_frame(stack: list[_Frame]) -> _Frame | None:
    """Return the innermost frame that is neither an allocator's nor Python's own; None if there is no other."""
    for frame in stack:
        is_known = _ALLOCATORS.match(frame.function) or _PYTHON.search(frame.library) or _START.match(frame.function)
        if not is_known:
            return frame
    return None

"""What valgrind's memcheck saw: memory that was lost and accesses that were wrong, by the native frame behind them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from roundoff.errors import RunFolderError
from roundoff.runs import Finding, JsonValue, Run, Severity

_ALLOCATORS = re.compile(
    r"^(malloc|calloc|realloc|free|memalign|posix_memalign|aligned_alloc|strn?dup|operator (new|delete))"
)
_PYTHON = re.compile(r"/(libpython[\d.]+\w*\.so[\d.]*|python[\d.]*)$")
_START = re.compile(r"^(\(below main\)|__libc_start\w*|_start|start_thread|clone\d?)$")
_ONCE = re.compile(
    r"^(_?dl_\w+|call_init|dlopen|PyInit_\w+|_PyImport_LoadDynamicModule|PyModule_ExecDef|_GLOBAL__sub_I_|"
    r"torch::(FunctionParameter|FunctionSignature|PythonArgParser)\b)"
)
"""Frames under which things happen once in a process: libraries are loaded, torch makes its parsers of arguments."""
_MOST_FINDINGS = 10

MEMCHECK_CODES = ("invalid-access", "native-leak")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    function: str
    library: str
    source: str | None

    @property
    def told(self) -> str:
        return f"{self.function.partition('(')[0]} ({self.source or self.library.rpartition('/')[2] or '?'})"


@dataclass(slots=True, kw_only=True)
class _Group:
    """Errors of one kind behind one frame."""

    frame: _Frame
    stack: list[_Frame]
    what: str
    is_loss: bool
    num_bytes: int = 0
    num_times: int = 0


def wrong_memory(run: Run) -> list[Finding]:
    """Return what memcheck saw, where the script ran under it."""
    path = run.memcheck_file()
    return [] if path is None else memcheck_findings(path)


def memcheck_findings(path: Path) -> list[Finding]:
    """Return wrong accesses in the order they came, then losses, the largest first; both by native frame.

    What Python keeps until its end, and what is lost once while a library is loaded, is not told. A file that was cut
    off is read as far as it goes.
    """
    groups: dict[tuple[str, str], _Group] = {}
    for error in _errors(path):
        kind, stack = error.findtext("kind") or "", _frames(error)
        frame = _frame_behind(stack)
        is_loss = kind == "Leak_DefinitelyLost"
        if frame is None or not (is_loss or kind.startswith(("Invalid", "Mismatched"))):
            continue
        if any(_ONCE.match(place.function) for place in stack):
            continue
        group = groups.setdefault(
            (kind, frame.told),
            _Group(frame=frame, stack=stack, what=error.findtext("what") or kind, is_loss=is_loss),
        )
        group.num_bytes += int(error.findtext("xwhat/leakedbytes") or 0)
        group.num_times += int(error.findtext("xwhat/leakedblocks") or 1)
    accesses = [group for group in groups.values() if not group.is_loss]
    losses = sorted((group for group in groups.values() if group.is_loss), key=lambda group: -group.num_bytes)
    return [*map(_access_finding, accesses[:_MOST_FINDINGS]), *map(_loss_finding, losses[:_MOST_FINDINGS])]


def _access_finding(group: _Group) -> Finding:
    return Finding(
        rule="invalid-access",
        severity=Severity.ERROR,
        confidence=0.9,
        title=f"{group.what} in {group.frame.told}",
        why="the memory there was never allocated, or has been freed",
        fix=f"mend {group.frame.told}; the stack is among the evidence",
        source=group.frame.source,
        evidence=(_stack(group),),
    )


def _loss_finding(group: _Group) -> Finding:
    return Finding(
        rule="native-leak",
        severity=Severity.WARNING,
        confidence=0.8,
        title=f"{group.num_bytes} bytes were lost in {group.frame.told}",
        why=f"{group.num_times} blocks were allocated there that nothing points to any more",
        fix=f"free what {group.frame.told} allocates",
        source=group.frame.source,
        evidence=({"bytes": group.num_bytes, "blocks": group.num_times}, _stack(group)),
    )


def _stack(group: _Group) -> JsonValue:
    return {"native_stack": [frame.told for frame in group.stack[:12]]}


def _errors(path: Path) -> Iterator[ElementTree.Element]:
    try:
        for _, element in ElementTree.iterparse(path, events=("end",)):
            if element.tag == "error":
                yield element
                element.clear()
    except ElementTree.ParseError:
        return  # the process was killed while valgrind wrote
    except OSError as error:
        raise RunFolderError.explain(f"'{path}' cannot be read.", why=f"{error.strerror}.") from error


def _frames(error: ElementTree.Element) -> list[_Frame]:
    """Return the first stack of an error, innermost first: a second one says where the memory came from."""
    stack = error.find("stack")
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


def _frame_behind(stack: list[_Frame]) -> _Frame | None:
    """Return the innermost frame that is neither an allocator's nor Python's own; None if there is no other."""
    for frame in stack:
        is_known = _ALLOCATORS.match(frame.function) or _PYTHON.search(frame.library) or _START.match(frame.function)
        if not is_known:
            return frame
    return None

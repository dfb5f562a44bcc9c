"""Errors that valgrind's memcheck reported: invalid accesses and lost memory, grouped by native frame."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from roundoff.diagnose.rule import Code, Rule
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
class _Group:
    """Errors of one kind from one frame."""

    frame: _Frame
    stack: list[_Frame]
    what: str
    is_loss: bool
    num_bytes: int = 0
    num_times: int = 0


def wrong_memory(run: Run) -> list[Finding]:
    """Find the errors that memcheck reported."""
    path = run.memcheck_file()
    return [] if path is None else memcheck_findings(path)


def memcheck_findings(path: Path) -> list[Finding]:
    """Return invalid accesses in order, then lost memory, the largest loss first; both by native frame.

    Memory that Python keeps until it exits, or that is lost once when a library is loaded, is not reported. A truncated
    file is read as far as it goes.
    """
    groups: dict[tuple[str, str], _Group] = {}
    for error in _errors(path):
        kind, stack = error.findtext("kind") or "", _frames(error)
        frame = _responsible_frame(stack)
        is_loss = kind == "Leak_DefinitelyLost"
        if frame is None or not (is_loss or kind.startswith(("Invalid", "Mismatched"))):
            continue
        if any(_ONCE.match(place.function) for place in stack):
            continue
        group = groups.setdefault(
            (kind, frame.text),
            _Group(frame=frame, stack=stack, what=error.findtext("what") or kind, is_loss=is_loss),
        )
        group.num_bytes += int(error.findtext("xwhat/leakedbytes") or 0)
        group.num_times += int(error.findtext("xwhat/leakedblocks") or 1)
    accesses = [group for group in groups.values() if not group.is_loss]
    losses = sorted((group for group in groups.values() if group.is_loss), key=lambda group: -group.num_bytes)
    return [*map(_access_finding, accesses[:_MAX_FINDINGS]), *map(_loss_finding, losses[:_MAX_FINDINGS])]


def _access_finding(group: _Group) -> Finding:
    return Finding(
        rule="invalid-access",
        severity=Severity.ERROR,
        confidence=0.9,
        title=f"{group.what} in {group.frame.text}",
        why="the memory was never allocated, or was already freed",
        fix=f"fix {group.frame.text}; the evidence contains the stack",
        source=group.frame.source,
        evidence=(_stack(group),),
    )


def _loss_finding(group: _Group) -> Finding:
    return Finding(
        rule="native-leak",
        severity=Severity.WARNING,
        confidence=0.8,
        title=f"{group.num_bytes} bytes were lost in {group.frame.text}",
        why=f"{group.num_times} blocks allocated there are no longer referenced",
        fix=f"free what {group.frame.text} allocates",
        source=group.frame.source,
        evidence=({"bytes": group.num_bytes, "blocks": group.num_times}, _stack(group)),
    )


def _stack(group: _Group) -> JsonValue:
    return {"native_stack": [frame.text for frame in group.stack[:12]]}


def _errors(path: Path) -> Iterator[ElementTree.Element]:
    try:
        for _, element in ElementTree.iterparse(path, events=("end",)):
            if element.tag == "error":
                yield element
                element.clear()
    except ElementTree.ParseError:
        return  # the process was killed while valgrind was writing
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


def _responsible_frame(stack: list[_Frame]) -> _Frame | None:
    """Return the innermost frame that is neither an allocator's nor Python's own; None if there is no other."""
    for frame in stack:
        is_known = _ALLOCATORS.match(frame.function) or _PYTHON.search(frame.library) or _START.match(frame.function)
        if not is_known:
            return frame
    return None


def _memcheck_report(run: Run) -> str | None:
    return None if run.memcheck_file() is not None else "the script did not run under --valgrind"


RULES = (
    Rule(
        order=120,
        checks="native memory errors, under --valgrind",
        find=wrong_memory,
        needs=(_memcheck_report,),
        codes=(
            Code(
                name="invalid-access",
                means="With `--valgrind`: native code read or wrote memory that was never allocated or was already "
                "freed.",
                detected="The script runs under memcheck; its reports are grouped by the first native frame outside "
                "the allocator.",
                fix="Fix the native frame that the finding names; its evidence contains the stack.",
            ),
            Code(
                name="native-leak",
                means="With `--valgrind`: native code lost memory that nothing points to any more.",
                detected="The script runs under memcheck, which counts lost blocks when the process ends.",
                fix="Free what the named frame allocates.",
            ),
        ),
    ),
)

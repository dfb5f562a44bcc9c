"""Lets every file operation of a watched training fail in turn, or the process die there.

    python -m tests.flows.fault_injection            as many cases as the tests run
    python -m tests.flows.fault_injection --all      every operation, every failure, and a kill at every operation

The training must end with the code and the output of the bare script; roundoff may say on stderr that it stopped, and
at the end that there is no diagnosis: once each, and no traceback. After a kill the run folder must open and be
diagnosed. Each case is a fork of a process that has torch loaded; operations are counted over the script's process and
the one that waits for it.
"""

from __future__ import annotations

import argparse
import errno
import functools
import mmap
import os
import random
import re
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range({steps}):
    x = torch.randn(16, 6)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    if step == {bad}:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
raise SystemExit({code})
"""

PATHS = {"open": 0, "mkdir": 0, "replace": 1, "unlink": 0}
"""Functions of `os` with the place of the argument that is a path."""
DESCRIPTORS = ("write", "pwrite", "fsync", "ftruncate", "posix_fallocate")
ERRORS = {
    "open": (errno.EMFILE, errno.ENOENT, errno.EROFS, errno.EACCES),
    "mkdir": (errno.ENOSPC, errno.EROFS),
    "replace": (errno.ENOENT, errno.ENOSPC),
    "unlink": (errno.EROFS,),
    "write": (errno.ENOSPC, errno.EIO, errno.EFBIG),
    "pwrite": (errno.ENOSPC, errno.EIO),
    "fsync": (errno.EIO, errno.ENOSPC),
    "ftruncate": (errno.EIO,),
    "posix_fallocate": (errno.ENOSPC,),
    "mmap": (errno.ENOMEM,),
}
MEMORY = "memory"
"""The operation raises a `MemoryError`, as under a limit on memory."""
KILL = "kill"
"""The process gets SIGKILL instead of doing the operation."""
ALL_AFTER = "all after"
"""From the operation on all fail: a full disk, a folder that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Which operation fails, and how."""

    number: int
    """Counted from 0."""
    how: str
    """`ALL_AFTER`, `MEMORY`, `KILL`, or empty: only this one fails, with the error that its function has."""
    seed: int = 0


class Injector:
    """Counts file operations below a folder, over all processes that inherit it, and lets some fail."""

    def __init__(self, folder: Path, case: Case | None) -> None:
        self._folder = str(folder)
        self._case = case
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)
        self._chance = random.Random(case.seed if case is not None else 0)

    @property
    def count(self) -> int:
        """How many operations there were."""
        return int(struct.unpack("q", self._shared[:8])[0])

    def install(self) -> None:
        """Replace the functions of `os` in this process, which ends with the case."""
        for name, place in PATHS.items():
            self._wrap(name, lambda args, place=place: os.fspath(args[place]))
        for name in DESCRIPTORS:
            self._wrap(name, lambda args: os.readlink(f"/proc/self/fd/{args[0]}"))

    def _wrap(self, name: str, path_of: Callable[[tuple[Any, ...]], str]) -> None:
        original = getattr(os, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_ours(path_of, args):
                self._meet(name)
            return original(*args, **kwargs)

        setattr(os, name, call)

    def _is_ours(self, path_of: Callable[[tuple[Any, ...]], str], args: tuple[Any, ...]) -> bool:
        try:
            path = path_of(args)
        except (OSError, TypeError, IndexError):
            return False
        return isinstance(path, str) and os.path.join(os.getcwd(), path).startswith(self._folder)

    def _meet(self, name: str) -> None:
        number = self.count
        self._shared[:8] = struct.pack("q", number + 1)
        case = self._case
        if case is None or not (number == case.number or (case.how == ALL_AFTER and number > case.number)):
            return
        if case.how == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if case.how == MEMORY:
            raise MemoryError
        code = self._chance.choice(ERRORS[name])
        raise OSError(code, os.strerror(code))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the training ended."""

    code: int
    stdout: str
    stderr: str
    num_operations: int
    runs: Path


def run_case(folder: Path, case: Case | None, *, bad: int = -1, code: int = 0, steps: int = 4) -> Ended:
    """Run the script watched, in a fork, with the failure of the case."""
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT.format(steps=steps, bad=bad, code=code))
    runs = folder / "runs"
    injector = Injector(runs, case)
    child = os.fork()
    if child == 0:
        _run_child(folder, injector)
    deadline = time.monotonic() + 300
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return Ended(
        code=os.waitstatus_to_exitcode(ended[1]),
        stdout=(folder / "stdout").read_text(),
        stderr=(folder / "stderr").read_text(),
        num_operations=injector.count,
        runs=runs,
    )


def _run_child(folder: Path, injector: Injector) -> None:
    code = 70
    try:
        os.chdir(folder)
        for name, number in (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        injector.install()
        from roundoff.cli import main

        sys.argv = ["roundoff", "run", "--probe-seconds", "0", "train.py"]
        main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def check_survived(ended: Ended, bare: Ended, case: Case) -> list[str]:
    """Return what is wrong with how a training ended."""
    wrong = []
    if case.how == KILL:
        return _check_opens(ended)
    if ended.code != bare.code:
        wrong.append(f"exit code {ended.code} instead of {bare.code}")
    if ended.stdout != bare.stdout:
        wrong.append(f"another output: {ended.stdout[-200:]!r}")
    if "Traceback" in ended.stderr:
        wrong.append(f"a traceback: {ended.stderr[-900:]}")
    stops = len(re.findall("^roundoff: stopped", ended.stderr, re.M))
    ends = len(re.findall("^roundoff: (?!stopped)", ended.stderr, re.M))
    if stops > 1 or ends > 1:
        wrong.append(f"{stops} + {ends} complaints: {ended.stderr[:900]}")
    return wrong + _check_opens(ended)


def _check_opens(ended: Ended) -> list[str]:
    """Return what is wrong with the folder: one with a run.json can be opened, diagnosed and shown."""
    from roundoff.diagnose import diagnose_run
    from roundoff.errors import RoundoffError
    from roundoff.runs import Run, list_runs

    wrong = []
    for path in sorted(ended.runs.iterdir()) if ended.runs.is_dir() else ():
        if (path / "run.json").exists():
            try:
                run = Run.open(path)
                list(run.iter_events())
                run.metrics(), run.calls(), run.flight()
                diagnose_run(run)
            except RoundoffError as error:
                wrong.append(f"the run cannot be read: {error}")
    list_runs(ended.runs)
    return wrong


def cases(num_operations: int, *, num_cases: int | None, seed: int) -> Iterator[Case]:
    """Yield all cases, or some of them, spread over all operations."""
    everything = [
        Case(number=number, how=how, seed=seed)
        for number in range(num_operations)
        for how in ("", ALL_AFTER, MEMORY, KILL)
    ]
    random.Random(seed).shuffle(everything)
    yield from everything if num_cases is None else everything[:num_cases]


def load() -> None:
    """Import what every case needs, once; torch imports `_dynamo` at an optimizer's first step."""

    import roundoff.cli.run
    import roundoff.diagnose
    import roundoff.report
    import roundoff.watch.watching  # noqa: F401


def campaign(folder: Path, *, num_cases: int | None, seed: int = 0, show: bool = False) -> tuple[int, list[str]]:
    """Run the cases; return how many there were, and what was wrong."""
    load()
    wrong, done = [], 0
    for name, settings in (("healthy", {}), ("nan", {"bad": 2}), ("exit code", {"code": 3})):
        bare = run_case(folder / name, None, **settings)
        assert "Traceback" not in bare.stderr, bare.stderr
        share = None if num_cases is None else num_cases // 3
        for case in cases(bare.num_operations, num_cases=share, seed=seed):
            ended = run_case(folder / f"{name}-{done}", case, **settings)
            found = check_survived(ended, bare, case)
            wrong += [f"{name} {case}: {text}" for text in found]
            done += 1
            if show:
                print(name, case, found or "ok", flush=True)
    return done, wrong


def main() -> int:
    """Run the campaign that the arguments request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every operation and every failure")
    parser.add_argument("--cases", type=int, default=90)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        num_cases = None if arguments.all else arguments.cases
        done, wrong = campaign(Path(folder), num_cases=num_cases, seed=arguments.seed, show=True)
    print(f"{done} cases, {len(wrong)} faults")
    for text in wrong:
        print("-", text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""A process that has torch loaded and runs scripts in forks of itself, bare or under `roundoff run`, in little time.

As a program it serves; `ScriptServer` is how a test talks to it.
"""

from __future__ import annotations

import atexit
import builtins
import faulthandler
import functools
import gc
import importlib
import importlib.machinery
import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

_NEEDED = (
    "torch._dynamo", "torch.distributed.fsdp", "transformers.models.llama.modeling_llama", "roundoff.cli.diagnose",
    "roundoff.cli.run", "roundoff.diagnose", "roundoff.precision", "roundoff.report", "roundoff.watch.watching",
)  # fmt: skip

PATIENCE_SECONDS = 300
"""How long a script may take on a busy machine; then it is killed, and its stacks are in its stderr."""


STDIN = Path(__file__).parent / "kinds" / "stdin.txt"
"""What scripts find on their standard input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a script ended, what it said, and how long it took."""

    codes: list[int]
    stdout: str
    stderr: str
    seconds: float
    cpu_seconds: float

    @property
    def code(self) -> int:
        return max(self.codes, key=abs)


class ScriptServer:
    """Runs scripts one after the other; to be used as a block.

    Args:
        preloaded: modules that scripts find loaded besides those that all need.
    """

    def __init__(self, *preloaded: str) -> None:
        self._preloaded = preloaded

    def __enter__(self) -> ScriptServer:
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        if self._preloaded:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        command = [sys.executable, __file__, *self._preloaded]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=30)

    def run(
        self, words: Sequence[str | Path], *, folder: Path, watched: Sequence[str | Path] | None = None, ranks: int = 1
    ) -> Ended:
        """Run a script with its arguments in `folder`; with `watched`, its options, under `roundoff run`."""
        if watched is not None:
            return self.roundoff(["run", *watched, *words], folder=folder, ranks=ranks)
        return self._ask({"script": [str(word) for word in words]}, folder, ranks)

    def roundoff(self, words: Sequence[str | Path], *, folder: Path, ranks: int = 1) -> Ended:
        """Run a command of ours in `folder`."""
        return self._ask({"roundoff": [str(word) for word in words]}, folder, ranks)

    def _ask(self, what: dict[str, list[str]], folder: Path, ranks: int) -> Ended:
        folder.mkdir(parents=True, exist_ok=True)
        request = {**what, "folder": str(folder), "ranks": ranks}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        stdout = "".join((folder / f"stdout{rank}").read_text() for rank in range(ranks))
        stderr = "".join((folder / f"stderr{rank}").read_text() for rank in range(ranks))
        return Ended(
            codes=answer["codes"],
            stdout=stdout,
            stderr=stderr,
            seconds=answer["seconds"],
            cpu_seconds=answer["cpu_seconds"],
        )


def serve() -> int:
    """Answer requests until there are no more."""
    _load()
    gc.collect()
    gc.freeze()  # or each fork copies all of it as soon as it collects
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        environment = _free_address(request["ranks"]) if request["ranks"] > 1 else {}
        children = []
        for rank in range(request["ranks"]):
            child = os.fork()
            if child == 0:
                _leave(functools.partial(_run, request, rank, environment))
            children.append(child)
        cpu_before = _cpu_seconds_of_children()
        codes = _codes(children, deadline=time.monotonic() + PATIENCE_SECONDS)
        cpu_seconds = _cpu_seconds_of_children() - cpu_before
        print(
            json.dumps({"codes": codes, "seconds": time.perf_counter() - began, "cpu_seconds": cpu_seconds}), flush=True
        )
    return 0


def _cpu_seconds_of_children() -> float:
    """Return the processor time of all children that have ended, with theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _codes(children: Sequence[int], *, deadline: float) -> list[int]:
    """Wait until all children have ended; those that hang print their stacks, and killed."""
    codes: dict[int, int] = {}
    while len(codes) < len(children):
        for child in (child for child in children if child not in codes):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                codes[child] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(child, signal.SIGUSR2)
                time.sleep(1)
                os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    return [codes[child] for child in children]


def _leave(run: Callable[[], None]) -> NoReturn:
    """End a fork as the interpreter would, short of taking apart all that was imported."""
    code: Any = 0
    try:
        run()
    except SystemExit as leaving:
        code = leaving.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _load() -> None:
    """Import, once for all scripts, what most of them and the watch need."""
    for name in (*_NEEDED, *sys.argv[1:]):
        importlib.import_module(name)
    _let_groups_live()


def _let_groups_live() -> None:
    """Never free a process group: torch waits for its threads with Python's lock held, and they may need it.

    A bare script hangs of that about once in a thousand runs, at its end.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    from roundoff.torch_private import keep_process_group

    destroy = dist.destroy_process_group

    @functools.wraps(destroy)
    def destroy_but_keep(*args: Any, **kwargs: Any) -> None:
        for group in distributed_c10d._world.pg_map:
            keep_process_group(group)
        destroy(*args, **kwargs)

    dist.destroy_process_group = destroy_but_keep


def _run(request: dict[str, Any], rank: int, environment: dict[str, str]) -> None:
    os.chdir(request["folder"])
    os.dup2(os.open(STDIN, os.O_RDONLY), 0)
    for name, number in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(f"{name}{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    faulthandler.register(signal.SIGUSR2)
    if environment:
        os.environ.update({**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
    if "roundoff" in request:
        from roundoff.cli import main

        sys.argv = ["roundoff", *request["roundoff"]]
        main()
        return
    sys.argv = request["script"]
    script = os.path.abspath(sys.argv[0])
    sys.path[0] = os.path.dirname(script)
    _run_as_python_does(script)


def _run_as_python_does(script: str) -> None:
    """Run a script in the module `__main__`, which is made as Python makes it and stays until the process ends."""
    main = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", script)
    vars(main).update(__loader__=loader, __builtins__=builtins, __file__=script, __cached__=None, __annotations__={})
    sys.modules["__main__"] = main
    exec(compile(Path(script).read_bytes(), script, "exec"), vars(main))


_PORTS = itertools.count(20_000 + os.getpid() % 500 * 20)
"""Below those that systems assign automatically, so that no one takes one between finding it free and its use."""


def _free_address(ranks: int) -> dict[str, str]:
    for port in _PORTS:
        with socket.socket() as free:
            try:
                free.bind(("localhost", port))
            except OSError:
                continue
            break
    return {
        "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(serve())

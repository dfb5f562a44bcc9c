"""What recording a step costs, next to what other tools cost: CPU time as a ratio to the plain step.

python benchmarks/record_against_peers.py [--repeats 7] [--without-msprobe] [--json]

msprobe gets a virtual environment of its own in .benchmarks/msprobe, made on first use (about 550 MB, with a network).
It sees the torch of this one, so that every tool runs on the same build.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from models import STEPS

ROOT = Path(__file__).resolve().parent.parent
MSPROBE = "mindstudio-probe==26.2.0"
OURS = "roundoff, every op"
PLAIN = "plain"
HASHES = "DebugMode, hashes"
STATISTICS = "msprobe statistics, L1"
Step = Callable[[], float]


class NotAvailable(Exception):
    """A peer cannot be measured here; the text says why."""


def cpu_seconds(step: Step) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


# -- tools that share this process -------------------------------------------------------------------------------------


def recorded(model: torch.nn.Module, step: Step, folder: Path) -> float:
    """Record two steps and time the second, which also writes the first to disk."""
    from roundoff.record import recording  # not there in the environment of msprobe

    with recording(model, to=folder):
        step()
        seconds = cpu_seconds(step)
    shutil.rmtree(folder)
    return seconds


def debug_mode(step: Step, hash_fn: str | None) -> float:
    """Time a step under DebugMode; with `hash_fn`, a hash of every output is stored."""
    from torch.utils._debug_mode import DebugMode

    def logged() -> float:
        with DebugMode() as mode, DebugMode.log_tensor_hashes(hash_fn) if hash_fn else contextlib.nullcontext():
            loss = step()
        assert len(mode.logs) > 100
        return loss

    return cpu_seconds(logged)


def anomaly(step: Step) -> float:
    with torch.autograd.set_detect_anomaly(True):
        return cpu_seconds(step)


# -- msprobe, in a process of its own ----------------------------------------------------------------------------------


def msprobe_python() -> Path:
    """Return the interpreter of an environment with msprobe and our torch; make it if it is not there."""
    home = ROOT / ".benchmarks" / "msprobe"
    python = home / "bin" / "python"
    if not python.exists() or not _has_msprobe(python):
        print(f"Installing {MSPROBE} into {home} ...", file=sys.stderr)
        try:
            venv.create(home, clear=True, with_pip=True)
            library = sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)})
            (Path(library) / "torch-from-roundoff.pth").write_text(sysconfig.get_path("purelib") + "\n")
            command = [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), MSPROBE]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800)
        except subprocess.CalledProcessError as error:
            raise NotAvailable(f"{MSPROBE} could not be installed: {_last_line(error.stderr)}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotAvailable(f"{MSPROBE} could not be installed: {error}") from error
        if not _has_msprobe(python):
            raise NotAvailable(f"{MSPROBE} was installed, but it cannot be imported next to torch {torch.__version__}")
    return python


def _has_msprobe(python: Path) -> bool:
    """Whether the environment has msprobe, and the very torch that this process uses."""
    code = "import torch, msprobe.pytorch; print(torch.__file__, torch.__version__)"
    found = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return found.returncode == 0 and _last_line(found.stdout) == f"{torch.__file__} {torch.__version__}"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]


class Worker:
    """A process that trains one step on each request, and reports its CPU time.

    msprobe replaces torch's functions when it starts and does not put them back, so the plain step it is compared with
    runs in a second process of the same environment, in turn with it.
    """

    def __init__(self, python: Path, *, model: str, tool: str) -> None:
        command = [str(python), __file__, "--worker", tool, "--model", model]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def step(self) -> float:
        """Train one step and return its CPU seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("step\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            assert self._process.stderr is not None
            raise NotAvailable(f"it failed: {_last_line(self._process.stderr.read())}")
        return float(answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


def work(tool: str, model_name: str) -> int:
    """Be a worker: one line in, one step, one number out."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # msprobe tells the console about every step
    torch.set_num_threads(1)
    model, step = STEPS[model_name]()
    step()
    with tempfile.TemporaryDirectory() as folder:
        timed = _with_msprobe(model, step, Path(folder)) if tool == "msprobe" else step
        for _ in sys.stdin:
            print(cpu_seconds(timed), file=answers, flush=True)
    return 0


def _with_msprobe(model: torch.nn.Module, step: Step, folder: Path) -> Step:
    from msprobe.pytorch import PrecisionDebugger

    config = folder / "config.json"
    statistics_of_all = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    common = {"task": "statistics", "dump_path": str(folder / "dump"), "rank": [], "step": [], "level": "L1"}
    config.write_text(json.dumps({**common, "async_dump": False, "statistics": statistics_of_all}))
    config.chmod(0o640)
    debugger = PrecisionDebugger(config_path=str(config))

    def dumped() -> float:
        debugger.start(model)
        loss = step()
        debugger.stop()
        debugger.step()
        return loss

    return dumped


@contextlib.contextmanager
def msprobe_workers(python: Path | None, model: str) -> Iterator[tuple[Worker, Worker] | None]:
    if python is None:
        yield None
        return
    workers = Worker(python, model=model, tool="plain"), Worker(python, model=model, tool="msprobe")
    try:
        yield workers
    finally:
        for worker in workers:
            worker.close()


# -- the comparison ----------------------------------------------------------------------------------------------------


def measure(name: str, *, repeats: int, python: Path | None) -> dict[str, dict[str, float]]:
    """Run every tool in turn, each right after a plain step, and return medians of CPU times and of their ratios.

    The first round warms up and does not count.
    """
    model, step = STEPS[name]()
    step()
    plain = functools.partial(cpu_seconds, step)
    with tempfile.TemporaryDirectory() as folder, msprobe_workers(python, name) as workers:
        tools: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
            OURS: (plain, lambda: recorded(model, step, Path(folder) / "run")),
            "DebugMode, names": (plain, lambda: debug_mode(step, None)),
            HASHES: (plain, lambda: debug_mode(step, "hash_tensor")),
            "DebugMode, norms": (plain, lambda: debug_mode(step, "norm")),
            "detect_anomaly": (plain, lambda: anomaly(step)),
        }
        if workers is not None:
            tools[STATISTICS] = (workers[0].step, workers[1].step)
        rounds = [{tool: (before(), timed()) for tool, (before, timed) in tools.items()} for _ in range(repeats + 1)]
    found = {PLAIN: {"ms": 1e3 * statistics.median(pair[0] for r in rounds[1:] for pair in r.values()), "ratio": 1.0}}
    for tool in tools:
        pairs = [r[tool] for r in rounds[1:]]
        found[tool] = {
            "ms": 1e3 * statistics.median(seconds for _, seconds in pairs),
            "ratio": statistics.median(seconds / before for before, seconds in pairs),
        }
    return found


def show(results: dict[str, dict[str, dict[str, float]]]) -> None:
    names = list(results)
    print(f"{'':26}" + "".join(f"{name:>18}" for name in names))
    for tool in results[names[0]]:
        cells = (results[name][tool] for name in names)
        print(f"{tool:26}" + "".join(f"{cell['ratio']:8.2f} x{cell['ms']:5.0f} ms" for cell in cells))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--without-msprobe", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", choices=["plain", "msprobe"], help=argparse.SUPPRESS)
    parser.add_argument("--model", choices=list(STEPS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options.worker, options.model)
    torch.set_num_threads(1)
    python, reason = None, "it was not requested" if options.without_msprobe else None
    try:
        python = None if options.without_msprobe else msprobe_python()
        results = {name: measure(name, repeats=options.repeats, python=python) for name in STEPS}
    except NotAvailable as error:
        reason = str(error)
        results = {name: measure(name, repeats=options.repeats, python=None) for name in STEPS}
    slower = [
        f"{name}: {peer}"
        for name, got in results.items()
        for peer in (HASHES, STATISTICS)
        if peer in got and got[OURS]["ratio"] >= got[peer]["ratio"]
    ]
    if options.json:
        print(json.dumps({"record_against_peers": results, "msprobe": reason or MSPROBE, "not_faster_than": slower}))
    else:
        show(results)
        print(f"CPU time of one training step, one thread, medians of {options.repeats}; must be faster than "
              f"{HASHES} and {STATISTICS}.")  # fmt: skip
        if reason is not None:
            print(f"msprobe was not measured: {reason}.")
        measured = [peer for peer in (HASHES, STATISTICS) if all(peer in got for got in results.values())]
        print(f"not faster than {'; '.join(slower)}" if slower else f"faster than {' and '.join(measured)}.")
    return int(bool(slower))


if __name__ == "__main__":
    sys.exit(main())

"""What watching a training costs: whole processes, bare and under `roundoff run`, in CPU time and memory.

python benchmarks/watch_step.py [ROW ...] [--rounds N] [--steps N] [--seconds N] [--json]

A row is a kind of training in loops.py, and can be measured alone; without any, all but the slow ones (reinforce, ode,
lbfgs, gpt, resnet, tiny, gpt2) are measured. After `--seconds`, by default ten minutes, no further row begins: those
left out are named. Both processes run at once, and swap their two cores every half second, so that what else the
machine does slows both. (Stopping them in turn would double the time on the clock, and with it the watch's budget.)
The cost of a step is a slope: CPU time over steps in the second half of the training, when the first steps, and what a
watch tapes of every training, are over. The means, and the totals, have all of that.

python benchmarks/watch_step.py --in-process [--every-step] [--peers] [--json]

alternates plain and watched stretches of steps within one process, and compares other tools in the same way.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models import STEPS

MSPROBE = Path(__file__).parents[1] / ".benchmarks" / "msprobe" / "bin" / "python"
"""Made by record_against_peers.py; without it msprobe's monitor is left out."""

MUST = {"budget": {"ResNet": 1.03, "GPT": 1.03}, "every step": {"ResNet": 1.12, "GPT": 1.27}}
TOWARDS = {"budget": {"ResNet": 1.01, "GPT": 1.01}, "every step": {"ResNet": 1.12, "GPT": 1.27}}
FIRST_STEPS = 3


@dataclass(frozen=True)
class Row:
    """One training to measure, and what it may cost."""

    num_steps: int
    max_ratio: float | None = None
    """Of a watched step to a bare one."""
    max_more_us: float | None = None
    """Microseconds a step, instead of a ratio."""
    is_slow: bool = False
    num_updates: int = 1
    """Steps of the optimizer in a step of the loop: the first 20 steps of a training are 20 of these."""


ROWS = {
    "small-mlp": Row(12_000, max_more_us=150),
    "manual": Row(12_000, max_more_us=150),
    "dqn": Row(24_000, max_ratio=1.2),
    "ppo": Row(80, max_ratio=1.2, num_updates=16),
    "small-gpt": Row(4000, max_ratio=1.03),
    "reinforce": Row(30, max_ratio=1.2, is_slow=True),
    "ode": Row(40, max_ratio=1.2, is_slow=True),
    "lbfgs": Row(20, max_ratio=1.2, is_slow=True),
    "gpt": Row(100, max_ratio=1.03, is_slow=True),
    "resnet": Row(60, max_ratio=1.03, is_slow=True),
    "tiny": Row(1_000_000, max_more_us=150, is_slow=True),
    "gpt2": Row(30, max_ratio=1.03, is_slow=True),
}
MAX_FIRST_SECONDS, MAX_FIRST_RATIO, MAX_STEP_0_SECONDS, MAX_MEMORY_RATIO = 3.0, 2.0, 5.0, 1.25
SNAPSHOT_MB = 2048
"""Passed as --snapshot-memory, since the default depends on the machine."""
MEMORY = ("--snapshot-memory", f"{SNAPSHOT_MB}MB")
MAX_FOLDER_BYTES = 50 * 2**20
LOOPS = Path(__file__).parent / "loops.py"
SWAP_SECONDS = 0.5


class Training:
    """One training in a process group of its own, bare or watched."""

    def __init__(self, row: str, folder: Path, *, num_steps: int, watched: bool, options: list[str]) -> None:
        self._row, self._num_steps, self._watched = row, num_steps, watched
        self._marks, self._runs, self._output = folder / "marks.json", folder / "runs", folder / "output.txt"
        run = ["-m", "roundoff", "run", "--runs", str(self._runs), *MEMORY, *options] if watched else []
        self._command = [sys.executable, *run, str(LOOPS), row, str(num_steps), str(self._marks)]
        folder.mkdir()
        with self._output.open("w") as output:
            env = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                self._command, stdout=output, stderr=output, env=env, start_new_session=True
            )
        self._usage: Any = None

    def use_core(self, core: int) -> None:
        """Move all threads of all its processes to one core."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it may have ended
                group = int(stat.read_text().rpartition(")")[2].split()[2])
                for task in (stat.parent / "task").iterdir() if group == self._process.pid else ():
                    os.sched_setaffinity(int(task.name), {core})

    def has_ended(self) -> bool:
        """Say whether it is over."""
        pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        if pid and status:
            raise SystemExit(f"{' '.join(self._command)} ended with {status}: {self._output.read_text()[-2000:]}")
        self._usage = usage
        return pid != 0

    def results(self) -> dict[str, float]:
        """Return what it took."""
        marks = {int(step): seconds for step, seconds in json.loads(self._marks.read_text()).items()}
        late = [step for step in sorted(marks) if step >= self._num_steps // 2]
        num_first = min(-(-20 // ROWS[self._row].num_updates), self._num_steps)
        slopes = [(marks[b] - marks[a]) / (b - a) for a, b in itertools.pairwise(late)]
        got = {
            "step_us": statistics.median(slopes) * 1e6,
            "mean_step_us": (marks[late[-1]] - marks[late[0]]) / (late[-1] - late[0]) * 1e6,
            "last_step_us": slopes[-1] * 1e6,
            "step_0_s": marks[1] - marks[0],
            "first_20_s": marks[num_first] - marks[0],
            "total_s": self._usage.ru_utime + self._usage.ru_stime,
            "peak_mb": self._usage.ru_maxrss / 1024,  # of the largest process: the training itself
        }
        if self._watched:
            got["folder_mb"] = sum(file.stat().st_size for file in self._runs.rglob("*") if file.is_file()) / 2**20
            text = self._output.read_text()
            said = re.search(r"watched [^\n]*", text)
            print(f"    {said.group() if said else text[-500:]}", file=sys.stderr)
        return got


def run_side_by_side(trainings: list[Training]) -> None:
    """Wait until two trainings have ended, which swap their cores every moment."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    running = list(trainings)
    while running:
        for training, core in zip(trainings, cores, strict=False):
            if training in running:
                training.use_core(core)
        time.sleep(SWAP_SECONDS)
        running = [training for training in running if not training.has_ended()]
        cores.reverse()


def measure_row(row: str, *, rounds: int, num_steps: int, options: list[str]) -> dict[str, dict[str, float]]:
    """Let bare and watched processes run side by side; medians over the rounds."""
    found: dict[str, list[dict[str, float]]] = {"bare": [], "watched": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            trainings = {
                kind: Training(
                    row, Path(folder) / kind, num_steps=num_steps, watched=kind == "watched", options=options
                )
                for kind in found
            }
            run_side_by_side(list(trainings.values()))
            for kind, training in trainings.items():
                found[kind].append(training.results())
    return {kind: {key: statistics.median(got[key] for got in all_got) for key in all_got[0]}
            for kind, all_got in found.items()}  # fmt: skip


def judge_row(row: str, got: dict[str, dict[str, float]], *, snapshot_mb: float) -> tuple[str, list[str]]:
    """Return a line about a row, and the limits that it misses."""
    bare, watched, limits = got["bare"], got["watched"], ROWS[row]
    ratio, more_us = watched["step_us"] / bare["step_us"], watched["step_us"] - bare["step_us"]
    more_first = watched["first_20_s"] - bare["first_20_s"]
    missed = []
    if limits.max_ratio is not None and ratio > limits.max_ratio:
        missed.append(f"step {ratio:.2f} x, must {limits.max_ratio} x")
    if limits.max_more_us is not None and more_us > limits.max_more_us:
        missed.append(f"step +{more_us:.0f} us, must +{limits.max_more_us:.0f} us")
    if more_first > max(MAX_FIRST_SECONDS, (MAX_FIRST_RATIO - 1) * bare["first_20_s"]):
        missed.append(f"first 20 steps +{more_first:.1f} s")
    if watched["step_0_s"] - bare["step_0_s"] > MAX_STEP_0_SECONDS:
        missed.append(f"step 0 {watched['step_0_s']:.1f} s, must {MAX_STEP_0_SECONDS} s")
    if watched["peak_mb"] > MAX_MEMORY_RATIO * bare["peak_mb"] + snapshot_mb:
        missed.append(f"memory {watched['peak_mb']:.0f} MB, must {MAX_MEMORY_RATIO} x + {snapshot_mb:.0f} MB")
    if watched["folder_mb"] * 2**20 > MAX_FOLDER_BYTES:
        missed.append(f"run folder {watched['folder_mb']:.0f} MB")
    line = (
        f"{row}: step {bare['step_us']:.0f} -> {watched['step_us']:.0f} us ({ratio:.3f} x, +{more_us:.0f} us; last "
        f"{watched['last_step_us']:.0f}, mean {bare['mean_step_us']:.0f} -> {watched['mean_step_us']:.0f}); step 0 "
        f"{bare['step_0_s']:.2f} -> {watched['step_0_s']:.2f} s; first 20 {bare['first_20_s']:.2f} -> "
        f"{watched['first_20_s']:.2f} s; total {bare['total_s']:.1f} -> {watched['total_s']:.1f} s; peak "
        f"{bare['peak_mb']:.0f} -> {watched['peak_mb']:.0f} MB; run folder {watched['folder_mb']:.1f} MB"
    )
    return line, missed


def measure_rows(
    rows: list[str], *, rounds: int, num_steps: int | None, options: list[str], seconds: float, as_json: bool
) -> int:
    """Measure and print some rows, until that has taken so long; return 1 if one misses a limit or was left out."""
    results, any_missed, began = {}, False, time.perf_counter()
    for row in rows:
        if time.perf_counter() - began > seconds:
            print(f"not measured, {seconds:.0f} s are over: {' '.join(rows[rows.index(row) :])}", file=sys.stderr)
            any_missed = True
            break
        got = measure_row(row, rounds=rounds, num_steps=num_steps or ROWS[row].num_steps, options=options)
        line, missed = judge_row(row, got, snapshot_mb=SNAPSHOT_MB)
        results[row], any_missed = got, any_missed or bool(missed)
        if not as_json:
            print(line + "".join(f"\n  MISSED: {one}" for one in missed), flush=True)
    if as_json:
        print(json.dumps(results))
    return int(any_missed)


def cpu_seconds(step: Callable[[], float], num_steps: int) -> float:
    began = time.process_time()
    for _ in range(num_steps):
        step()
    return time.process_time() - began


def measure(name: str, *, every_step: bool, rounds: int, num_steps: int, folder: Path) -> dict[str, float]:
    """Alternate plain and watched stretches of steps, so that what else runs on the machine falls on both.

    Each watched stretch is a watch of its own whose start (the steps that are watched fully, and those recorded) is
    not measured.
    """
    from roundoff.watch.settings import WatchSettings  # not there in the environment of msprobe
    from roundoff.watch.watching import start_watching

    _, step = STEPS[name]()
    step()
    plain = watched = 0.0
    costs = []
    settings = WatchSettings(every_step=every_step, full_steps=FIRST_STEPS, recorded_steps=(), probe_seconds=0)
    for round_ in range(rounds):
        plain += cpu_seconds(step, num_steps // 2)
        run = folder / f"{name}-{round_}"
        watch = start_watching(to=run, settings=settings)
        with watch.running():
            cpu_seconds(step, FIRST_STEPS + 1)
            watched += cpu_seconds(step, num_steps)
            costs.append(watch.cost)
        plain += cpu_seconds(step, num_steps - num_steps // 2)
        shutil.rmtree(run)
    return {
        "plain_ms": plain / rounds / num_steps * 1e3,
        "ratio": watched / plain,
        "own_cost": sum(costs) / rounds,
    }


@contextlib.contextmanager
def detect_anomaly(model: nn.Module) -> Iterator[None]:
    with torch.autograd.set_detect_anomaly(True):
        yield


@contextlib.contextmanager
def debug_underflow_overflow(model: nn.Module) -> Iterator[None]:
    from transformers.debug_utils import DebugUnderflowOverflow

    with contextlib.redirect_stdout(None):
        DebugUnderflowOverflow(model, max_frames_to_save=1)
        yield


@contextlib.contextmanager
def msprobe_monitor(model: nn.Module) -> Iterator[None]:
    """Gradients of weights, inputs and outputs of every module, and the optimizer: what it is used for."""
    from msprobe.pytorch import TrainerMon

    optimizer = next(found for found in gc.get_objects() if isinstance(found, torch.optim.Optimizer))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MONITOR_OUTPUT_DIR"] = folder
        config = Path(folder) / "config.json"
        targets = {name: {} for name, module in model.named_modules() if name}
        requested = {
            "wg_distribution": True,
            "xy_distribution": True,
            "mv_distribution": True,
            "ops": ["norm", "max", "nans"],
        }
        config.write_text(json.dumps({"targets": targets, "format": "csv", "all_xy": True, **requested}))
        monitor = TrainerMon(str(config), params_have_main_grad=False)
        monitor.set_monitor(model, optimizer, grad_acc_steps=1)
        yield


PEERS = {"torch detect_anomaly": detect_anomaly, "transformers DebugUnderflowOverflow": debug_underflow_overflow}


def measure_peer(name: str, peer: str, *, num_steps: int) -> float:
    model, step = STEPS[name]()
    step()
    plain = cpu_seconds(step, num_steps)
    with PEERS[peer](model):
        step()
        watched = cpu_seconds(step, num_steps)
    return watched / plain


def measure_msprobe(name: str) -> float:
    """Measure msprobe's monitor in an environment of its own: ratio to the plain step there."""
    command = [str(MSPROBE), __file__, "--msprobe-worker", "--only", name]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(answer.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], metavar="ROW")
    parser.add_argument("--option", action="append", default=[], help="passed on to `roundoff run`")
    parser.add_argument("--in-process", action="store_true")
    parser.add_argument("--every-step", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no further row after so long")
    parser.add_argument("--only")
    parser.add_argument("--msprobe-worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.msprobe_worker:
        PEERS["msprobe"] = msprobe_monitor
        print(measure_peer(options.only, "msprobe", num_steps=10))
        return 0
    if not (options.in_process or options.every_step or options.peers):
        rows = options.rows or [row for row, limits in ROWS.items() if not limits.is_slow]
        return measure_rows(
            rows,
            rounds=options.rounds or 1,
            num_steps=options.steps,
            options=options.option,
            seconds=options.seconds,
            as_json=options.json,
        )
    kind = "every step" if options.every_step else "budget"
    results, missed = {}, False
    with tempfile.TemporaryDirectory() as folder:
        for name in STEPS if options.only is None else [options.only]:
            got = measure(
                name,
                every_step=options.every_step,
                rounds=options.rounds or 6,
                num_steps=options.steps or 20,
                folder=Path(folder),
            )
            missed |= got["ratio"] > MUST[kind][name]
            if not options.json:
                print(
                    f"{name}: watched ({kind}) {got['ratio']:.3f} x the plain step of {got['plain_ms']:.0f} ms; "
                    f"by its own count {100 * got['own_cost']:.1f} %; must {MUST[kind][name]}"
                )
            if options.peers:
                for peer in PEERS:
                    got[peer] = measure_peer(name, peer, num_steps=10)
                    if not options.json:
                        print(f"  {peer}: {got[peer]:.3f} x")
                if MSPROBE.exists():
                    got["msprobe monitor"] = measure_msprobe(name)
                    if not options.json:
                        print(f"  msprobe monitor: {got['msprobe monitor']:.3f} x")
            results[name] = got
    if options.json:
        print(json.dumps(results))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

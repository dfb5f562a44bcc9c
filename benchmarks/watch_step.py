"""What watching a training costs: CPU time of watched steps, after the first twenty, against plain ones.

python benchmarks/watch_step.py [--every-step] [--peers] [--json]

Sampled work falls on some steps only, so totals over many steps are compared, not medians of single ones.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from models import STEPS

MSPROBE = Path(__file__).parents[1] / ".benchmarks" / "msprobe" / "bin" / "python"
"""Made by record_against_peers.py; without it msprobe's monitor is left out."""

MUST = {"budget": {"ResNet": 1.03, "GPT": 1.03}, "every step": {"ResNet": 1.12, "GPT": 1.27}}
TOWARDS = {"budget": {"ResNet": 1.01, "GPT": 1.01}, "every step": {"ResNet": 1.12, "GPT": 1.27}}
FIRST_STEPS = 3


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
        asked = {
            "wg_distribution": True,
            "xy_distribution": True,
            "mv_distribution": True,
            "ops": ["norm", "max", "nans"],
        }
        config.write_text(json.dumps({"targets": targets, "format": "csv", "all_xy": True, **asked}))
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every-step", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only")
    parser.add_argument("--msprobe-worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.msprobe_worker:
        PEERS["msprobe"] = msprobe_monitor
        print(measure_peer(options.only, "msprobe", num_steps=10))
        return 0
    kind = "every step" if options.every_step else "budget"
    results, missed = {}, False
    with tempfile.TemporaryDirectory() as folder:
        for name in STEPS if options.only is None else [options.only]:
            got = measure(
                name, every_step=options.every_step, rounds=options.rounds, num_steps=options.steps, folder=Path(folder)
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

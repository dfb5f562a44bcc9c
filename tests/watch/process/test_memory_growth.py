"""Memory that grows is traced to the variable and the line that keeps it; healthy processes are not looked at."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.diagnose import diagnose_run
from roundoff.runs import Finding, Metrics, Run, RunInfo, RunWriter
from roundoff.watch.process.memory_growth import MIB, MIN_GROWTH, MemoryFollower, levels_off, steady_growth
from roundoff.watch.watching import watching

NUM_STEPS = 90
HERE = "tests/watch/process/test_memory_growth.py"

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell memory")


def line_of(text: str) -> str:
    """Return the place of the line of this file that ends with a mark."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}"))
    return f"{HERE}:{number}"


class Training:
    """A small training, followed step by step."""

    def __init__(self, folder: Path) -> None:
        self.writer = RunWriter.create(folder, RunInfo())
        self.follower = MemoryFollower(self.writer)
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def losses(self, num_steps: int = NUM_STEPS) -> Iterator[Tensor]:
        """Give one loss a step, its graph intact."""
        x, y = torch.randn(256, 64), torch.randint(0, 10, (256,))
        for step in range(num_steps):
            loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward(retain_graph=True)
            self.optimizer.step()
            yield loss
            del loss
            self.writer.write(Metrics(step=step))
            self.follower.step_closed(step)

    def findings(self) -> tuple[Finding, ...]:
        self.follower.close()
        self.writer.close()
        return diagnose_run(Run.open(self.writer.folder)).findings


def give_free_memory_back() -> None:
    """Have the C library return what it keeps for later, which it does by itself only now and then."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture
def training(tmp_path: Path) -> Training:
    """Start from a process without memory that earlier tests have freed: growth would hide in it."""
    give_free_memory_back()
    return Training(tmp_path / "run")


def test_losses_kept_with_their_graphs_are_a_leak_with_its_line(training: Training) -> None:
    kept = []
    for loss in training.losses():
        kept.append(loss)  # list
    (finding,) = training.findings()
    assert (finding.rule, finding.source) == ("graph-leak", line_of("list"))
    assert finding.why.startswith("kept holds ")
    assert "MB per step" in finding.why


def test_a_sum_of_losses_is_a_leak_with_its_line(training: Training) -> None:
    total: Any = 0
    for loss in training.losses():
        total = total + loss  # sum
    (finding,) = training.findings()
    assert (finding.rule, finding.source) == ("graph-leak", line_of("sum"))
    assert finding.why.startswith("total is connected to the graphs of all steps since")
    assert finding.fix.startswith("add numbers, not tensors: total + loss.item()")


class History:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.outputs: dict[str, list[Tensor]] = {"loss": []}

    def add(self, output: Tensor) -> None:
        self.outputs["loss"].append(output)  # attribute


def test_an_attribute_that_keeps_graphs_is_named_with_the_line_in_its_class(training: Training) -> None:
    history = History()
    for loss in training.losses():
        history.add(loss)
    (finding,) = training.findings()
    assert (finding.rule, finding.source) == ("graph-leak", line_of("attribute"))
    assert finding.why.startswith("history.outputs['loss'] holds ")


EVERYTHING: list[tuple[int, Tensor]] = []


def keep_globally(number: int, x: Tensor) -> None:
    EVERYTHING.append((number, x))  # global


def test_tensors_that_are_kept_without_a_graph_are_memory_growth(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "EVERYTHING", [])  # the one that importing has made is out of sight
    for number, _ in enumerate(training.losses()):
        keep_globally(number, torch.randn(512, 512))
    (finding,) = training.findings()
    assert (finding.rule, finding.source) == ("memory-growth", line_of("global"))
    assert finding.why.startswith("EVERYTHING grew by ")


def keep_in_deque(limit: int) -> Callable[[int, Tensor], None]:
    kept: deque[Tensor] = deque(maxlen=limit)
    return lambda number, x: kept.append(x)


def keep_in_ring(limit: int) -> Callable[[int, Tensor], None]:
    kept: list[Tensor] = []

    def keep(number: int, x: Tensor) -> None:
        if len(kept) < limit:
            kept.append(x)
        else:
            kept[number % limit] = x

    return keep


def keep_in_cache(limit: int) -> Callable[[int, Tensor], None]:
    kept: dict[int, Tensor] = {}

    def keep(number: int, x: Tensor) -> None:
        kept[number] = x
        if len(kept) > limit:
            del kept[next(iter(kept))]

    return keep


@pytest.mark.parametrize("keeping", [keep_in_deque, keep_in_ring, keep_in_cache])
def test_a_buffer_that_fills_up_and_then_stays_is_no_growth(keeping: Any, training: Training) -> None:
    keep = keeping(66)
    for number, _ in enumerate(training.losses(220)):
        keep(number, torch.randn(512, 512))
    assert training.findings() == ()
    assert len(Run.open(training.writer.folder).memory()) > 2  # it did look like growth


def test_a_deque_with_a_limit_may_still_be_filling_at_the_end(training: Training) -> None:
    keep = keep_in_deque(10_000)
    for number, _ in enumerate(training.losses()):
        keep(number, torch.randn(512, 512))
    assert training.findings() == ()


def test_a_deque_without_a_limit_is_memory_growth(training: Training) -> None:
    kept: deque[Tensor] = deque()
    for _ in training.losses():
        kept.append(torch.randn(512, 512))  # deque
    (finding,) = training.findings()
    assert (finding.rule, finding.source) == ("memory-growth", line_of("deque"))
    assert finding.why.startswith("kept grew by ")


def test_a_list_that_grows_next_to_a_full_buffer_is_named(training: Training) -> None:
    keep, kept = keep_in_deque(10_000), []
    for number, _ in enumerate(training.losses()):
        keep(number, torch.randn(512, 512))
        kept.append(torch.randn(256, 512))  # next to it
    (finding,) = training.findings()
    assert (finding.rule, finding.source) == ("memory-growth", line_of("next to it"))


@pytest.mark.parametrize("keep", [lambda loss: loss.item(), lambda loss: None], ids=["numbers", "nothing"])
def test_a_healthy_training_is_not_looked_at(keep: Callable[[Tensor], object], training: Training) -> None:
    kept = []
    for loss in training.losses():
        kept.append(keep(loss))
    assert training.findings() == ()
    assert Run.open(training.writer.folder).memory() == []


def test_a_cache_that_fills_up_and_levels_off_is_silent(training: Training) -> None:
    cache = []
    for number, _ in enumerate(training.losses()):
        if number < 40:
            cache.append(torch.randn(512, 512))
    assert training.findings() == ()


def test_memory_that_is_given_back_before_the_end_is_silent(training: Training) -> None:
    kept = []
    for number, _ in enumerate(training.losses()):
        kept.append(torch.randn(1024, 512))
        if number == NUM_STEPS - 5:
            kept.clear()
            give_free_memory_back()
    assert training.findings() == ()


def test_a_look_leaves_no_reference_to_local_variables_behind(training: Training) -> None:
    """Up to Python 3.12 a frame whose variables are read keeps a copy of them."""
    kept = [x := torch.ones(3)]
    for loss in training.losses():
        kept.append(loss)
    before = sys.getrefcount(x)
    training.follower._mark = 0
    training.follower.step_closed(NUM_STEPS)
    assert sys.getrefcount(x) == before


def test_what_the_watch_itself_keeps_is_no_growth(tmp_path: Path) -> None:
    own = [0]
    follower = MemoryFollower(RunWriter.create(tmp_path / "run", RunInfo()), own_bytes=lambda: own[0])
    before = follower._resident()
    own[0] = 2**30
    assert follower._resident() < before - 2**29


def test_the_file_is_closed_at_the_end(training: Training) -> None:
    before = len(os.listdir("/proc/self/fd"))
    training.follower.close()
    training.follower.step_closed(1)
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_following_costs_microseconds(tmp_path: Path) -> None:
    follower = MemoryFollower(RunWriter.create(tmp_path / "run", RunInfo()))
    began = time.process_time()
    for step in range(5000):
        follower.step_closed(step)
    assert (time.process_time() - began) / 5000 < 20e-6


def samples(sizes: list[float]) -> list[tuple[int, int]]:
    return [(step, int(size * MIB)) for step, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "is_steady"),
    [
        ([100 + step for step in range(64)], True),
        ([100 + step + 50 * (step % 9 == 0) for step in range(64)], True),
        ([100 + 60 * min(step, 20) for step in range(64)], False),
        ([100.0 + 60 * (step > 30) for step in range(64)], False),
        ([100.0] * 64, False),
        ([100 + step % 16 for step in range(64)], False),
        ([100 + 0.001 * step for step in range(64)], False),
    ],
    ids=["growing", "growing with peaks", "levelling off", "one jump", "flat", "sawtooth", "a list of numbers"],
)
def test_only_growth_that_goes_on_is_steady(sizes: list[float], is_steady: bool) -> None:
    assert (steady_growth(samples(sizes)) is not None) == is_steady


@pytest.mark.parametrize(
    ("sizes", "is_over"),
    [
        ([100 + step for step in range(64)], False),
        ([100 + step + 50 * (step % 9 == 0) for step in range(64)], False),
        ([100 + step**2 / 64 for step in range(64)], False),
        ([100 + min(step, 40) for step in range(64)], True),
        ([100 + min(step, 40) + 50 * (step % 9 == 0) for step in range(64)], True),
        ([100 + 60 * step**0.5 for step in range(64)], False),
        ([100 + 10 * min(step, 8) for step in range(64)], True),
    ],
    ids=["growing", "growing with peaks", "faster", "full", "full with peaks", "slower", "full early"],
)
def test_growth_that_was_over_long_before_the_end_has_levelled_off(sizes: list[float], is_over: bool) -> None:
    assert levels_off(samples(sizes)) == is_over


@pytest.mark.parametrize(("in_use", "is_silent"), [(440, True), (700, False)], ids=["free", "in use"])
def test_growth_that_nothing_explains_must_be_in_use_at_the_end(tmp_path: Path, in_use: int, is_silent: bool) -> None:
    writer = RunWriter.create(tmp_path / "run", RunInfo())
    follower = MemoryFollower(writer)
    follower._start = (19, 400 * MIB)
    follower._samples = samples([400 + 7 * step for step in range(64)])
    follower._read_without_ours = lambda: in_use * MIB
    follower.close()
    writer.close()
    (look,) = Run.open(tmp_path / "run").memory()
    assert (look.rss_bytes, look.goes_on) == (in_use * MIB, not is_silent)


def test_the_least_growth_scales_with_the_model(tmp_path: Path) -> None:
    follower = MemoryFollower(RunWriter.create(tmp_path / "run", RunInfo()), model_bytes=2**32)
    assert follower._least_growth > 10 * MIN_GROWTH


class Adam:
    """A training of 2 million parameters that is watched: states of 24 MB, of which the watch keeps copies."""

    def __init__(self, folder: Path, *, leaks: bool, num_holes: int = 0) -> None:
        give_free_memory_back()
        blocks = [torch.ones(2**18) for _ in range(2 * num_holes)]
        del blocks[::2]  # the allocator now has holes that what is kept fills first
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
        optimizer = torch.optim.Adam(model.parameters())
        kept = []
        with watching(to=folder):
            for _ in range(160):
                optimizer.zero_grad()
                x = torch.randn(32, 512)
                F.mse_loss(model(x), x).backward()
                optimizer.step()
                if leaks:
                    kept.append(torch.ones(2**18))
        self.rules = {finding.rule for finding in diagnose_run(Run.open(folder)).findings}


@pytest.mark.parametrize("num_holes", [0, 150])
def test_what_the_watch_keeps_is_not_taken_for_a_leak(tmp_path: Path, num_holes: int) -> None:
    assert "memory-growth" not in Adam(tmp_path / "run", leaks=False, num_holes=num_holes).rules


@pytest.mark.parametrize("num_holes", [0, 150])
def test_a_leak_is_seen_next_to_what_the_watch_keeps(tmp_path: Path, num_holes: int) -> None:
    assert "memory-growth" in Adam(tmp_path / "run", leaks=True, num_holes=num_holes).rules

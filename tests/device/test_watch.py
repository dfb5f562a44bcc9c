"""A watched training on an accelerator: untouched, few waits, and a NaN is traced to its origin as on the CPU."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.diagnose import diagnose_run
from roundoff.kernels.host_copies import read_now
from roundoff.record.loop.sites import Sites
from roundoff.runs import Run
from roundoff.watch import measures
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watching import start_watching, watching
from tests.device.simulated_device import DeviceCounts, Execution, behaving, counting

NUM_STEPS = 34
MEASURED = ("l2", "absmax", "grad_l2", "grad_absmax", "grad_zero_share", "changed_fraction", "update_l2")


def train(
    device: str, *, counts: list[DeviceCounts] | None = None, bad: int | None = None, dropout: float = 0.1
) -> list[Tensor]:
    """Train on fixed data, with a NaN in one batch if wanted, and return the weights; count what each step does."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 3))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(16, 8, generator=generator) for _ in range(NUM_STEPS)]
    targets = [x[:, :3].argmax(1).to(device) for x in batches]
    if bad is not None:
        batches[bad][3, 2] = math.nan
    for x, y in zip([x.to(device) for x in batches], targets, strict=True):
        with counting() as counted:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if counts is not None:
            counts.append(counted)
    return [p.detach().cpu() for p in model.parameters()]


def watch(
    folder: Path, device: str, *, counts: list[DeviceCounts] | None = None, bad: int | None = None, dropout: float = 0.1
) -> Run:
    with watching(to=folder):
        watched = train(device, counts=counts, bad=bad, dropout=dropout)
    run = Run.open(folder)
    assert list(run.failures()) == []
    assert (
        all(torch.equal(x, y) for x, y in zip(watched, train(device, bad=bad, dropout=dropout), strict=True))
        or bad is not None
    )
    return run


@pytest.mark.parametrize("execution", ["at once", "when waited for"])
def test_the_run_is_that_of_the_cpu(tmp_path: Path, execution: Execution) -> None:
    with behaving(execution=execution):
        there = watch(tmp_path / "there", "sim", dropout=0.0)
    here = watch(tmp_path / "here", "cpu", dropout=0.0)

    a, b = here.metrics()[0], there.metrics()[0]
    assert a.loss == pytest.approx(b.loss, rel=1e-6)
    assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-6)
    assert a.update_norm == pytest.approx(b.update_norm, rel=1e-5)
    for name in MEASURED:
        x, y = (run.parameters()[name].to_list()[:6] for run in (here, there))
        assert x == pytest.approx(y, rel=1e-5, nan_ok=True), name
    assert diagnose_run(there).findings == diagnose_run(here).findings == ()


@pytest.mark.parametrize(
    ("device", "bad", "execution"),
    [
        ("sim:0", 12, "at once"),
        ("sim:1", 24, "at once"),
        ("sim:0", 24, "when waited for"),  # its loss arrives when the last step of its window is over
        ("sim:0", NUM_STEPS - 1, "when waited for"),
    ],
)
def test_a_nan_is_traced_to_its_batch(tmp_path: Path, device: str, bad: int, execution: Execution) -> None:
    with behaving(execution=execution):
        run = watch(tmp_path / "run", device, bad=bad)
    finding = diagnose_run(run).findings[0]

    assert (finding.rule, finding.step) == ("nonfinite-input", bad)
    assert "sample 3" in finding.why
    assert next(anomaly.step for _, anomaly in run.anomalies() if anomaly.kind == "loss") == bad
    assert math.isnan(run.metrics()[bad].loss or 0.0)


def test_without_fp64_nothing_is_switched_off(tmp_path: Path, without_fp64: None) -> None:
    run = watch(tmp_path / "run", "sim", bad=12)

    assert diagnose_run(run).findings[0].rule == "nonfinite-input"


@pytest.mark.parametrize("execution", ["at once", "when waited for"])
def test_a_measured_step_waits_once_and_others_never(tmp_path: Path, execution: Execution) -> None:
    counts: list[DeviceCounts] = []
    with behaving(execution=execution):
        run = watch(tmp_path / "run", "sim", counts=counts)
    metrics = run.metrics()
    measured = {line.step for line in metrics if line.grad_norm is not None or line.update_norm is not None}
    measured |= {facts.step for facts in run.inputs()}

    def has_snapshot(number: int) -> bool:
        """Say whether the state before a step was copied; the step before it is the last that can be looked into."""
        return any(
            event.num_bytes >= 8 * 32 * 4 for step in counts[number : number + 2] for event in step.of("to_host")
        )

    assert [line.loss for line in metrics if line.loss is None] == []
    for number, step in enumerate(counts[2:], 2):  # the first two are replayed
        is_measured = number < 20 or number in measured or has_snapshot(number)
        assert len(step.waits) <= is_measured, (number, step.where("wait"))
    assert not all(step.waits for step in counts[20:])


def _watching_without_replays(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Watch a training whose first steps are not recorded: that is a replay, which needs the state once more."""
    return start_watching(to=folder, settings=WatchSettings(recorded_steps=(), probe_seconds=0)).running()


def test_snapshots_take_no_memory_of_the_device(tmp_path: Path) -> None:
    def peak(*, steps: int, folder: Path | None) -> int:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).to("sim")
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.ones(4, 256, device="sim")
        with contextlib.nullcontext() if folder is None else _watching_without_replays(folder):
            for _ in range(steps):
                with counting() as counts:
                    optimizer.zero_grad()
                    model(x).square().mean().backward()
                    optimizer.step()
        return counts.peak_bytes()

    bare = peak(steps=6, folder=None)
    num_bytes = 4 * 4 * 256 * 257

    assert peak(steps=6, folder=tmp_path / "run") < bare + num_bytes


def test_a_replay_is_left_out_where_the_device_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda device: (8_000, 2**30))
    with watching(to=tmp_path / "run") as watch:
        train("sim", bad=12)

    assert any("step 0 and others cannot be replayed: a replay takes about" in said for said in watch.complaints)
    run = Run.open(tmp_path / "run")
    assert (run.steps, run.replayed_steps, list(run.failures())) == ([], [], [])
    assert diagnose_run(run).findings[0].step == 12


def measure(parameters: list[nn.Parameter]) -> tuple[list[dict[str, Any]], float, DeviceCounts]:
    """Return the table of an update, its norm, and what taking it cost the device."""
    measured = measures.ParameterMeasures(Sites())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    before = [x.detach().clone() for x in parameters]
    optimizer.step()
    after = [x.detach().clone() for x in parameters]
    with torch.no_grad():
        for x, old in zip(parameters, before, strict=True):
            x.copy_(old)
    with counting(stack_depth=0) as counts:
        measured.begin(parameters)
        with torch.no_grad():
            for x, new in zip(parameters, after, strict=True):
                x.copy_(new)
        columns, norm = read_now(measured.end(0))
    assert columns is not None
    return columns.to_rows().to_list(), norm or 0.0, counts


def parameter(size: int, dtype: torch.dtype, device: str) -> nn.Parameter:
    """Return a parameter whose gradient has zeros and numbers below the smallest normal one."""
    made = nn.Parameter(torch.randn(size, dtype=dtype).to(device))
    gradient = torch.linspace(-1, 1, size).relu().to(dtype)
    gradient[: size // 8] = torch.finfo(dtype).smallest_normal / 4
    made.grad = gradient.to(device)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("num_pieces", "execution"), [(1, "at once"), (5, "at once"), (5, "when waited for")])
def test_measuring_a_large_parameter_takes_twelve_kernels_and_twice_its_memory_at_most(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, num_pieces: int, execution: Execution
) -> None:
    monkeypatch.setattr(measures, "_PIECE_BYTES", 2**18)
    monkeypatch.setattr(measures, "_SMALL_BYTES", 0)
    numbers: dict[str, list[float]] = {}
    with behaving(execution=execution):
        for device in ("cpu", "sim"):
            torch.manual_seed(0)
            (row,), norm, counts = measure([parameter(num_pieces * 2**18 // dtype.itemsize, dtype, device)])
            numbers[device] = [*(row[name] for name in MEASURED), row["grad_subnormal_share"], norm]
    assert numbers["sim"] == pytest.approx(numbers["cpu"], rel=1e-5)
    assert counts.peak_bytes() <= 2 * 2**18 + 2**14
    # The update itself is a copy; of several pieces the numbers are stacked once more.
    assert counts.num_launches <= 1 + 12 * num_pieces + (num_pieces > 1), counts.where("launch")
    assert len(counts.waits) == 1


@pytest.mark.parametrize("execution", ["at once", "when waited for"])
def test_many_small_parameters_are_measured_together(monkeypatch: pytest.MonkeyPatch, execution: Execution) -> None:
    tables: dict[str, list[list[float]]] = {}
    sizes = [1, 3, 511, 512, 513, 5000] * 10
    with behaving(execution=execution):
        for device in ("cpu", "sim"):
            torch.manual_seed(0)
            given = [parameter(size, torch.float32, device) for size in sizes]
            given[4].grad[7] = math.nan
            rows, _, counts = measure([*given, nn.Parameter(torch.ones(3).to(device))])
            tables[device] = [[row[name] or 0.0 for name in MEASURED] for row in rows]
    for there, here in zip(tables["sim"], tables["cpu"], strict=True):
        assert there == pytest.approx(here, rel=1e-5, nan_ok=True)
    updates = len(sizes) + 1
    # All with a gradient together, and the one without by itself.
    assert counts.num_launches - updates <= 21 + 7, counts.where("launch")
    assert len(counts.waits) == 1
    assert counts.peak_bytes() <= 2.2 * sum(-(-size // 512) * 2048 for size in sizes) + 2**14

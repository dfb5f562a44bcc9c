"""The watch on small trainings: what it writes, and what it does when something goes wrong."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

from roundoff.diagnose import diagnose_run
from roundoff.precision import apply_recipe, find_recipe
from roundoff.runs import EpochDetail, Run
from roundoff.watch.watch import Watch
from roundoff.watch.watching import watching

Batch = tuple[Tensor, Tensor]


def batches(num: int = 40) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(16, 8, generator=generator) for _ in range(num)]
    return [(x, x[:, :3].argmax(1)) for x in inputs]


def train(data: list[Batch], *, leave_out: int | None = None, after: Callable[[int], None] | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number, (x, y) in enumerate(data):
        if number == leave_out:
            continue
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if after is not None:
            after(number)
    return model


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def watched(folder: Path, data: list[Batch], **settings: object) -> tuple[nn.Module, Watch]:
    with watching(to=folder, **settings) as watch:
        model = train(data)
    return model, watch


def with_bad_sample(at: int) -> list[Batch]:
    data = batches()
    data[at][0][3, 2] = math.nan
    return data


def test_changes_nothing_and_writes_down_every_step(tmp_path: Path):
    data = batches()
    model, watch = watched(tmp_path / "a", data)
    assert same(model, train(data))
    run = Run.open(tmp_path / "a")
    metrics = run.metrics()
    assert [m.step for m in metrics] == list(range(40))
    assert all(m.loss is not None and m.lr == 0.01 for m in metrics)
    assert all(m.grad_norm and m.update_norm for m in metrics[:20])
    assert run.steps == [0, 1]
    calls = [call.call for call in run.calls() if call.step == 3]
    assert calls == ["forward", "backward", "clip", "step", "zero_grad"]  # the next one closes it
    assert not watch.anomalies
    assert not run.info.notes


def test_replays_the_bad_step_and_catches_its_inputs(tmp_path: Path):
    watched(tmp_path / "a", with_bad_sample(25))
    run = Run.open(tmp_path / "a")
    assert run.replayed_steps == [25]
    info = run.replay(25).replay_info()
    assert info is not None
    assert info.is_identical


def test_skip_goes_on_as_if_the_bad_batch_had_never_come(tmp_path: Path):
    data = with_bad_sample(25)
    model, watch = watched(tmp_path / "a", data, on_anomaly="skip")
    assert watch.num_undone == 1
    assert same(model, train(data, leave_out=25))
    (finding,) = diagnose_run(Run.open(tmp_path / "a")).findings
    assert (finding.rule, finding.step, finding.related) == ("nonfinite-input", 25, ())
    assert "The step was undone" in finding.why


def test_skip_leaves_a_loss_scaler_to_the_loop(tmp_path: Path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with watching(model, optimizer, to=tmp_path / "run", on_anomaly="skip") as watch:
        for step in range(6):
            x = torch.randn(16, 4) * (math.inf if step == 3 else 1.0)
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()  # raises unless the scaler still knows that its step found an infinity
    assert watch.num_undone == 1
    assert scaler.get_scale() == 8.0
    assert all(bool(x.isfinite().all()) for x in model.state_dict().values())


def test_buffers_that_a_step_spoils_are_seen_in_that_step_and_undone_with_it(tmp_path: Path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(model, optimizer, to=tmp_path / "run", on_anomaly="skip") as watch:
        for step in range(30):
            x = torch.randn(16, 4) * (1e30 if step == 25 else 1.0)  # the variance overflows, the output does not
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    assert [(anomaly.kind, anomaly.step) for anomaly in watch.anomalies] == [("buffer", 25)]
    assert watch.num_undone == 1
    assert bool(model[0].running_var.isfinite().all())


def test_skip_undoes_a_step_between_two_snapshots(tmp_path: Path):
    data = with_bad_sample(38)
    model, watch = watched(tmp_path / "a", data, on_anomaly="skip")
    assert watch.num_undone == 1
    assert same(model, train(data, leave_out=38))


def test_stop_ends_the_training_at_the_bad_step(tmp_path: Path):
    reached: list[int] = []
    with pytest.raises(SystemExit) as ending, watching(to=tmp_path / "a", on_anomaly="stop"):
        train(with_bad_sample(25), after=reached.append)
    assert ending.value.code == 1
    assert reached[-1] == 24


def train_carefully(data: list[Batch]) -> None:
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data:
        loss = F.cross_entropy(model(x), y)
        if not torch.isfinite(loss):
            raise FloatingPointError
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_a_bad_loss_that_the_loop_sees_itself_is_noted(tmp_path: Path):
    with pytest.raises(FloatingPointError), watching(to=tmp_path / "a"):
        train_carefully(with_bad_sample(25))
    run = Run.open(tmp_path / "a")
    assert sorted((a.step, a.kind) for _, a in run.anomalies()) == [(25, "exception"), (25, "loss")]
    assert run.replayed_steps == [25]


def raising_at_step_25(error: BaseException) -> Callable[[int], None]:
    def raise_it(number: int) -> None:
        if number == 25:
            raise error

    return raise_it


def test_a_step_that_raises_is_replayed_and_saved(tmp_path: Path):
    data = batches()
    data[25][1][3] = 77  # no such class
    with pytest.raises(IndexError), watching(to=tmp_path / "a"):
        train(data)
    run = Run.open(tmp_path / "a")
    assert run.replayed_steps == [25]
    saved = safetensors.torch.load_file(tmp_path / "a/replay/step25/batch-rank0.safetensors")
    assert any(tensor.numel() == 16 and int(tensor.max()) == 77 for tensor in saved.values())
    assert diagnose_run(run).findings[0].rule == "exception"


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no more"), KeyboardInterrupt()])
def test_memory_that_ran_out_and_a_user_who_leaves_are_not_replayed(tmp_path: Path, error: BaseException):
    with pytest.raises(type(error)), watching(to=tmp_path / "a"):
        train(batches(), after=raising_at_step_25(error))
    assert Run.open(tmp_path / "a").replayed_steps == []


def test_evaluation_losses_belong_to_the_step_before(tmp_path: Path):
    data = batches(8)
    model, optimizer = nn.Linear(8, 3), None
    criterion = nn.CrossEntropyLoss()
    expected: dict[int, float] = {}
    with watching(to=tmp_path / "a"):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number, (x, y) in enumerate(data):
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
            if number % 4 == 3:
                with torch.no_grad():
                    values = [criterion(model(x), y), F.cross_entropy(model(y.float()[:, None].expand(-1, 8)), y)]
                expected[number] = float(torch.stack(values).mean())
    found = {m.step: m.eval_loss for m in Run.open(tmp_path / "a").metrics() if m.eval_loss is not None}
    assert found == pytest.approx(expected)


def test_passes_through_a_loader_are_calls(tmp_path: Path):
    loader = DataLoader(TensorDataset(torch.randn(12, 8), torch.zeros(12, dtype=torch.long)), batch_size=4)
    with watching(to=tmp_path / "a"):
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
    epochs = [call for call in Run.open(tmp_path / "a").calls() if call.call == "epoch"]
    assert [call.detail_as(EpochDetail).num_batches for call in epochs] == [3, 3]
    assert {call.detail_as(EpochDetail).loader for call in epochs} == {0}


def test_says_when_the_memory_is_too_small_and_watches_all_the_same(tmp_path: Path):
    data = with_bad_sample(25)
    model, watch = watched(tmp_path / "a", data, snapshot_memory=1000)
    assert [m.step for m in Run.open(tmp_path / "a").metrics()] == list(range(40))
    assert watch.anomalies
    assert any("--snapshot-memory" in complaint for complaint in watch.complaints)
    assert not Run.open(tmp_path / "a").replayed_steps
    assert model is not None


def test_says_when_nothing_was_trained(tmp_path: Path):
    with watching(to=tmp_path / "a") as watch:
        torch.ones(3).sum()
    assert "Nothing was watched: no training step was seen in this process." in watch.verdict()


def test_leaves_nothing_behind(tmp_path: Path):
    watched(tmp_path / "a", batches(3))
    assert torch._C._len_torch_function_stack() == 0
    assert not nn.modules.module._global_forward_hooks
    assert "roundoff" not in getattr(torch.optim.Optimizer.zero_grad, "__module__", "")


def test_the_loss_and_scale_of_a_recipe_are_reported_and_so_are_its_skipped_steps(tmp_path: Path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    recipe = find_recipe("O2")
    recipe = replace(recipe, loss_scale=replace(recipe.loss_scale, initial=2.0**24))
    model, optimizer = apply_recipe(model, torch.optim.AdamW(model.parameters()), recipe)
    losses: list[float] = []
    skipped: list[bool] = []
    with watching(to=tmp_path / "a"):
        for x, y in batches(12):
            loss = F.cross_entropy(model(x), y)
            losses.append(float(loss.detach()))
            optimizer.backward(loss)
            optimizer.step()
            skipped.append(optimizer.last_overflow is not None)
            optimizer.zero_grad()
    run = Run.open(tmp_path / "a")
    metrics = run.metrics()
    assert True in skipped
    assert [m.skipped for m in metrics] == skipped
    assert [m.loss for m in metrics] == pytest.approx(losses)
    assert metrics[0].loss_scale == 2.0**24
    assert all(m.skipped != math.isfinite(m.grad_norm or math.nan) for m in metrics)
    assert not run.anomalies()


def test_a_global_hook_of_the_user_runs_once_in_every_step(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[int] = []
    with watching(model, optimizer, to=tmp_path / "run") as watch:
        handle = register_optimizer_step_post_hook(lambda *_: seen.append(watch.num_steps))
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 2)).square().mean().backward()
            optimizer.step()
        handle.remove()
    assert Run.open(tmp_path / "run").steps == [0, 1]
    assert len(seen) >= 3

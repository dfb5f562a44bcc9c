"""One rank: it learns, repeats itself, goes on where it stopped, and survives a loss that is not finite."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from roundoff.errors import TrainError
from roundoff.runs import Metrics, Run
from roundoff.train import TrainConfig, TrainResult, train

TINY = TrainConfig(limit=96, batch_size=16, width=4, epochs=2, threads=1, runs=None)


def equal(one: Any, other: Any) -> bool:
    """Compare nested dicts and lists of tensors bit by bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def state_of(result: TrainResult) -> dict[str, Any]:
    assert result.folder is not None
    state: dict[str, Any] = torch.load(result.folder / "checkpoint.pt", weights_only=True)
    return state


def metrics_of(result: TrainResult) -> list[Metrics]:
    """Return the metrics of every step, but for its duration, which never repeats."""
    assert result.folder is not None
    return [replace(metrics, seconds=None) for metrics in Run.open(result.folder).metrics()]


def test_a_small_network_reads_digits_after_a_few_epochs(tmp_path: Path):
    result = train(TrainConfig(epochs=3, threads=1, runs=tmp_path))
    assert result.top1 > 0.9
    assert result.top5 > 0.98
    assert (result.num_steps, len(result.scores)) == (66, 3)
    assert result.folder == tmp_path / "train-1"
    assert not result.ended_nonfinite


def test_the_same_seed_trains_the_same_network_and_another_does_not():
    first, second, other = train(TINY), train(TINY), train(replace(TINY, seed=1))
    assert first.losses == second.losses
    assert first.scores == second.scores
    assert first.losses != other.losses


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd"},
        {"optimizer": "adamw", "ema": 0.9, "accumulate": 2, "mixup": 0.2, "augment": ("crop", "flip", "jitter")},
        {"recipe": "O2", "loss_scale": 0.0, "clip": 1.0, "warmup": 1.0},
    ],
    ids=["plain", "everything", "O2"],
)
def test_a_resumed_training_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path, settings: dict[str, Any]):
    config = replace(TINY, runs=tmp_path, **settings)
    whole = train(config)
    stopped = train(replace(config, steps=8))
    rest = train(replace(config, resume=stopped.folder))
    assert (rest.first_step, rest.num_steps) == (8, 4)
    assert stopped.losses + rest.losses == whole.losses
    assert rest.scores[-1] == whole.scores[-1]
    assert metrics_of(rest) == metrics_of(whole)[8:]
    one, other = state_of(whole), state_of(rest)
    for part in ("model", "average", "random", "step"):
        assert equal(one[part], other[part]), part
    for part in ("state", "param_groups"):
        assert equal(one["optimizer"][part], other["optimizer"][part]), part
    assert one["optimizer"]["roundoff"]["scaler"]["scale"] == other["optimizer"]["roundoff"]["scaler"]["scale"]
    assert rest.notes == (f"resumed from {stopped.folder} at step 8",)


def test_workers_change_nothing(tmp_path: Path):
    config = replace(TINY, augment=("crop", "jitter"))
    assert train(config).losses == train(replace(config, workers=2)).losses


def test_resuming_with_another_recipe_works_and_is_noted(tmp_path: Path):
    stopped = train(replace(TINY, runs=tmp_path, steps=6))
    rest = train(replace(TINY, recipe="O2", resume=stopped.folder))
    assert rest.num_steps == 6
    assert rest.notes[1] == "not bit-identical to an uninterrupted training: recipe O2, was fp32"


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path):
    stopped = train(replace(TINY, runs=tmp_path, steps=2))
    with pytest.raises(TrainError) as caught:
        train(replace(TINY, width=8, resume=stopped.folder))
    assert str(caught.value) == (
        f"The checkpoint '{stopped.folder}' does not fit this training.\n"
        "  why: width 8, was 4.\n"
        "  fix: resume with the same model, data and optimizer."
    )


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path):
    stopped = train(replace(TINY, runs=tmp_path, steps=2))
    with pytest.raises(TrainError, match=r"why: optimizer adamw, was sgd\."):
        train(replace(TINY, optimizer="adamw", resume=stopped.folder))


def test_an_average_that_begins_with_a_checkpoint_begins_with_its_weights(tmp_path: Path):
    trained = train(replace(TINY, runs=tmp_path))
    averaged = train(replace(TINY, ema=0.5, eval_only=True, resume=trained.folder))
    assert averaged.eval_loss == trained.eval_loss


def test_checkpoints_are_saved_as_often_as_requested(tmp_path: Path):
    result = train(replace(TINY, runs=tmp_path, epochs=1, save_every=2))
    assert result.folder is not None
    saved = [call.step for call in Run.open(result.folder).calls() if call.call == "save"]
    assert saved == [1, 3, 5, 5]


def test_the_run_folder_holds_every_step_and_every_evaluation(tmp_path: Path):
    result = train(replace(TINY, runs=tmp_path, name="mine", recipe="fp32", clip=0.5))
    run = Run.open(tmp_path / "mine")
    metrics = list(run.metrics())
    assert [m.step for m in metrics] == list(range(12))
    assert [m.loss for m in metrics] == pytest.approx(list(result.losses))
    assert [m.eval_loss for m in metrics if m.eval_loss is not None] == [score.loss for score in result.scores]
    assert all(m.lr is not None and m.grad_norm is not None and m.seconds is not None for m in metrics)
    assert [m.loss_scale for m in metrics] == [1.0] * 12
    assert (run.info.status, run.info.recipe, run.info.seed) == ("finished", "fp32", 0)
    assert run.info.settings["clip"] == 0.5


def test_the_caller_hears_of_every_step():
    heard: list[int] = []
    train(TINY, on_step=lambda metrics: heard.append(metrics.step))
    assert heard == list(range(12))


def test_accumulation_gives_the_step_of_the_whole_batch():
    # Batch norm sees microbatches, so compare where its statistics hardly matter: the very first loss.
    whole, parts = train(replace(TINY, steps=1)), train(replace(TINY, steps=1, accumulate=2))
    assert parts.losses[0] == pytest.approx(whole.losses[0], rel=0.05)


def test_a_loss_that_is_not_finite_is_counted_and_the_training_goes_on():
    result = train(replace(TINY, lr=1e30))
    assert result.num_steps == 12
    assert result.first_nonfinite_step is not None
    assert 0 < result.first_nonfinite_step < 12
    assert result.num_nonfinite == sum(not math.isfinite(loss) for loss in result.losses)
    assert result.ended_nonfinite
    assert result.notes[-1].startswith(f"the loss was not finite in {result.num_nonfinite} steps, first in step")


def test_overflow_is_skipped_and_counted():
    result = train(replace(TINY, recipe="O2", loss_scale=2.0**24, input_gain=2.0**10))
    assert result.num_skipped > 0


def test_a_tiny_loss_stalls_in_fp16_and_trains_with_a_dynamic_scale():
    # Plain SGD takes the same steps whatever the factor, if the rate makes up for it.
    tiny_loss = replace(TINY, recipe="O2", epochs=10, weight_decay=0.0, loss_factor=1e-6, lr=0.1e6)
    norms: list[float] = []

    def first_norm_of(config: TrainConfig) -> tuple[TrainResult, float]:
        norms.clear()
        return train(config, on_step=lambda metrics: norms.append(metrics.grad_norm or 0.0)), norms[0]

    stalled, lost_norm = first_norm_of(replace(tiny_loss, loss_scale=None))
    scaled, tiny_norm = first_norm_of(replace(tiny_loss, loss_scale=0))
    usual, usual_norm = first_norm_of(replace(tiny_loss, loss_factor=1.0, lr=0.1))
    assert tiny_norm == pytest.approx(1e-6 * usual_norm, rel=0.01)
    assert lost_norm < 0.7 * tiny_norm
    assert scaled.losses[0] == usual.losses[0]  # the loss is reported without the factor
    assert scaled.losses[-1] == pytest.approx(usual.losses[-1], rel=0.02)
    assert scaled.losses[-1] < 0.85 * stalled.losses[-1]
    assert stalled.num_skipped == scaled.num_skipped == 0


def test_a_text_model_learns_to_repeat(tmp_path: Path):
    path = tmp_path / "fox.txt"
    path.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 200)
    config = TrainConfig(
        data=f"text:{path}",
        model="gpt-small",
        optimizer="adamw",
        lr=1e-2,
        lr_scaling=False,
        width=32,
        context=16,
        batch_size=32,
        epochs=4,
        threads=1,
        runs=None,
    )
    result = train(config)
    assert result.perplexity is not None
    assert result.perplexity == pytest.approx(math.exp(result.eval_loss))
    assert result.losses[-1] < 0.6 * result.losses[0]


def test_evaluating_only_trains_nothing(tmp_path: Path):
    trained = train(replace(TINY, runs=tmp_path))
    again = train(replace(TINY, eval_only=True, resume=trained.folder))
    assert (again.num_steps, again.eval_loss) == (0, trained.eval_loss)


@pytest.mark.parametrize("recipe", ["half", "amp-bf16", "bf16", "act4"])
def test_every_kind_of_recipe_trains(recipe: str):
    result = train(replace(TINY, recipe=recipe))
    assert result.num_steps == 12
    assert (result.saved_activation_bytes is not None) == recipe.startswith("act")


def test_scalars_and_histograms_reach_tensorboard(tmp_path: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    losses: list[float | None] = []
    train(replace(TINY, tensorboard=tmp_path / "board"), on_step=lambda metrics: losses.append(metrics.loss))
    board = accumulator.EventAccumulator(str(tmp_path / "board"), size_guidance={"histograms": 0})
    board.Reload()
    assert {"loss", "lr", "grad_norm", "skipped", "eval_loss", "top1"} <= set(board.Tags()["scalars"])
    assert [event.value for event in board.Scalars("loss")] == pytest.approx(losses)
    assert [event.step for event in board.Scalars("loss")] == list(range(len(losses)))
    drawn = board.Tags()["histograms"]
    names = [name for name in drawn if name.startswith("weights/")]
    assert names
    assert {name.replace("weights/", "gradients/") for name in names} == set(drawn) - set(names)
    assert [event.step for event in board.Histograms(names[0])] == [0, 6]  # the first step of each epoch
    assert all(event.histogram_value.num > 0 for event in board.Histograms(names[0]))


def test_an_interrupt_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def interrupt(metrics: Metrics) -> None:
        if metrics.step == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(replace(TINY, runs=tmp_path, name="mine"), on_step=interrupt, progress=True)
    assert (
        capsys.readouterr().err.splitlines()[-1] == f"interrupted in step 9; continue with --resume {tmp_path / 'mine'}"
    )


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(TrainError, match=r"Unknown device 'gpu9'\."):
        train(replace(TINY, device="gpu9"))

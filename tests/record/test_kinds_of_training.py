"""Recording changes nothing and misses nothing, on every kind of training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from roundoff.record import recording
from roundoff.runs import Run
from tests.record.trainings import PLAIN, Outcome, Training

ONLY_IN_MODULES = {
    "aten.mm", "aten.convolution_backward", "aten.native_layer_norm_backward", "aten.native_batch_norm_backward",
    "aten.gelu_backward", "aten.threshold_backward", "aten.embedding_dense_backward", "aten.mkldnn_rnn_layer_backward",
}  # fmt: skip


def same(a: Outcome, b: Outcome) -> bool:
    assert a.losses == b.losses
    assert a.tensors.keys() == b.tensors.keys()
    return all(bits(a.tensors[key]) == bits(b.tensors[key]) for key in a.tensors)


def bits(x: torch.Tensor) -> bytes:
    return x.cpu().contiguous().view(torch.uint8).numpy().tobytes() if x.dim() else bits(x[None])


@pytest.mark.parametrize("training", PLAIN.values(), ids=PLAIN.keys())
def test_losses_gradients_and_weights_are_bit_identical(training: Training, tmp_path: Path) -> None:
    check_is_untouched(training, tmp_path)


def check_is_untouched(training: Training, tmp_path: Path) -> None:
    """Run a training bare, recorded and bare again: it must be the same."""
    plain = training()
    with recording(to=tmp_path / "run"):
        recorded = training()
    assert same(plain, recorded)
    assert same(plain, training())


@pytest.mark.parametrize("training", PLAIN.values(), ids=PLAIN.keys())
def test_every_backward_op_has_a_site_or_a_parameter(training: Training, tmp_path: Path) -> None:
    check_is_complete(training, tmp_path)


def check_is_complete(training: Training, tmp_path: Path) -> None:
    """Record a training: each of its ops must be there once, with the place that it belongs to."""
    with recording(to=tmp_path / "run"):
        training()
    events = Run.open(tmp_path / "run").events().to_list()
    assert {event["phase"] for event in events} >= {"forward", "backward", "optimizer"}
    keys = [
        tuple(e[k] for k in ("step", "microbatch", "phase", "site", "op", "nth", "output", "parameter")) for e in events
    ]
    assert len(set(keys)) == len(keys)
    backward = [e for e in events if e["phase"] == "backward"]
    lost = [e for e in backward if e["site"] == "<loop>" and e["parameter"] is None]
    assert not {e["op"] for e in lost} & ONLY_IN_MODULES
    assert not lost or any(e["site"] == "<loop>" and e["phase"] == "forward" for e in events)

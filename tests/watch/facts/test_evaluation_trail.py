"""What the loop computes from outputs is followed, at a cost that does not grow."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import Tensor, nn

from roundoff.runs import EvalMatchProbe, MetricProbe
from roundoff.watch.facts.evaluation_trail import EvaluationTrail

LINE = ("train.py", 7)


def call_model(trail: EvaluationTrail, model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        output: Tensor = model(x)
        trail.model_returned(model, ((x,), {}), output, in_training=False)
    return output


def see(trail: EvaluationTrail, name: str, *args: object, **kwargs: object) -> Tensor:
    with torch.no_grad():
        result: Tensor = getattr(torch, name)(*args, **kwargs)
        trail.see(name, args, kwargs, result, step=3, line=LINE)
    return result


def test_a_threshold_is_noted_with_the_range_of_what_meets_it():
    trail, model = EvaluationTrail(), nn.Linear(4, 1)
    output = call_model(trail, model, torch.randn(8, 4))
    see(trail, "gt", output, 0.5)
    (probe,) = trail.probes()
    assert isinstance(probe, MetricProbe)
    assert (probe.kind, probe.threshold, probe.source, probe.functions) == ("threshold", 0.5, "train.py:7", ())
    assert probe.min == output.min().item()


def test_choices_are_counted_against_the_classes_they_meet():
    trail, model = EvaluationTrail(), nn.Identity()
    target = torch.arange(40) % 4
    scores = nn.functional.one_hot((target + 1) % 4, 4).float()
    chosen = see(trail, "argmax", call_model(trail, model, scores), dim=1)
    see(trail, "eq", chosen, target)
    probe = next(probe for probe in trail.probes() if isinstance(probe, EvalMatchProbe))
    assert (probe.share, probe.renamed_share, probe.num_moved) == (0.0, 1.0, 4)


def test_a_sampler_that_uses_its_own_results_again_stays_cheap():
    trail, model = EvaluationTrail(), nn.Linear(2, 2)
    x = torch.randn(3, 2)
    for _ in range(200):
        noise = call_model(trail, model, x)
        x = see(trail, "sub", x, see(trail, "add", x, noise))
    assert len(trail._trail_of(x).calls) <= 200


def test_an_iterator_whose_batches_are_seen_is_freed_as_without_us():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 2), torch.arange(8)), 4)
    trail, iterator = EvaluationTrail(), iter(loader)
    trail.see_batches(iterator)
    assert next(iterator)[1].tolist() == [0, 1, 2, 3]
    kept = weakref.ref(iterator)
    gc.disable()
    del iterator
    gc.enable()
    assert kept() is None

"""What goes into a call is noted without holding on to it, and can be given again."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from roundoff.replay.arguments import ArgumentNotes, EarlierStepTensor, ExternalTensor, Result, fill_in, references

Pair = namedtuple("Pair", "first second")


@dataclass
class Batch:
    inputs: Tensor
    name: str


def notes(*state: Tensor) -> ArgumentNotes:
    return ArgumentNotes(lambda x: any(x is one for one in state))


def again(noted: Any, *results: Tensor) -> Any:
    return fill_in(noted, list(results), ExternalTensor.new_copy)


def test_values_of_every_kind_come_back_with_copies_of_their_tensors() -> None:
    x = torch.arange(3.0)
    value = ([x], {"a": x}, Pair(x, 1), Batch(x, "b"), 2, None, "c", torch.float16, slice(1, 2))
    listed, mapped, pair, batch, *rest = again(notes().note(value))
    x.zero_()
    for copy in (listed[0], mapped["a"], pair.first, batch.inputs):
        assert copy.tolist() == [0, 1, 2]
    assert (type(pair), batch.name) == (Pair, "b")
    assert rest == [2, None, "c", torch.float16, slice(1, 2)]


def test_state_is_used_as_it_is_and_results_become_those_of_the_replay() -> None:
    weight, made, other = torch.ones(2), torch.ones(3), torch.zeros(3)
    known = notes(weight)
    assert known.results((made, [made * 2])) == 2
    assert again(known.note(weight)) is weight
    assert isinstance(known.note(made), Result)
    assert again(known.note(made), other) is other


def test_an_unchanged_tensor_is_copied_once_and_a_changed_one_again() -> None:
    x, known = torch.zeros(2), notes()
    first = known.note(x)
    assert known.note(x) is first
    x.add_(1)
    second = known.note(x)
    assert second is not first
    assert again([first, second])[1].tolist() == [1, 1]


def test_a_graph_of_an_earlier_step_is_carried_on_as_long_as_it_is_there() -> None:
    known = notes()
    fake = nn.Linear(2, 2)(torch.ones(1, 2))
    plain = fake.detach()
    known.results([plain, fake])
    known.new_step(4)
    known.new_step(5)
    noted = known.note([fake, plain])
    assert isinstance(noted[0], EarlierStepTensor)
    assert (noted[0].step, noted[0].number) == (4, 1)
    assert type(noted[1]) is ExternalTensor
    assert known.reached_steps == {4}


def test_references_are_found_however_deep() -> None:
    known, x = notes(), torch.ones(1)
    assert len(list(references(known.note({"a": [x, (torch.zeros(1), Pair(torch.zeros(2), 1))]})))) == 3


def test_a_generator_of_the_scripts_own_draws_the_same_numbers_again_and_is_not_touched() -> None:
    generator = torch.Generator().manual_seed(3)
    noted = ArgumentNotes(lambda _: False).note({"generator": generator})
    first, after = torch.randn(4, generator=generator), generator.get_state()
    for _ in range(2):
        assert torch.equal(torch.randn(4, **fill_in(noted, [], lambda _: first)), first)
    assert torch.equal(generator.get_state(), after)

"""Keys of ops: whole sites, phases of a site, single ops, patterns."""

import pytest

from roundoff.errors import SwitchError
from roundoff.record.following import OpPlace
from roundoff.switches.substitute_keys import ChosenOps

MM = OpPlace("blocks.1.attn", "backward", "aten.mm")


@pytest.mark.parametrize(
    ("keys", "is_chosen"),
    [
        (None, True),
        ("", False),
        ("[]", False),
        ("blocks.1.attn", True),
        ("blocks.1", False),
        ("blocks.1*", True),
        ("blocks.1.attn:backward", True),
        ("blocks.1.attn:forward", False),
        ("blocks.1.attn:backward:aten.mm", True),
        ("blocks.1.attn:backward:aten.addmm", False),
        ("blocks.1.attn:forward:aten.mm", False),
        ("*:backward:aten.*mm", True),
        ("*:*:aten.mm", True),
        ("*:*:*", True),
        ("head, blocks.1.attn", True),
        ('["head", "blocks.1.attn:backward:aten.mm"]', True),
    ],
)
def test_a_key_names_the_ops_of_a_site_a_phase_or_one_op(keys: str | None, is_chosen: bool):
    assert ChosenOps.from_text(keys).has(MM) is is_chosen


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("Critic:head", OpPlace("Critic:head", "forward", "aten.mm")),
        ("Critic:head:forward:aten.mm", OpPlace("Critic:head", "forward", "aten.mm")),
        ("CrossEntropyLoss:", OpPlace("CrossEntropyLoss:", "forward", "aten.nll_loss_forward")),
        ("CrossEntropyLoss::forward", OpPlace("CrossEntropyLoss:", "forward", "aten.nll_loss_forward")),
        ("<loop>:optimizer:aten._foreach_add_", OpPlace("<loop>", "optimizer", "aten._foreach_add_")),
    ],
)
def test_sites_of_further_models_have_colons_of_their_own(key: str, place: OpPlace):
    assert ChosenOps([key]).has(place)
    assert not ChosenOps([key]).has(place._replace(site="other"))


def test_every_place_is_named_by_its_own_key():
    place = OpPlace("Critic:", "backward", "aten._foreach_add_")
    assert ChosenOps([place.key]).has(place)
    assert not ChosenOps([place.key]).has(place._replace(phase="forward"))


def test_keys_that_nothing_matched_are_known():
    chosen = ChosenOps(["head", "blocks.1.attn", "*:*:aten.gelu"])
    chosen.has(MM)
    assert chosen.unused == ["head", "*:*:aten.gelu"]


@pytest.mark.parametrize(("text", "why"), [("[head]", "is none"), ("[1]", "every key must be a text")])
def test_a_text_that_is_no_list_is_an_error(text: str, why: str):
    with pytest.raises(SwitchError, match=why):
        ChosenOps.from_text(text)

"""Keys of ops: whole sites, phases of a site, single ops, patterns."""

import pytest

from roundoff.errors import SwitchError
from roundoff.record.ops.interceptor import OpPlace
from roundoff.switches.substitute import ChosenOps

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


@pytest.mark.parametrize(
    "key",
    [
        "blocks.1.attn:sideways",
        "0:sideways",
        "<loop>:update",
        "head:sideways:aten.mm",
        "Critic:head:sideways",
        "blocks.1.attn:Backward",
        "blocks.1.attn:backward:mm",
    ],
)
def test_a_phase_or_op_that_cannot_be_is_an_error_at_once(key: str):
    with pytest.raises(SwitchError) as caught:
        ChosenOps.from_text(f"blocks.1, {key}")
    assert str(caught.value) == (
        f"substitute.ops: '{key}' names no ops.\n"
        "  why: a site is followed by a phase (forward, backward, optimizer, eval), and that by an op with its "
        "library, aten.mm.\n"
        "  fix: write site, site:phase or site:phase:op: blocks.1.attn:backward:aten.mm"
    )


def test_what_could_be_a_further_model_is_an_error_when_it_turns_out_to_be_a_site():
    chosen = ChosenOps(["head:sideways"])
    assert chosen.has(OpPlace("head:sideways", "forward", "aten.mm"))
    with pytest.raises(SwitchError, match="'head:sideways' names no ops"):
        chosen.has(OpPlace("head", "forward", "aten.mm"))


@pytest.mark.parametrize("key", ["*:head", "Critic#2:blocks.0", "unet:head", "_Net:", "Crit[io]c:*"])
def test_sites_and_patterns_of_further_models_are_no_phases(key: str):
    assert ChosenOps([key]).unused == [key]


def test_every_place_is_named_by_its_own_key():
    place = OpPlace("Critic:", "backward", "aten._foreach_add_")
    assert ChosenOps([place.key]).has(place)
    assert not ChosenOps([place.key]).has(place._replace(phase="forward"))


def test_keys_that_nothing_matched_are_known():
    chosen = ChosenOps(["head", "blocks.1.attn", "*:*:aten.gelu"])
    chosen.has(MM)
    assert chosen.unused == ["head", "*:*:aten.gelu"]


@pytest.mark.parametrize(("text", "why"), [("[head]", "is not valid JSON"), ("[1]", "every key must be a string")])
def test_a_text_that_is_no_list_is_an_error(text: str, why: str):
    with pytest.raises(SwitchError, match=why):
        ChosenOps.from_text(text)

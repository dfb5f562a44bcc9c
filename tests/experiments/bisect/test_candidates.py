import pytest

from roundoff.errors import BisectError
from roundoff.experiments.bisect.candidates import Candidates, candidates_from_names, candidates_from_step
from tests.experiments.measured_steps import effect, measured, rounded

SITES = {
    "embed": "Embedding",
    "blocks": "ModuleList",
    "blocks.0": "Block",
    "blocks.0.attn": "Attention",
    "blocks.0.attn.qkv": "Linear",
    "blocks.0.mlp": "Sequential",
    "blocks.0.mlp.0": "Linear",
    "head": "Linear",
}


def test_by_name_the_innermost_modules_come_first_and_holders_are_left_out():
    assert candidates_from_names(SITES).modules == (
        "embed", "blocks.0.attn.qkv", "blocks.0.mlp.0", "head", "blocks.0.attn", "blocks.0",
    )  # fmt: skip


def test_by_a_measured_step_overflow_is_suspected_before_a_moved_loss():
    step = measured(
        effect("embed", "add", loss_change=5.0),
        effect("blocks.0.attn", "softmax", value=rounded(overflow=0.01)),
        effect("blocks.0.attn", "matmul"),
        effect("head", "linear", loss_change=0.1),
        effect("<model>", "mul", gradient=rounded(underflow=0.5)),
        effect("elsewhere", "mul"),
    )
    candidates = candidates_from_step(step, sites=SITES, fmt="fp16")
    assert candidates.modules == ("blocks.0.attn", "<model>:*", "embed", "head")
    assert candidates.ops["blocks.0.attn"] == ("blocks.0.attn:softmax", "blocks.0.attn:matmul")
    assert candidates.is_measured


def test_inside_a_module_are_its_own_ops_and_those_of_modules_in_it():
    ops = {"blocks.1": ("blocks.1:add",), "blocks.1.attn": ("blocks.1.attn:softmax",), "blocks.10": ("blocks.10:add",)}
    candidates = Candidates(modules=tuple(ops), ops=ops)
    assert candidates.inside(["blocks.1"]) == ("blocks.1:add", "blocks.1.attn:softmax")
    assert candidates.inside(["blocks.1", "blocks.1.attn"]) == ("blocks.1:add", "blocks.1.attn:softmax")
    assert candidates.inside(["head"]) == ()
    assert candidates.without_ops().inside(["blocks.1"]) == ()


def test_patterns_take_what_is_inside_a_matching_module_and_one_that_matches_nothing_is_an_error():
    candidates = candidates_from_names(SITES)
    assert candidates.only(["blocks.*.attn"]).modules == ("blocks.0.attn.qkv", "blocks.0.attn")
    assert candidates.only(["head", "embed"]).modules == ("embed", "head")
    assert candidates.only([]) == candidates
    with pytest.raises(BisectError, match=r"--sites haed matches no site[\s\S]*the sites are embed, blocks.0.attn.qkv"):
        candidates.only(["head", "haed"])

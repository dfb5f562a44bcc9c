"""Measured steps made by hand, for tests of what a plan makes of them."""

from __future__ import annotations

from typing import Any

from roundoff.sensitivity.effects import LossEffect, Rounded, Sensitivity


def rounded(**changes: Any) -> Rounded:
    """Return what rounding does to numbers that the format suits."""
    fine: dict[str, Any] = {"num_elements": 100, "overflow": 0.0, "underflow": 0.0, "subnormal": 0.0, "ulps": 0.25}
    return Rounded(**{**fine, "snr_db": 70.0, **changes})


def effect(site: str, op: str, **changes: Any) -> LossEffect:
    """Return the effect of a format that suits the op; `changes` say what does not."""
    fine: dict[str, Any] = {"part": "result", "fmt": "fp16", "loss_change": 1e-6, "absmax": 3.0}
    fine |= {"value": rounded(), "gradient": rounded(), "gradient_absmax": 1e-2}
    return LossEffect(site=site, op=op, **{**fine, **changes})


def measured(*effects: LossEffect, parameters: dict[str, int] | None = None, loss: float = 2.0) -> Sensitivity:
    """Return a step with these effects."""
    formats = tuple(dict.fromkeys(each.fmt for each in effects))
    return Sensitivity(step=2, loss=loss, formats=formats, effects=effects, num_parameters=parameters or {})


def small_gpt(*changed: LossEffect) -> Sensitivity:
    """Return a healthy step of two blocks in fp16, with some of its effects replaced by others of the same op."""
    effects = [effect("embed", "add")]
    for block in ("blocks.0", "blocks.1"):
        effects += [
            effect(f"{block}.norm", "layer_norm"),
            effect(f"{block}.attn.qkv", "linear", part="weight"),
            effect(f"{block}.attn.qkv", "linear"),
            effect(f"{block}.attn", "matmul"),
            effect(f"{block}.attn", "softmax"),
            effect(f"{block}.attn.out", "linear", part="weight"),
            effect(f"{block}.attn.out", "linear"),
            effect(block, "add"),
        ]
    effects += [effect("head", "linear", part="weight"), effect("head", "linear")]
    replaced = {(each.site, each.op, each.part): each for each in changed}
    effects = [replaced.get((each.site, each.op, each.part), each) for each in effects]
    sizes = {"blocks.0.norm": 16, "blocks.1.norm": 16, "embed": 500, "head": 500}
    sizes |= {f"blocks.{n}.attn.{name}": size for n in (0, 1) for name, size in (("qkv", 768), ("out", 256))}
    return measured(*effects, parameters=sizes)

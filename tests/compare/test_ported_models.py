"""The GPT-2 of Hugging Face against one written by hand: other names, other layouts, the same numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.compare.models.model_comparison import ModelComparison, compare_models

transformers = pytest.importorskip("transformers")

WIDTH, HEADS, VOCABULARY, LENGTH = 32, 2, 50, 8


class Block(nn.Module):
    """A block of GPT-2, with linear layers where the original has its own with weights turned around."""

    def __init__(self, *, eps: float, scale: float) -> None:
        super().__init__()
        self.norm_before = nn.LayerNorm(WIDTH, eps=eps)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm_between = nn.LayerNorm(WIDTH, eps=eps)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.scale = scale * (WIDTH // HEADS) ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        parts = self.query_key_value(self.norm_before(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_between(x)), approximate="tanh"))


class HandWritten(nn.Module):
    """GPT-2 under other names."""

    def __init__(self, *, eps: float = 1e-5, scale: float = 1.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(2 * LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(eps=eps, scale=scale) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def against_the_original(candidate: nn.Module) -> ModelComparison:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_head=HEADS, n_embd=WIDTH, vocab_size=VOCABULARY, n_positions=2 * LENGTH,
        attn_implementation="sdpa", bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return compare_models(
        transformers.GPT2LMHeadModel(config).eval(),
        candidate.eval(),
        {"input_ids": torch.randint(0, VOCABULARY, (2, LENGTH))},
        loss=(lambda output: output.logits.square().mean(), lambda output: output.square().mean()),
    )


def test_every_parameter_finds_its_place_and_the_numbers_agree() -> None:
    comparison = against_the_original(HandWritten())
    assert not comparison.differs, comparison.verdict
    assert (comparison.transfer.only_reference, comparison.transfer.only_candidate) == ((), ())
    assert len(comparison.transfer.transposed) == 8
    assert ("transformer.h.1.attn.c_proj.weight", "blocks.1.out.weight") in comparison.transfer.transposed


def test_another_eps_is_found_at_the_first_norm() -> None:
    found = against_the_original(HandWritten(eps=1e-3)).divergence
    assert found is not None
    assert (found.cause, found.site, found.op) == ("forward", "transformer.h.0.ln_1", "aten.native_layer_norm#0")


def test_another_scale_is_found_in_the_first_attention() -> None:
    found = against_the_original(HandWritten(scale=1.01)).divergence
    assert found is not None
    assert (found.cause, "scaled_dot_product" in found.op) == ("forward", True)

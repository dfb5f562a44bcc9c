"""Tokens are exchanged in a replay, and the scores that depend on them are reported."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.runs import TokenFlowProbe
from roundoff.watch.probes.token_flow import token_flow
from tests.replay.taped import taped


class Model(nn.Module):
    """One attention layer over token ids, with or without a causal mask, positions and a mask of padding."""

    def __init__(self, *, is_causal: bool, has_places: bool) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(12, 16), nn.Embedding(16, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 12)
        self.is_causal, self.has_places = is_causal, has_places

    def forward(self, ids: Tensor, hidden: Tensor | None = None) -> Tensor:
        x = self.embed(ids)
        if self.has_places:
            x = x + self.places(torch.arange(ids.shape[1]))
        later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1) if self.is_causal else None
        x = self.attention(x, x, x, attn_mask=later, key_padding_mask=hidden, need_weights=False)[0]
        scores: Tensor = self.head(x)
        return scores


def probe(
    tmp_path: Path, model: nn.Module, ids: Tensor, targets: Tensor, hidden: Tensor | None = None
) -> TokenFlowProbe | None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        scores = model(ids) if hidden is None else model(ids, hidden)
        F.cross_entropy(scores.flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return token_flow(taped(tmp_path / "run", step).replayed_step())


def next_tokens() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    rows = torch.randint(0, 12, (5, 10))
    return rows[:, :-1].clone(), rows[:, 1:].clone()


def test_a_causal_model_sees_no_later_token(tmp_path: Path) -> None:
    found = probe(tmp_path, Model(is_causal=True, has_places=True), *next_tokens())
    assert found is not None
    assert (found.is_next_token, found.sees_later, found.sees_first, found.sees_order) == (True, False, True, True)


def test_a_model_without_a_mask_sees_later_tokens(tmp_path: Path) -> None:
    found = probe(tmp_path, Model(is_causal=False, has_places=True), *next_tokens())
    assert found is not None
    assert found.sees_later


def test_a_model_without_positions_sees_no_order(tmp_path: Path) -> None:
    ids, _ = next_tokens()
    found = probe(tmp_path, Model(is_causal=False, has_places=False), ids, (ids * 5) % 12)
    assert found is not None
    assert (found.is_next_token, found.sees_later, found.sees_first, found.sees_order) == (False, None, True, False)


def test_padding_that_the_mask_hides_is_not_seen(tmp_path: Path) -> None:
    ids, _ = next_tokens()
    hidden = torch.arange(9)[None] >= torch.tensor([[4], [5], [9], [7], [6]])
    ids = torch.where(hidden, torch.zeros_like(ids), ids)
    targets = torch.where(hidden, -100, (ids * 5) % 12)
    right = probe(tmp_path / "right", Model(is_causal=False, has_places=True), ids, targets, hidden)
    assert right is not None
    assert (right.sees_padding, right.sees_tokens) == (False, True)


def test_an_inverted_mask_is_seen_where_the_model_makes_it_itself(tmp_path: Path) -> None:
    ids = 1 + next_tokens()[0] % 11
    hidden = torch.arange(9)[None] >= torch.tensor([[4], [5], [8], [7], [6]])
    ids = torch.where(hidden, torch.zeros_like(ids), ids)
    targets = torch.where(hidden, -100, ids % 5)
    model = Model(is_causal=False, has_places=True)
    found = {
        name: probe(tmp_path / name, _Masks(model, is_inverted=name == "inverted"), ids, targets)
        for name in ("right", "inverted")
    }
    assert {name: each and (each.sees_padding, each.sees_tokens) for name, each in found.items()} == {
        "right": (None, True),
        "inverted": (True, False),
    }


class _Masks(nn.Module):
    def __init__(self, model: nn.Module, *, is_inverted: bool) -> None:
        super().__init__()
        self.model, self.is_inverted = model, is_inverted

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.model(ids, (ids == 0) ^ self.is_inverted)
        return scores


def test_a_model_of_numbers_has_no_tokens(tmp_path: Path) -> None:
    model, x = nn.Linear(4, 3), torch.randn(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        F.cross_entropy(model(x), torch.tensor([0, 1, 2, 0, 1, 2])).backward()
        optimizer.step()
        optimizer.zero_grad()

    assert token_flow(taped(tmp_path / "run", step).replayed_step()) is None


class _Classifies(nn.Module):
    """Says one thing about a row, at its first token, with a residual connection around the attention."""

    def __init__(self, *, is_inverted: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 16, padding_idx=0)
        self.places = nn.Parameter(torch.randn(9, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 3)
        self.is_inverted = is_inverted

    def forward(self, ids: Tensor) -> Tensor:
        x = self.layer(self.embed(ids) + self.places, src_key_padding_mask=(ids == 0) ^ self.is_inverted)
        scores: Tensor = self.head(x[:, :1])
        return scores


def test_an_inverted_mask_is_seen_where_a_row_has_one_score_at_its_first_token(tmp_path: Path) -> None:
    ids = 2 + next_tokens()[0] % 10
    ids[:, 0] = 1
    ids[torch.arange(9)[None] >= torch.tensor([[4], [5], [8], [7], [6]])] = 0
    targets = torch.tensor([[0], [1], [2], [1], [0]])
    found = {
        is_inverted: probe(tmp_path / f"{is_inverted}", _Classifies(is_inverted=is_inverted), ids, targets)
        for is_inverted in (False, True)
    }
    assert {key: each and (each.sees_padding, each.sees_tokens) for key, each in found.items()} == {
        False: (None, True),
        True: (True, False),
    }

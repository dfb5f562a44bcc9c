"""Which tokens of a row do the scores at a position depend on? Some are changed, and the scores are compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from roundoff.replay.criterion_calls import CriterionWatcher, token_ids
from roundoff.replay.player import replay_sources
from roundoff.replay.replayed_step import ReplayedStep
from roundoff.runs import TokenFlowProbe

_SCORES_CLASSES = ("cross_entropy", "nll_loss")
_SCORES_NUMBERS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits")
_MIN_PADDING = 0.02
"""The share of tokens that must be padding for an experiment with it."""


def token_flow(step: ReplayedStep) -> TokenFlowProbe | None:
    """Change tokens of a language model or encoder, in eval mode, and look at which scores move."""
    for ids in token_ids(step.tape):
        experiment = _Experiment(step, ids)
        if experiment.plain is not None and len(ids.unique()) > 2:
            return experiment.run()
    return None


class _Experiment:
    """Plays the forward of a step with other tokens, and compares, on the host, what its loss function is given."""

    def __init__(self, step: ReplayedStep, ids: Tensor) -> None:
        self._step = step
        self._ids = ids.cpu()
        self._offset: int | None = None
        self.plain = self._scores(None)

    def run(self) -> TokenFlowProbe | None:
        ids, is_next = self._ids, self._offset == 1
        other = self._other_tokens(ids)
        last_changed = ids.clone()
        last_changed[:, -1] = other[:, -1]
        first_changed, swapped = ids.clone(), ids.clone()
        first_changed[:, 0] = other[:, 0]
        has_one = self.plain is not None and self.plain.shape[1] == 1
        pair = slice(1, 3) if has_one else slice(0, 2)  # a row with one score may begin with a token for that
        swapped[:, pair] = swapped[:, pair].flip(1)
        sees_first, sees_order = (self._moves(self._scores(new), ids.shape[1] - 1) for new in (first_changed, swapped))
        padding_seen, tokens_seen = self._padding()
        return TokenFlowProbe(
            step=self._step.tape.step,
            length=ids.shape[1],
            is_next_token=is_next,
            sees_later=self._sees_later(last_changed) if is_next else None,
            sees_first=sees_first,
            sees_order=sees_order if ids.shape[1] > 2 else None,
            has_one_score=has_one,
            sees_padding=padding_seen,
            sees_tokens=tokens_seen,
        )

    def _scores(self, ids: Tensor | None) -> Tensor | None:
        """Return the scores of each position, (rows, positions, classes), or None where the loss has no such."""
        known = self._ids

        def change(x: Tensor) -> Tensor:
            is_like = ids is not None and x.shape == known.shape and x.dtype == known.dtype
            return ids.to(x.device, copy=True) if is_like and torch.equal(x.cpu(), known) else x  # type: ignore[union-attr]

        watcher = _ScoreWatcher(self._step.tape, replay_sources())
        with self._step.in_state(), watcher:
            self._step.play(forward_only=True, is_training=False, change=change)
        for scores, targets, call in watcher.given:
            rows = len(known)
            length = targets.numel() // rows
            if targets.numel() % rows or not (length == 1 or known.shape[1] - 2 <= length <= known.shape[1]):
                continue
            by_position = scores.movedim(1, -1) if scores.dim() > 2 else scores
            if ids is None:
                self._offset = next((int(k) for k, share in call.offsets.items() if share > 0.99), None)
            return by_position.reshape(rows, length, -1)
        return None

    def _other_tokens(self, known: Tensor) -> Tensor:
        """Return another one of some tokens at every place."""
        known = known.unique()
        places = torch.searchsorted(known, self._ids)
        other: Tensor = known[(places + 1) % len(known)]
        return other

    def _moves(self, scores: Tensor | None, position: int) -> bool | None:
        if scores is None or self.plain is None or scores.shape != self.plain.shape:
            return None
        position = min(position, scores.shape[1] - 1)
        return self._differ(scores[:, position], self.plain[:, position])

    def _sees_later(self, last_changed: Tensor) -> bool | None:
        """Say whether scores before the last token change with it."""
        scores, plain = self._scores(last_changed), self.plain
        if scores is None or plain is None or scores.shape != plain.shape:
            return None
        before = slice(0, min(scores.shape[1], self._ids.shape[1] - 1))
        return self._differ(scores[:, before], plain[:, before])

    def _padding(self) -> tuple[bool | None, bool | None]:
        """Say whether the scores of real tokens change with padding, and with the real tokens."""
        given = _mask_of(self._step, self._ids)
        mask = _without_padding(self._ids) if given is None else given
        if mask is None or self.plain is None:
            return None, None
        first = mask & (mask.cumsum(1) == 1)
        # What a position says always depends on its own token, so one token is exchanged and the others are looked at.
        # A single score may be that of the first position.
        tokens = first if self.plain.shape[1] > 1 else mask & ~first
        other = self._other_tokens(self._ids[mask])  # none of them padding, which a model may hide by its id
        moved: list[bool] = []
        for places, seen_from in ((~mask, mask), (tokens, mask & ~first)):
            scores = self._scores(torch.where(places, other, self._ids))
            if scores is None or scores.shape != self.plain.shape:
                return None, None
            real = seen_from[:, : scores.shape[1]] if scores.shape[1] > 1 else mask[:, :1] | True
            moved.append(self._differ(scores[real], self.plain[real]))
        if given is None and moved[1]:
            return None, True  # no mask was passed, so that padding may well be seen
        return moved[0], moved[1]

    def _differ(self, a: Tensor, b: Tensor) -> bool:
        scale = float(b.abs().max()) or 1.0
        return bool(((a - b).abs() > 1e-5 * scale).any())


class _ScoreWatcher(CriterionWatcher):
    """Also keeps the arguments themselves."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.given: list[tuple[Tensor, Tensor, Any]] = []

    def _describe(self, name: str, given: dict[str, Any], result: Tensor) -> Any:
        call = super()._describe(name, given, result)
        if (name in _SCORES_CLASSES and call.num_counted is not None) or name in _SCORES_NUMBERS:
            self.given.append((given["input"].detach().cpu().double(), given["target"].detach().cpu(), call))
        return call


def _mask_of(step: ReplayedStep, ids: Tensor) -> Tensor | None:
    """Return where tokens are real, if the step has a mask of their shape that hides one constant id at row ends."""
    for external in step.tape.external:
        x = external.copy.cpu() if external.copy.shape == ids.shape else external.copy
        if x.shape != ids.shape or x is ids or not bool(((x == 0) | (x == 1)).all()):
            continue
        for is_real in (x != 0, x == 0):
            hidden = ids[~is_real]
            if (
                hidden.numel() >= _MIN_PADDING * ids.numel()
                and len(hidden.unique()) == 1
                and bool(is_real.any(1).all())
            ):
                return is_real
    return None


def _without_padding(ids: Tensor) -> Tensor | None:
    """Return where tokens are real, if rows end in runs of one id, of different length, that is nowhere else."""
    values, counts = ids[:, -1].unique(return_counts=True)
    padding = values[counts.argmax()]
    hidden = (ids == padding).flip(1).cumprod(1).flip(1).bool()
    runs = hidden.sum(1)
    is_padding = bool((hidden == (ids == padding)).all()) and len(runs.unique()) > 1 and int((runs > 1).sum()) > 1
    return ~hidden if is_padding and bool((~hidden).any(1).all()) else None

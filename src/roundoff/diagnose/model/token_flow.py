"""Models of token rows: positions that see later tokens, padding, or no order at all."""

from __future__ import annotations

from functools import partial
from statistics import median

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, error, rule, warning
from roundoff.runs import Finding, Run, TokenFlowProbe

_MIN_LOSSES = 50


@rule(
    Code(
        name="causal-leak",
        means="A model that is to predict the next token sees it: its loss is good in training, and it cannot write.",
        detected="In a replay the last token of each row is exchanged, and scores of earlier positions change.",
        fix="Apply the causal mask in every attention layer; do not use a bidirectional layer.",
        follows_from=("axes-confused",),
    ),
    Code(
        name="mask-inverted",
        means="A mask hides the tokens instead of the padding.",
        detected="In a replay the scores of real tokens change with the padding, and not with the tokens.",
        fix="Invert the mask: in some functions True means hidden, in others it means visible.",
    ),
    Code(
        name="read-after-padding",
        means="A recurrent layer runs over the padding at the end of a row, and the model reads its state after that: "
        "what it knew of the tokens is washed out.",
        detected="In a replay the scores change with the padding, and not with the tokens; the model has no attention.",
        fix="Read the output at the last real token, `out[range(len(lengths)), lengths - 1]`, or pack the rows.",
    ),
    Code(
        name="padding-seen",
        means="Padding changes what the model says about real tokens, although a mask was passed.",
        detected="In a replay the ids that the mask hides are exchanged, and the scores of real tokens change.",
        fix="Pass the mask on to every attention layer, and to pooling and convolutions.",
    ),
    Code(
        name="order-ignored",
        means="The model sees which tokens are in a row, but not in which order.",
        detected="In a replay the last scores change with the first token, but not when two tokens change places; and "
        "the loss has not fallen by a third. Where a row has one score in all, only in models with attention.",
        fix="Add positions to the embeddings, and check that they differ from place to place.",
        follows_from=("axes-confused",),
    ),
    order=455,
    checks="tokens that see later ones, padding, or no order",
    needs=[needs.probe(TokenFlowProbe, missing="no rows of tokens with a score for each were seen")],
)
def wrong_token_flow(run: Run) -> Finding | None:
    """Find models of token rows whose scores depend on the wrong tokens, by the experiments with the last step."""
    for probe in run.probes(TokenFlowProbe):
        certain = partial(error, step=probe.step, phase="forward")
        likely = partial(warning, confidence=0.85, step=probe.step, phase="forward")
        if probe.is_next_token and probe.sees_later:
            return certain(
                rule="causal-leak",
                confidence=0.97,
                title="positions see the tokens they are to predict",
                why="the target of each position is the next token; when the last token of each row was exchanged, "
                "scores of earlier positions changed: they see what comes later",
                fix="apply the causal mask in every attention layer, and use no bidirectional layer",
                evidence=({"length": probe.length, "changed_token": probe.length - 1},),
            )
        if probe.sees_padding and probe.sees_tokens is False and not _attends(run) and _recurs(run):
            return certain(
                rule="read-after-padding",
                confidence=0.9,
                title="the model reads its recurrent layer after the padding",
                why="when the padding was exchanged, the scores changed; when the tokens were, they did not: the state "
                "that the model reads has forgotten them",
                fix="read the output at the last real token, out[torch.arange(len(lengths)), lengths - 1], or use "
                "pack_padded_sequence",
                evidence=({"sees_padding": True, "sees_tokens": False},),
            )
        if probe.sees_padding and probe.sees_tokens is False:
            return certain(
                rule="mask-inverted",
                confidence=0.95,
                title="the mask hides the tokens and shows the padding",
                why="when the padding was exchanged, the scores of real tokens changed; when the tokens were, they "
                "did not",
                fix="invert the mask: key_padding_mask hides where it is True, attention_mask shows where it is 1",
                evidence=({"sees_padding": True, "sees_tokens": False},),
            )
        if probe.sees_padding:
            return likely(
                rule="padding-seen",
                title="padding changes what the model says about real tokens",
                why="when the ids that the mask hides were exchanged, the scores of real tokens changed",
                fix="pass the mask on to every attention layer, and leave padding out of pooling and convolutions",
                evidence=({"sees_padding": True},),
            )
        may_be_bag = probe.has_one_score and not _attends(run)
        if probe.sees_first and probe.sees_order is False and not may_be_bag and _learns_nothing(run):
            return likely(
                rule="order-ignored",
                title="the model does not see the order of the tokens",
                why="the scores change with the first token of a row, but not when two tokens change places: the row "
                "is a bag of tokens to the model",
                fix="add positions to the embeddings, and check that they differ from place to place",
                evidence=({"sees_first": True, "sees_order": False},),
            )
    return None


def _attends(run: Run) -> bool:
    """Say whether a model has attention, which needs positions; an average of embeddings is a bag on purpose."""
    kinds = {module.kind.lower() for look in run.structures(rank=run.ranks[0]) for module in look.modules}
    return any("attention" in kind or "transformer" in kind for kind in kinds)


def _recurs(run: Run) -> bool:
    kinds = {module.kind for look in run.structures(rank=run.ranks[0]) for module in look.modules}
    return any(word in kind for kind in kinds for word in ("LSTM", "GRU", "RNN"))


def _learns_nothing(run: Run) -> bool:
    """Say whether the loss has not fallen by a third: where it has, the order of the tokens is not needed."""
    losses = [metrics.loss for metrics in run.metrics(rank=run.ranks[0]) if metrics.loss is not None]
    return len(losses) >= _MIN_LOSSES and median(losses[-len(losses) // 4 :]) > 0.67 * losses[0]

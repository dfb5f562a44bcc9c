"""What becomes of labels in a recorded step: whether a layer learns from them, and what the scores are scores of."""

from __future__ import annotations

from roundoff.diagnose.flow import Flow
from roundoff.diagnose.layers import PRODUCTS
from roundoff.runs import Run, TensorFacts
from roundoff.runs.step_ops import ops_of

_LEARN = PRODUCTS | {"embedding", "_embedding_bag", "bmm", "baddbmm", "mkldnn_rnn_layer", "lstm", "gru"}
_CRITERIA = frozenset({"_log_softmax", "nll_loss_forward", "nll_loss2d_forward"})
_KEEP_THE_ORDER = frozenset({"div", "mul", "_to_copy", "clone", "copy"})
_JOIN = frozenset({"cat", "stack"})


def meets_weights(run: Run, rank: int, given: TensorFacts) -> bool:
    """Say whether a layer reads what becomes of an input; also where it is lost sight of.

    Labels that go past all layers and meet the scores right before the criterion, such as those of a margin, give the
    answer away to nobody.
    """
    flow = _flow(run, rank)
    number = int(given.hash, 16) if given.hash else None
    reached = [event for op in flow.ops if op.first.op == "input" for event in op.outputs if event.hash == number]
    seen: set[tuple[int, int]] = set()
    meets_criterion = False
    while reached:
        event = reached.pop()
        if (event.hash, event.num_elements) in seen:
            continue
        seen.add((event.hash, event.num_elements))
        for op in flow.readers_of(event):
            if op.bare in _LEARN:
                return True
            meets_criterion = meets_criterion or (op.bare in _CRITERIA and "float" in event.dtype)
            reached.extend(op.outputs)
    return not meets_criterion


def are_places_in_a_row(run: Run, rank: int) -> bool:
    """Say whether the scores of a criterion were put together from several tensors: then a class is a place in a row.

    So the right one among others may always be the first, as it is in contrastive losses.
    """
    flow = _flow(run, rank)
    for op in flow.ops:
        if op.bare == "_log_softmax" and op.inputs:
            maker = flow.maker_of(op.inputs[0])
            while maker is not None and maker.bare in _KEEP_THE_ORDER and maker.inputs:
                maker = flow.maker_of(maker.inputs[0])
            if maker is not None and maker.bare in _JOIN:
                return True
    return False


def _flow(run: Run, rank: int) -> Flow:
    return Flow(ops_of(run.iter_events(step=0, rank=rank, phase="forward")))

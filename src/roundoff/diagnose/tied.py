"""The rule for a head that was to be the embedding and is a copy of it."""

from __future__ import annotations

from collections.abc import Iterator

from roundoff.diagnose.layers import first_rank
from roundoff.runs import Finding, ParameterFacts, Run, Severity, Structure


def broken_ties(run: Run) -> list[Finding]:
    """Find an embedding and another weight that start with the same values in different memory.

    Random start values never agree by chance. Copies of whole layers and of whole models do: only a pair of an
    embedding and something else is taken for a tie.
    """
    looks = run.structures(rank=first_rank(run))
    return [_finding(looks[0], *pair) for pair in _pairs(looks[0])] if looks else []


def _pairs(look: Structure) -> Iterator[tuple[ParameterFacts, ParameterFacts]]:
    embeddings = {module.site for module in look.modules if "num_embeddings" in module.settings}
    trained = [p for p in look.parameters if p.optimizers and p.requires_grad and p.name is not None and p.std]
    for embedding in trained:
        for other in trained:
            is_pair = embedding.site in embeddings and other.site not in embeddings
            if is_pair and _start(embedding) == _start(other):
                yield embedding, other


def _start(parameter: ParameterFacts) -> tuple[object, ...]:
    return parameter.shape, parameter.mean, parameter.std, parameter.absmax


def _finding(look: Structure, embedding: ParameterFacts, other: ParameterFacts) -> Finding:
    return Finding(
        rule="tie-broken",
        severity=Severity.ERROR,
        confidence=0.95,
        step=look.step,
        site=other.site,
        parameter=other.name,
        title=f"{other.name} is a copy of {embedding.name}, not tied to it",
        why=f"{embedding.name} and {other.name} start with the same values in different memory, "
        "and the optimizer moves them apart",
        fix="assign the parameter itself, after the last change to either of them: head.weight = embedding.weight",
        evidence=({"parameters": [embedding.name, other.name], "shape": list(other.shape)},),
    )

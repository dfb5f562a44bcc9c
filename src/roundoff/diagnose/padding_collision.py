"""Embeddings whose padding row is a token of the text: it stays as it was at the start."""

from __future__ import annotations

from collections import Counter

from roundoff.diagnose.batches import model_inputs
from roundoff.runs import Finding, ModuleFacts, Run, Severity, TensorFacts

_FEWEST = 3


def colliding_paddings(run: Run) -> list[Finding]:
    """Find an embedding whose `padding_idx` occurs in the middle of the rows, between other tokens."""
    for rank in run.ranks:
        modules = [module for structure in run.structures(rank=rank) for module in structure.modules]
        for seen in model_inputs(run, rank).values():
            tensors = [tensor for _, tensor in seen if tensor.inner_counts]
            embedding = _embedding(modules, tensors)
            if embedding is None:
                continue
            row = str(embedding.settings["padding_idx"])
            num_steps = sum(row in tensor.inner_counts for tensor in tensors)
            inside = sum(tensor.inner_counts.get(row, 0) for tensor in tensors)
            if inside >= _FEWEST and 2 * num_steps >= len(tensors):
                return [_finding(embedding, row, tensors, seen[0][0], rank, inside)]
    return []


def _embedding(modules: list[ModuleFacts], tensors: list[TensorFacts]) -> ModuleFacts | None:
    """Return the first embedding with a padding row that these ids can be looked up in."""
    if not tensors:
        return None
    largest = max(tensor.max or 0.0 for tensor in tensors)
    for module in modules:
        size = module.settings.get("num_embeddings")
        is_large_enough = isinstance(size, int) and size > largest
        if is_large_enough and isinstance(module.settings.get("padding_idx"), int):
            return module
    return None


def _finding(
    embedding: ModuleFacts, row: str, tensors: list[TensorFacts], step: int, rank: int, inside: int
) -> Finding:
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts.update(tensor.counts)
    share = counts[row] / max(sum(counts.values()), 1)
    site = embedding.site
    return Finding(
        rule="padding-collision",
        severity=Severity.ERROR,
        confidence=0.85,
        step=step,
        rank=rank,
        phase="forward",
        site=site,
        parameter=f"{site}.weight" if not site.startswith("<") else None,
        title=f"padding_idx {row} is a real token",
        why=f"row {row} of {site} is never trained, because it is padding_idx; but {100 * share:.2g} % of the tokens "
        f"are {row}, {inside} of them between other tokens, where no padding is",
        fix="give padding an id of its own that the tokenizer does not use, or leave padding_idx out",
        evidence=({"row": int(row), "share": share, "num_inside": inside},),
    )

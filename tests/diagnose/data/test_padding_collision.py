"""A padding row between other tokens is a token; at the ends of rows it is padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roundoff.diagnose.data.input_values import colliding_paddings
from roundoff.runs import BatchFacts, ModuleFacts, Run
from tests.diagnose.findings import only
from tests.run_folders import tensor, write_run


def run_with(folder: Path, inner: dict[str, int], **settings: Any) -> Run:
    words = ModuleFacts(site="words", kind="Embedding", training=True, settings={"num_embeddings": 30, **settings})
    counts = {"0": 10, "5": 40, "6": 50}
    ids = tensor(shape=(4, 25), dtype="int64", max=29.0, counts=counts, inner_counts=inner)
    return write_run(folder, [BatchFacts(step=step, tensors=(ids,)) for step in range(4)], words)


def test_names_the_row_and_its_share(tmp_path: Path) -> None:
    finding = only(colliding_paddings, run_with(tmp_path / "run", {"0": 8, "5": 30, "6": 40}, padding_idx=0))
    assert (finding.rule, finding.site, finding.parameter) == ("padding-collision", "words", "words.weight")
    assert "10 % of the tokens are 0, 32 of them between other tokens" in finding.why


def test_padding_at_the_ends_is_padding(tmp_path: Path) -> None:
    assert colliding_paddings(run_with(tmp_path / "run", {"5": 30, "6": 40}, padding_idx=0)) == []


def test_without_a_padding_row_there_is_nothing_to_collide_with(tmp_path: Path) -> None:
    assert colliding_paddings(run_with(tmp_path / "run", {"0": 8}, padding_idx=None)) == []

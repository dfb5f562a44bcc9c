"""Loads that loaded nothing, and those that leave out what they should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose.model.checkpoint_loading import checkpoints_not_loaded
from roundoff.runs import Call, Run, call_detail
from tests.diagnose.findings import only
from tests.run_folders import write_run


def loaded(folder: Path, missing: list[str], unexpected: list[str], **detail: Any) -> Run:
    said = {
        "into": "Net", "num_missing": len(missing), "num_unexpected": len(unexpected), "missing": missing,
        "unexpected": unexpected, "num_keys": 4, "num_given": 4, **detail,
    }  # fmt: skip
    return write_run(folder, Call(step=0, call="load", detail=call_detail("load", said)))


KEYS = ["a.weight", "a.bias", "b.weight", "b.bias"]


@pytest.mark.parametrize(
    ("missing", "unexpected", "fix"),
    [
        (KEYS, [f"module.{key}" for key in KEYS], "remove the prefix 'module.'"),
        ([f"net.{key}" for key in KEYS], KEYS, "add the prefix 'net.' to every key"),
        ([f"body.{key}" for key in KEYS], [f"encoder.{key}" for key in KEYS], "rename 'encoder.' to 'body.'"),
    ],
)
def test_a_prefix_that_would_fit_is_reported(
    missing: list[str], unexpected: list[str], fix: str, tmp_path: Path
) -> None:
    finding = only(checkpoints_not_loaded, loaded(tmp_path / "run", missing, unexpected))
    assert (finding.rule, finding.step) == ("checkpoint-not-loaded", 0)
    assert "4 of its 4 keys are missing and 4 unexpected" in finding.why
    assert finding.fix.startswith(fix)


def test_a_checkpoint_none_of_whose_keys_fit_is_reported(tmp_path: Path) -> None:
    run = loaded(tmp_path / "run", KEYS, ["model", "epoch"], num_given=2)
    assert only(checkpoints_not_loaded, run).rule == "checkpoint-not-loaded"


def test_a_body_with_another_name_is_reported_though_the_head_was_loaded(tmp_path: Path) -> None:
    missing, unexpected = [f"body.{key}" for key in KEYS], [f"encoder.{key}" for key in KEYS]
    finding = only(checkpoints_not_loaded, loaded(tmp_path / "run", missing, unexpected, num_keys=6, num_given=6))
    assert "4 of its 6 keys are missing" in finding.why
    assert finding.fix.startswith("rename 'encoder.' to 'body.'")


def test_a_new_head_and_an_embedding_alone_are_fine(tmp_path: Path) -> None:
    assert checkpoints_not_loaded(loaded(tmp_path / "head", KEYS[2:], ["old.weight", "old.bias"])) == []
    assert checkpoints_not_loaded(loaded(tmp_path / "one", KEYS[1:], [], num_given=1)) == []

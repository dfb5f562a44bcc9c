"""A script under watch is the same script, on every kind of training; and its first steps can be replayed bit for bit.

`kinds/` holds the scripts: each trains for a few steps and saves its weights where its argument says.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.runs import Run
from tests.watch.script_server import ScriptServer

KINDS = sorted((Path(__file__).parent / "kinds").glob("*.py"))

CODES = {"exits_with_code": 7, "exits_with_text": 1}
"""How scripts end that do not end with 0."""


NOT_REPLAYED = {
    kind: "a transform of torch.func runs in it" for kind in ("func_ensemble", "func_gradients", "func_jacobian")
}
"""Kinds whose steps cannot be played again, and why; everything else is watched."""
COMES_OUT_DIFFERENTLY = ("sharded_alone", "custom_function")
"""Kinds of which a replay is not the step itself, which the run says, with the reason; the training is not harmed."""
NOTES = {
    "custom_function_clipped": tuple(
        f"Step {step} could not be recorded completely: in its replay a call returned 0 tensors instead of 1: a tensor "
        "in it was computed by code that the tape does not see, such as a custom autograd function."
        for step in (0, 1)
    ),
    "nested_tensors": ("11 tensors could not be read (meta, fake, nested, or of a foreign subclass).",) * 2,
}
"""What runs say about kinds of which a part cannot be watched."""


@pytest.mark.parametrize("script", KINDS, ids=[script.stem for script in KINDS])
def test_a_watched_script_is_the_same_script(script: Path, server: ScriptServer, tmp_path: Path) -> None:
    check_is_the_same_script(script, server, tmp_path)


def check_is_the_same_script(script: Path, server: ScriptServer, tmp_path: Path) -> None:
    """Run a kind of training bare and watched: what it prints and saves must be the same, and nothing is found."""
    ranks = 2 if script.stem.startswith("two_ranks") else 1
    bare = server.run([script, "weights.pt"], folder=tmp_path / "bare", ranks=ranks)
    watched = server.run([script, "weights.pt"], folder=tmp_path / "watched", ranks=ranks, watched=["--name", "run"])

    assert bare.codes == [CODES.get(script.stem, 0)] * ranks, bare.stderr
    assert watched.codes == bare.codes, watched.stderr
    assert watched.stdout.replace(str(tmp_path / "watched"), str(tmp_path / "bare")) == bare.stdout
    weights = sorted((tmp_path / "bare").glob("weights.pt*"))
    assert len(weights) == ranks
    for path in weights:
        assert (tmp_path / "watched" / path.name).read_bytes() == path.read_bytes()

    run = Run.open(tmp_path / "watched" / "runs" / "run")
    assert run.replayed_steps == []
    if (why := NOT_REPLAYED.get(script.stem)) is not None:
        said = f"roundoff: {len(run.metrics())} steps cannot be replayed: {why}.\nNothing found; watched"
        assert watched.stderr.startswith(bare.stderr + said), watched.stderr
        assert run.info.notes == tuple(f"Step {step} could not be recorded: {why}." for step in (0, 1))
        return
    if script.stem == "lazy_modules":
        said = "roundoff: 1 step cannot be replayed: modules make their weights in it.\nNothing found; watched"
        assert watched.stderr.startswith(bare.stderr + said), watched.stderr
        assert run.info.notes == ("Step 0 could not be recorded: modules make their weights in it.",)
        assert run.steps == [1]
        return
    assert watched.stderr.startswith(bare.stderr + "Nothing found; watched"), watched.stderr
    if script.stem in COMES_OUT_DIFFERENTLY:
        assert all("recorded from a replay that came out differently" in note for note in run.info.notes)
        assert all("such as a custom autograd function" in note for note in run.info.notes)
    else:
        assert run.info.notes == NOTES.get(script.stem, ())
    assert run.steps == [0, 1]

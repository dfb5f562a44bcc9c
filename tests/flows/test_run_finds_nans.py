"""A journey: `roundoff run train.py` on trainings in which a NaN was planted names the rule, step, site, op and line.

`nans/` holds the scripts; the line that is to be found ends with `# here`. Two are healthy, though NaN or infinity
shows up in them: nothing is to be found there.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roundoff.runs import Run
from tests.json_schemas import check_json
from tests.watch.script_server import ScriptServer

SCRIPTS = Path(__file__).parent / "nans"
PLANTED = {
    "forward": ("overflow", 7, "forward", "1", "aten.exp#0"),
    "backward": ("domain-error", 5, "backward", "root", "aten.div#0"),
    "optimizer": ("nonfinite-update", 0, "optimizer", "0", "aten.addcdiv_#0"),
    "data": ("nonfinite-input", 6, "forward", "<model>", None),
    "masked_branch": ("domain-error", 4, "forward", "entropy", "aten.log#0"),
    "attention": ("masked-softmax", 3, "forward", "attention", "aten._softmax#0"),
    "attention_fp16": ("overflow", 0, "forward", "1", "aten.bmm#0"),
    "loss": ("domain-error", 8, "forward", "<loop>", "aten.log#0"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_names_rule_step_site_op_and_line(name: str, server: ScriptServer, tmp_path: Path) -> None:
    script = SCRIPTS / f"{name}.py"
    ended = server.run([script], folder=tmp_path, watched=["--name", "run", "--json"])
    answer = json.loads(ended.stdout.splitlines()[-1])
    check_json("run", answer)
    verdict = answer["findings"][0]

    assert ended.code == 0
    assert (verdict["rule"], verdict["step"], verdict["phase"], verdict["site"], verdict["op"]) == PLANTED[name]
    assert verdict["source"] == f"nans/{script.name}:{line_to_find(script)}"
    run = Run.open(tmp_path / "runs" / "run")
    info = run.replay(verdict["step"]).replay_info()
    assert info is not None
    assert info.is_identical


@pytest.mark.parametrize("name", ["healthy_sqrt", "healthy_mask"])
def test_is_silent_where_a_mask_takes_them_away(name: str, server: ScriptServer, tmp_path: Path) -> None:
    ended = server.run([SCRIPTS / f"{name}.py"], folder=tmp_path, watched=["--name", "run"])
    assert ended.code == 0
    assert ended.stderr.startswith("Nothing found; watched 12 steps")
    assert Run.open(tmp_path / "runs" / "run").replayed_steps == []


def line_to_find(script: Path) -> int:
    (number,) = [n for n, line in enumerate(script.read_text().splitlines(), 1) if line.endswith("# here")]
    return number

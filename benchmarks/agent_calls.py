"""How many calls of the tool a program needs that reads only its JSON until it has the edit that fixes a training.

30 faulty trainings of tests/faults, one fault each; the script is called train.py and loses its docstring, which names
the fault. The program follows one procedure and reads no prose: `run --json`; apply the edits of the first finding
and run again, while they say what to write; where there are none, `diagnose --finding ID --json` and `replay --json`.
FIXES says, for each training, which line its fix edits or adds, and was written before the program first ran,
knowing the scripts and the rules: the figure says that edits are complete, not how they do on scripts nobody has seen.

- *right line*: the first edit is of that line
- *fixed*: the edits were applied, and the next run has neither an error nor a warning

python benchmarks/agent_calls.py [NAME ...] [--json]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FAULTS = Path(__file__).parents[1] / "tests" / "faults"
MAX_CALLS = 5
FIXES = {
    "missing_zero_grad_mlp": r"\.zero_grad\(\)",
    "zero_grad_before_step_mlp": r"\.zero_grad\(\)",
    "missing_step_mlp": r"optimizer\.step\(\)",
    "double_step_mlp": r"\.step\(",
    "clip_before_unscale_mlp": r"unscale_|clip_grad",
    "clip_after_step_lstm": r"clip_grad",
    "step_on_scaled_gradients_mlp": r"optimizer\.step\(\)",
    "scheduler_rate_step_lr": r"scheduler",
    "eval_mode_training_dropout": r"model\.(eval|train)\(\)",
    "lr_zero_warm_up": r"LambdaLR",
    "lr_too_high_sgd": r"lr=30",
    "lr_too_low_mlp": r"lr=1e-6",
    "loss_sum_reduction_mlp": r'reduction="sum"',
    "accumulation_not_averaged_mlp": r"backward\(\)",
    "mixed_reductions_vae": r"torch\.sum",
    "loss_broadcast_regression": r"mse_loss",
    "padding_in_loss_copy": r"CrossEntropyLoss",
    "target_never_seen_end": r"masked_fill\(ids == 0",
    "double_softmax_mlp": r"nn\.Softmax",
    "graph_cut_detach": r"\.detach\(\)",
    "tie_broken_data": r"lm_head\.weight",
    "not_in_optimizer_head": r"optim\.Adam",
    "stale_optimizer_parameters_head": r"optim\.Adam|model\.head = ",
    "optimizer_state_lost_halfway": r"load_state_dict",
    "zero_init_mlp": r"zeros_",
    "affine_network_mlp": r"nn\.Sequential",
    "batch_mixing_lstm": r"nn\.LSTM",
    "mask_inverted_encoder": r"key_padding_mask",
    "cancellation_variance": r"variance = ",
    "consumed_overflow_norm": r"norm = ",
}
"""A pattern of the line to edit, or of the line to add."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the program did on one training."""

    name: str
    finding: str
    calls: int
    """Until it had an edit, or a place, or nothing more to ask."""
    is_right: bool
    is_applied: bool
    """Whether the edits said what to write."""
    is_fixed: bool
    edit: str


def main() -> None:
    """Print a line for each training, and the totals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    outcomes = []
    for name in given.names or FIXES:
        outcomes.append(solve(name))
        if not given.json:
            one = outcomes[-1]
            right, fixed = "yes" if one.is_right else "no", "yes" if one.is_fixed else "no" if one.is_applied else "-"
            print(f"{name:34} {one.calls} calls  right line {right:4} fixed {fixed:4} {one.finding}  {one.edit}")
            sys.stdout.flush()
    right = [one for one in outcomes if one.is_right]
    totals = {
        "trainings": len(outcomes),
        "right_line": len(right),
        "right_line_in_one_call": sum(one.calls == 1 for one in right),
        "mean_calls_to_right_line": sum(one.calls for one in right) / max(1, len(right)),
        "edits_applied": sum(one.is_applied for one in outcomes),
        "fixed": sum(one.is_fixed for one in outcomes),
    }
    print(json.dumps({"totals": totals, "outcomes": [asdict(one) for one in outcomes]} if given.json else totals))


def solve(name: str) -> Outcome:
    """Let the program work on one training."""
    with tempfile.TemporaryDirectory() as folder:
        tool = Tool(Path(folder))
        script = Path(folder) / "train.py"
        source = (FAULTS / f"{name}.py").read_text()
        script.write_text(re.sub(r'\A""".*?"""', "", source, flags=re.DOTALL))
        lines = script.read_text().splitlines()
        finding = first_problem(tool.call("run", "--json", "--name", "run0", "train.py"))
        if finding is None:
            return Outcome(
                name=name, finding="nothing", calls=1, is_right=False, is_applied=False, is_fixed=False, edit=""
            )
        edits = finding["edits"]
        if not edits:
            finding = tool.call("diagnose", "runs/run0", "--finding", finding["id"], "--json")["finding"]
            saved = tool.call("replay", "runs/run0", "--json")
            edits = [{"action": "change", "line": line} for line in lines_named(finding, saved)]
        calls, target = tool.num_calls, edited_line(edits[0], lines) if edits else ""
        is_applied = bool(edits) and all(edit["action"] != "change" for edit in edits)
        return Outcome(
            name=name,
            finding=finding["id"],
            calls=calls,
            is_right=bool(re.search(FIXES[name], target)),
            is_applied=is_applied,
            is_fixed=is_applied and is_fixed_by(finding, tool, script),
            edit=target.strip(),
        )


class Tool:
    """Calls roundoff in a folder and reads the JSON that it prints."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.num_calls = 0

    def call(self, *words: str) -> dict[str, Any]:
        """Run a command; an empty object if it printed none."""
        self.num_calls += 1
        command = [sys.executable, "-m", "roundoff", *words]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, check=False)
        printed = done.stdout[max(done.stdout.find("{\n"), done.stdout.rfind("\n{") + 1, 0) :]
        try:
            found = json.loads(printed)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


def first_problem(answer: dict[str, Any]) -> dict[str, Any] | None:
    """Return the first finding that is more than a note."""
    return next((each for each in answer.get("findings", []) if each["severity"] != "note"), None)


def lines_named(finding: dict[str, Any], saved: dict[str, Any]) -> list[int]:
    """Return the lines of train.py that a finding, or the origin of a saved step, names."""
    sources = [finding.get("source"), (saved.get("origin") or {}).get("source")]
    found = [re.fullmatch(r"train\.py:(\d+)", source or "") for source in sources]
    return [int(match[1]) for match in found if match]


def edited_line(edit: dict[str, Any], lines: list[str]) -> str:
    """Return the line that an edit changes, or the one that it adds."""
    return str(edit["new"]) if edit["action"] == "insert" else lines[edit["line"] - 1]


def is_fixed_by(finding: dict[str, Any], tool: Tool, script: Path) -> bool:
    """Apply the edits and those of what is found next, and say whether a run without findings was reached."""
    for attempt in range(1, MAX_CALLS):
        edits = finding["edits"]
        if not edits or any(edit["action"] == "change" for edit in edits):
            return False
        script.write_text(apply_edits(script.read_text(), edits))
        answer = tool.call("run", "--json", "--name", f"run{attempt}", "train.py")
        if answer.get("watched") != "complete":
            return False
        following = first_problem(answer)
        if following is None:
            return True
        finding = following
    return False


def apply_edits(text: str, edits: list[dict[str, Any]]) -> str:
    """Return the text with edits applied, from the last line to the first, so that line numbers stay true."""
    lines = text.splitlines()
    for edit in sorted(edits, key=lambda edit: -edit["line"]):
        place = edit["line"] - 1
        if edit["action"] == "replace":
            lines[place] = lines[place].replace(edit["old"], edit["new"], 1)
        elif edit["action"] == "insert":
            lines.insert(place, edit["new"])
        else:
            del lines[place]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

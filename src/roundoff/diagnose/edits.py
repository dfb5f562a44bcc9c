"""The fix of a finding as edits of the script, where its code says which line that is."""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from roundoff.diagnose.model_edits import MODEL_WRITERS, Writer
from roundoff.diagnose.quoted_code import read_user_code
from roundoff.diagnose.script_code import ScriptCode, called_name, first_after, keyword, receiver
from roundoff.errors import RoundoffError
from roundoff.runs import Edit, Finding, Run


def with_edits(run: Run, findings: Sequence[Finding], *, is_at_hand: bool) -> list[Finding]:
    """Return the findings, each whose fix has a known place in the code with its edits.

    Files are read only if `is_at_hand`, as in `quote_code`; edits of an earlier diagnosis are kept.
    """
    earlier: dict[str, tuple[Edit, ...]] = {}
    with contextlib.suppress(RoundoffError, OSError):
        earlier = {finding.id: finding.edits for finding in run.findings() or ()}
    codes = _Codes(run) if is_at_hand else None
    return [
        replace(finding, edits=tuple(codes.edits_of(finding)) if codes else earlier.get(finding.id, ()))
        for finding in findings
    ]


class _Codes:
    """The files that findings of a run name, parsed once each."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[str, ScriptCode | None] = {}
        self._script = next((Path(word).name for word in run.info.command if word.endswith(".py")), None)

    def edits_of(self, finding: Finding) -> list[Edit]:
        """Return the edits of the rule's own writer, else the line of `source`, else the one that builds the site."""
        try:
            return self._edits_of(finding)
        except Exception:  # the code is the user's and may be anything; a finding without edits is as true
            return []

    def _edits_of(self, finding: Finding) -> list[Edit]:
        script = None if self._script is None else self._code(self._script)
        writer = _WRITERS.get(finding.rule)
        if script is not None and writer is not None and (edits := writer(finding, script)):
            return script.keep_valid(edits)
        name, _, number = (finding.source or "").rpartition(":")
        if number.isdecimal() and (code := self._code(name)) is not None:
            return code.change(int(number))
        if script is None or finding.rule in _NOT_BY_SITE:
            return []
        site = finding.site or (finding.parameter or "").rpartition(".")[0]
        definition = script.definition_of(site) if site and not site.startswith("<") else None
        return [] if definition is None else script.change(definition)

    def _code(self, name: str) -> ScriptCode | None:
        if name not in self._known:
            lines = read_user_code(self._run, name)
            self._known[name] = None
            with contextlib.suppress(SyntaxError, RecursionError):
                self._known[name] = None if lines is None else ScriptCode(name, lines)
        return self._known[name]


_NOT_BY_SITE = frozenset({"loss-spike", "loss-rising", "loss-flat", "loss-exploded", "exception", "hang", "killed"})
"""The site of these is where it was seen, not what to change."""
_CLIPS = ("clip_grad_norm_", "clip_grad_value_")


def _backward_and_step(code: ScriptCode) -> tuple[ast.stmt, ast.stmt] | None:
    """Return the statements of the one backward and of the optimizer's one step."""
    backward, steps = code.only_call("backward"), _optimizer_steps(code)
    if backward is None or len(steps) != 1:
        return None
    return code.statement_of(backward), code.statement_of(steps[0])


def _optimizer_steps(code: ScriptCode) -> list[ast.Call]:
    """Return the calls that step the optimizer, directly or by a scaler."""
    name = code.optimizer_name
    return [
        call
        for call in code.calls_of("step")
        if name is not None and (receiver(call) == name or (call.args and ast.unparse(call.args[0]) == name))
    ]


def _clear_gradients(finding: Finding, code: ScriptCode) -> list[Edit]:
    backward = code.only_call("backward")
    if backward is None or code.optimizer_name is None:
        return []
    return code.insert_before(code.statement_of(backward), f"{code.optimizer_name}.zero_grad()")


def _clear_later(finding: Finding, code: ScriptCode) -> list[Edit]:
    clear, known = code.only_call("zero_grad"), _backward_and_step(code)
    if clear is None or known is None:
        return code.change(clear) if clear is not None else []
    return code.move(code.statement_of(clear), after=known[1])


def _add_step(finding: Finding, code: ScriptCode) -> list[Edit]:
    backward = code.only_call("backward")
    if backward is None or code.optimizer_name is None or _optimizer_steps(code):
        return []
    return code.insert_after(code.statement_of(backward), f"{code.optimizer_name}.step()")


def _drop_second_step(finding: Finding, code: ScriptCode) -> list[Edit]:
    steps = _optimizer_steps(code)
    if len(steps) != 2 or code.loop_of(steps[0]) is not code.loop_of(steps[1]):
        return code.change(steps[-1]) if steps else []
    return code.remove(code.statement_of(steps[1]))


def _unscale_before_clipping(finding: Finding, code: ScriptCode) -> list[Edit]:
    clip, scaler = code.only_call(*_CLIPS), code.name_of(code.only_call("GradScaler"))
    if clip is None or scaler is None or code.optimizer_name is None:
        return code.change(clip) if clip is not None else []
    return code.insert_before(code.statement_of(clip), f"{scaler}.unscale_({code.optimizer_name})")


def _step_by_scaler(finding: Finding, code: ScriptCode) -> list[Edit]:
    steps, scaler = _optimizer_steps(code), code.name_of(code.only_call("GradScaler"))
    if len(steps) != 1 or scaler is None:
        return [edit for step in steps for edit in code.change(step)]
    edits = code.replace(steps[0], f"{scaler}.step({code.optimizer_name})")
    if not code.calls_of("update", of=scaler):
        edits += code.insert_after(code.statement_of(steps[0]), f"{scaler}.update()")
    return edits


def _move_clipping(finding: Finding, code: ScriptCode) -> list[Edit]:
    clip, known = code.only_call(*_CLIPS), _backward_and_step(code)
    if clip is None or known is None:
        return code.change(clip) if clip is not None else []
    return code.move(code.statement_of(clip), after=known[0])


def _move_scheduler(finding: Finding, code: ScriptCode) -> list[Edit]:
    found, known = _scheduler_steps(code), _backward_and_step(code)
    if len(found) != 1 or known is None:
        return code.change(found[0]) if found else []
    return code.move(code.statement_of(found[0]), after=known[1])


def _scheduler_steps(code: ScriptCode) -> list[ast.Call]:
    own = _optimizer_steps(code)
    return [call for call in code.calls_of("step") if call not in own and "sched" in (receiver(call) or "").lower()]


def _step_scheduler_by_epoch(finding: Finding, code: ScriptCode) -> list[Edit]:
    """Move the one step of the schedule behind the loop over batches, if that is inside of one over epochs."""
    found = _scheduler_steps(code)
    loop = code.loop_of(found[0]) if len(found) == 1 else None
    epochs = None if loop is None else code.parent_of(loop)
    if loop is None or loop.orelse or not isinstance(epochs, ast.For) or len(loop.body) < 2:
        return [edit for call in found[:1] for edit in code.change(call)]
    return code.move(code.statement_of(found[0]), after=loop)


def _train_mode(finding: Finding, code: ScriptCode) -> list[Edit]:
    """Call train() at the beginning of the loop that has the backward, on what eval() was called on."""
    backward, evals = code.only_call("backward"), code.calls_of("eval")
    loop = None if backward is None else code.loop_of(backward)
    models = {receiver(call) for call in evals}
    if loop is None or len(models) != 1:
        return [edit for call in evals[:1] for edit in code.change(call)]
    return code.insert_before(loop.body[0], f"{models.pop()}.train()")


def _mean_instead_of_sum(finding: Finding, code: ScriptCode) -> list[Edit]:
    for call in code.calls:
        value = keyword(call, "reduction")
        if isinstance(value, ast.Constant) and value.value == "sum":
            text = code.text_of(value)
            return code.replace(value, '"mean"' if text is None or text[0] == '"' else "'mean'")
    sums = [call for call in code.calls_of("sum") if _reaches_backward(call, code)]
    return [edit for call in sums[:1] for edit in code.change(call)]


def _reaches_backward(node: ast.AST, code: ScriptCode) -> bool:
    statement = code.statement_of(node)
    backward = code.only_call("backward")
    name = next((ast.unparse(target) for target in getattr(statement, "targets", [])), None)
    return backward is not None and (code.statement_of(backward) is statement or receiver(backward) == name)


def _divide_loss(finding: Finding, code: ScriptCode) -> list[Edit]:
    backward = code.only_call("backward")
    if backward is None or not isinstance(backward.func, ast.Attribute):
        return []
    counts = [item.get("num_backwards") for item in finding.evidence if isinstance(item, dict)]
    count = next((count for count in counts if isinstance(count, int) and count > 1), None)
    loss = backward.func.value
    if count is None or not isinstance(loss, ast.Name):
        return code.change(backward)
    return code.replace(backward, f"({loss.id} / {count}).backward()")


def _change_rate(finding: Finding, code: ScriptCode) -> list[Edit]:
    """Lower the rate ten times, or raise it a hundred times, where it is a number in the optimizer's call."""
    if finding.rule == "lr-zero" and (schedulers := _schedulers(code)):
        return _without_floor(schedulers[0], code) or code.change(schedulers[0])
    rate = None if code.optimizer is None else keyword(code.optimizer, "lr")
    if rate is None:
        return [] if code.optimizer is None else code.change(code.optimizer)
    factor = {"lr-too-high": 0.01, "lr-too-low": 1000.0}.get(finding.rule)
    if factor is None or not isinstance(rate, ast.Constant) or not isinstance(rate.value, int | float):
        return code.change(rate)
    return code.replace(rate, f"{rate.value * factor:.3g}")


def _without_floor(scheduler: ast.Call, code: ScriptCode) -> list[Edit]:
    """Divide where the schedule's own function divides without remainder, which is 0 until the warm-up has ended."""
    floors = [
        node
        for argument in scheduler.args
        if isinstance(argument, ast.Lambda)
        for node in ast.walk(argument.body)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv)
    ]
    if len(floors) != 1:
        return []
    return code.replace(floors[0], f"{ast.unparse(floors[0].left)} / {ast.unparse(floors[0].right)}")


def _schedulers(code: ScriptCode) -> list[ast.Call]:
    return [
        call for call in code.calls if called_name(call).endswith(("LR", "Scheduler", "CosineAnnealingWarmRestarts"))
    ]


def _point_to_optimizer(finding: Finding, code: ScriptCode) -> list[Edit]:
    return [] if code.optimizer is None else code.change(code.optimizer)


def _all_parameters(finding: Finding, code: ScriptCode) -> list[Edit]:
    """Give the optimizer the parameters of the whole model if it gets those of a part: `model.body.parameters()`."""
    given = code.optimizer.args[0] if code.optimizer is not None and code.optimizer.args else None
    if isinstance(given, ast.Call) and called_name(given) == "parameters" and isinstance(given.func, ast.Attribute):
        part = given.func.value
        whole = part.value if isinstance(part, ast.Attribute) else None
        if isinstance(whole, ast.Name) and whole.id in map(called_name, code.calls):
            return code.replace(given, f"{whole.id}.parameters()")
    return _point_to_optimizer(finding, code)


def _build_optimizer_later(finding: Finding, code: ScriptCode) -> list[Edit]:
    """Move the optimizer behind the last line that replaces a part of its model, if nothing uses it before."""
    given = code.optimizer.args[0] if code.optimizer is not None and code.optimizer.args else None
    model = receiver(given) if isinstance(given, ast.Call) and called_name(given) == "parameters" else None
    if code.optimizer is None or code.optimizer_name is None or model is None:
        return _point_to_optimizer(finding, code)
    built = code.statement_of(code.optimizer)
    after = code.following(built)
    changes = [place for place, each in enumerate(after) if _replaces_part(each, model)]
    between = after[: changes[-1] + 1] if changes else []
    if not between or any(code.mentions(each, code.optimizer_name) for each in between):
        return _point_to_optimizer(finding, code)
    return code.move(built, after=between[-1])


def _replaces_part(statement: ast.stmt, model: str) -> bool:
    return isinstance(statement, ast.Assign) and any(
        isinstance(target, ast.Attribute) and ast.unparse(target).startswith(f"{model}.")
        for target in statement.targets
    )


def _point_to_loading(finding: Finding, code: ScriptCode) -> list[Edit]:
    calls = code.calls_of("load_state_dict", "from_pretrained")
    return [edit for call in calls[:1] for edit in code.change(call)]


def _load_optimizer(finding: Finding, code: ScriptCode) -> list[Edit]:
    """Load the optimizer's state after the model's, from the same file."""
    load = code.only_call("load_state_dict")
    given = load.args[0] if load is not None and load.args else None
    if load is None or code.optimizer_name is None or not isinstance(given, ast.Subscript):
        return [] if load is None else code.change(load)
    keys = next((item["keys"] for item in finding.evidence if isinstance(item, dict) and "keys" in item), None)
    key = keys[0] if isinstance(keys, list) and len(keys) == 1 else "optimizer"
    text = f"{code.optimizer_name}.load_state_dict({ast.unparse(given.value)}[{json.dumps(key)}])"
    return code.insert_after(code.statement_of(load), text)


def _point_to_half(finding: Finding, code: ScriptCode) -> list[Edit]:
    calls = code.calls_of("half", "bfloat16", "autocast")
    return [edit for call in calls[:1] for edit in code.change(call)] if len(calls) == 1 else []


def _point_to_average(finding: Finding, code: ScriptCode) -> list[Edit]:
    first = first_after(code.calls_of("state_dict", "deepcopy", "copy", "AveragedModel"), 0)
    return [] if first is None else code.change(first)


_WRITERS: dict[str, Writer] = {
    **MODEL_WRITERS,
    "missing-zero-grad": _clear_gradients,
    "zero-grad-before-step": _clear_later,
    "gradients-thrown-away": _clear_later,
    "missing-step": _add_step,
    "double-step": _drop_second_step,
    "clip-before-unscale": _unscale_before_clipping,
    "step-on-scaled-gradients": _step_by_scaler,
    "clip-after-step": _move_clipping,
    "clip-before-backward": _move_clipping,
    "scheduler-before-step": _move_scheduler,
    "scheduler-rate": _step_scheduler_by_epoch,
    "eval-mode-training": _train_mode,
    "loss-sum-reduction": _mean_instead_of_sum,
    "accumulation-not-averaged": _divide_loss,
    "lr-too-high": _change_rate,
    "lr-too-low": _change_rate,
    "lr-zero": _change_rate,
    "not-in-optimizer": _all_parameters,
    "stale-optimizer-parameters": _build_optimizer_later,
    "norm-weight-decay": _point_to_optimizer,
    "checkpoint-not-loaded": _point_to_loading,
    "optimizer-state-lost": _load_optimizer,
    "update-below-ulp": _point_to_half,
    "gradient-underflow": _point_to_half,
    "ema-broken": _point_to_average,
}
"""By code; other findings point to their source line, or to the line that builds their site."""

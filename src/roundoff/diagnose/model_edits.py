"""The fix of a finding as edits where the script builds its model, its loss and its data."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TypeAlias

from roundoff.diagnose.script_code import ScriptCode, called_name, keyword, receiver
from roundoff.runs import Edit, Finding

Writer: TypeAlias = Callable[[Finding, ScriptCode], list[Edit]]
"""Returns the edits that fix a finding, or nothing where the code does not say which."""


def _drop_softmax(finding: Finding, code: ScriptCode) -> list[Edit]:
    found = code.only_call("Softmax", "softmax", "LogSoftmax", "log_softmax")
    if found is None:
        return []
    parent = code.parent_of(found)
    if isinstance(parent, ast.Call) and called_name(parent) == "Sequential" and (own := code.text_of(found)):
        line = code.lines[found.lineno - 1]
        old = f", {own}" if f", {own}" in line else own
        return [Edit(file=code.file, line=found.lineno, action="replace", old=old, new="")]
    if isinstance(found.func, ast.Attribute) and receiver(found) in ("F", "functional", "torch", "nn.functional"):
        inner: ast.expr | None = found.args[0] if found.args else None
    else:
        inner = found.func.value if isinstance(found.func, ast.Attribute) else None
    text = None if inner is None or called_name(found)[0].isupper() else code.text_of(inner)
    return code.change(found) if text is None else code.replace(found, text)


def _drop_cut(finding: Finding, code: ScriptCode) -> list[Edit]:
    """Remove the one detach of the line that the finding names: elsewhere in the script one may be meant."""
    file, _, number = (finding.source or "").rpartition(":")
    if file != code.file or not number.isdecimal():
        return []
    here = [call for call in code.calls_of("detach") if call.lineno == int(number)]
    if len(here) != 1 or not isinstance(here[0].func, ast.Attribute):
        return []
    inner = code.text_of(here[0].func.value)
    return code.change(here[0]) if inner is None else code.replace(here[0], inner)


def _ignore_padding(finding: Finding, code: ScriptCode) -> list[Edit]:
    call = code.only_call("CrossEntropyLoss", "cross_entropy", "NLLLoss", "nll_loss")
    padding = next((item.get("padding") for item in finding.evidence if isinstance(item, dict)), None)
    text = None if call is None else code.text_of(call)
    if call is None or text is None or padding is None or keyword(call, "ignore_index") is not None:
        return [] if call is None else code.change(call)
    comma = ", " if call.args or call.keywords else ""
    return code.replace(call, f"{text[:-1]}{comma}ignore_index={padding})")


def _batch_first(finding: Finding, code: ScriptCode) -> list[Edit]:
    call = code.only_call("LSTM", "GRU", "RNN", "MultiheadAttention", "TransformerEncoderLayer")
    text = None if call is None else code.text_of(call)
    if call is None or text is None or keyword(call, "batch_first") is not None:
        return []
    return code.replace(call, f"{text[:-1]}, batch_first=True)")


def _random_start(finding: Finding, code: ScriptCode) -> list[Edit]:
    """Remove the line that fills weights with one number: what torch filled them with before is random."""
    calls = code.calls_of("zeros_", "constant_", "ones_", "fill_", "zero_", "zeros", "ones", "full")
    in_loop = {code.loop_of(call) for call in code.calls_of("backward")}
    outside = [call for call in calls if code.loop_of(call) not in in_loop or code.loop_of(call) is None]
    init = [call for call in outside if (receiver(call) or "").endswith("init")] or outside
    if len(init) == 1 and (receiver(init[0]) or "").endswith("init"):
        filling, loop = code.statement_of(init[0]), code.loop_of(init[0])
        if loop is None or loop.body != [filling] or loop.orelse:
            return code.remove(filling)
        return sorted(code.remove(loop), key=lambda edit: -edit.line)  # the line at fault first
    return [edit for call in init[:1] for edit in code.change(call)]


def _same_shapes(finding: Finding, code: ScriptCode) -> list[Edit]:
    """Give the target the last dimension that the prediction has beyond it, in the one call of the loss' line."""
    shapes = next((item for item in finding.evidence if isinstance(item, dict) and "input" in item), {})
    given, target = shapes.get("input"), shapes.get("target")
    if not isinstance(given, list) or not isinstance(target, list) or given != [*target, 1]:
        return []
    here = [call for call in code.calls if len(call.args) >= 2 and finding.source == f"{code.file}:{call.lineno}"]
    losses = [call for call in here if called_name(call).lower().endswith("loss") or called_name(call) == "criterion"]
    text = code.text_of(losses[0].args[1]) if len(losses) == 1 else None
    if text is None:
        return []
    is_simple = isinstance(losses[0].args[1], ast.Name | ast.Attribute | ast.Subscript | ast.Call)
    return code.replace(losses[0].args[1], f"{text if is_simple else f'({text})'}.unsqueeze(-1)")


def _show_tokens(finding: Finding, code: ScriptCode) -> list[Edit]:
    """Invert the mask where it is passed to the one layer that takes one."""
    names = ("key_padding_mask", "src_key_padding_mask", "attn_mask", "attention_mask")
    masks = [value for call in code.calls for name in names if (value := keyword(call, name)) is not None]
    text = code.text_of(masks[0]) if len(masks) == 1 else None
    if text is None or not isinstance(masks[0], ast.Name | ast.Attribute):
        return [edit for mask in masks[:1] for edit in code.change(mask)]
    return code.replace(masks[0], f"{text}.logical_not()")


def _tie(finding: Finding, code: ScriptCode) -> list[Edit]:
    """Assign the parameter itself where the script copies it: `head.weight.data.copy_(embedding.weight.data)`."""
    name = ".".join((finding.parameter or "").split(".")[-2:])
    for statement in (node for node in ast.walk(code.tree) if isinstance(node, ast.stmt)):
        sides = _copied_pair(statement)
        if name and sides is not None and sides[0].endswith(name):
            return code.replace(statement, f"{sides[0]} = {sides[1]}")
    for number, line in enumerate(code.lines, 1):
        if name and name in line and ("=" in line or "copy_" in line):
            return code.change(number)
    return []


def _copied_pair(statement: ast.stmt) -> tuple[str, str] | None:
    """Return the two parameters of a statement that copies one to the other, without `.data` and copies of it."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        to, what = statement.targets[0], statement.value
    elif isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call) and call.args:
        if called_name(call) != "copy_" or not isinstance(call.func, ast.Attribute):
            return None
        to, what = call.func.value, call.args[0]
    else:
        return None
    sides = _parameter(to), _parameter(what)
    return (sides[0], sides[1]) if sides[0] and sides[1] and sides[0] != sides[1] else None


def _parameter(node: ast.expr) -> str | None:
    while True:
        if isinstance(node, ast.Call) and called_name(node) in ("clone", "detach") and not node.args:
            node = node.func.value if isinstance(node.func, ast.Attribute) else node
        elif isinstance(node, ast.Call) and called_name(node) == "Parameter" and len(node.args) == 1:
            node = node.args[0]
        elif isinstance(node, ast.Attribute) and node.attr == "data":
            node = node.value
        else:
            return ast.unparse(node) if isinstance(node, ast.Attribute) and node.attr == "weight" else None


def _insert_nonlinearities(finding: Finding, code: ScriptCode) -> list[Edit]:
    """Put a ReLU after every linear layer but the last, in the one Sequential that has all of them on one line."""
    for call in code.calls_of("Sequential"):
        layers = [each for each in call.args if isinstance(each, ast.Call) and called_name(each).startswith("Linear")]
        texts, whole = [code.text_of(layer) for layer in layers], code.text_of(call)
        if len(layers) < 2 or whole is None or len(layers) != _num_sites(finding):
            continue
        new, prefix = whole, (receiver(layers[0]) or "") + "." if receiver(layers[0]) else ""
        if not prefix or len({*texts}) != len(texts):
            return code.change(call)
        for text in texts[:-1]:
            new = new.replace(str(text), f"{text}, {prefix}ReLU()", 1)
        return code.replace(call, new)
    return []


def _num_sites(finding: Finding) -> int:
    sites = next((item["sites"] for item in finding.evidence if isinstance(item, dict) and "sites" in item), None)
    return len(sites) if isinstance(sites, list) else 0


def _variance(finding: Finding, code: ScriptCode) -> list[Edit]:
    """Replace `(x**2).mean(...) - x.mean(...)**2` on the finding's line by `x.var(..., correction=0)`."""
    for node in ast.walk(code.tree):
        if isinstance(node, ast.BinOp) and finding.source == f"{code.file}:{node.lineno}":
            squares, mean = _mean_of_square(node.left), _square(node.right)
            if isinstance(node.op, ast.Sub) and squares is not None and mean is not None:
                own = _mean_call(mean, code)
                if own is not None and (ast.unparse(own.func), _arguments(own)) == (f"{squares[0]}.mean", squares[1]):
                    comma = ", " if squares[1] else ""
                    return code.replace(node, f"{squares[0]}.var({squares[1]}{comma}correction=0)")
    return []


def _mean_of_square(node: ast.expr) -> tuple[str, str] | None:
    if isinstance(node, ast.Call) and called_name(node) == "mean" and isinstance(node.func, ast.Attribute):
        base = _square(node.func.value)
        return None if base is None else (ast.unparse(base), _arguments(node))
    return None


def _square(node: ast.expr) -> ast.expr | None:
    """Return what is squared: `x` of `x**2`, `x * x`, `x.square()` and `x.pow(2)`."""
    match node:
        case ast.BinOp(left=base, op=ast.Pow(), right=ast.Constant(value=2)):
            return base
        case ast.BinOp(left=base, op=ast.Mult(), right=other) if ast.dump(base) == ast.dump(other):
            return base
        case ast.Call(func=ast.Attribute(value=base, attr="square"), args=[]):
            return base
        case ast.Call(func=ast.Attribute(value=base, attr="pow"), args=[ast.Constant(value=2)]):
            return base
    return None


def _mean_call(mean: ast.expr, code: ScriptCode) -> ast.Call | None:
    """Return the call that a mean is, or the one that its name was assigned."""
    if isinstance(mean, ast.Name):
        named = [call for call in code.calls_of("mean") if code.name_of(call) == mean.id]
        return named[0] if len(named) == 1 else None
    return mean if isinstance(mean, ast.Call) else None


def _arguments(call: ast.Call) -> str:
    return ", ".join(map(ast.unparse, [*call.args, *call.keywords]))


def _shuffle(finding: Finding, code: ScriptCode) -> list[Edit]:
    call = code.only_call("DataLoader")
    text = None if call is None else code.text_of(call)
    if call is None or text is None or any(keyword(call, name) is not None for name in ("sampler", "batch_sampler")):
        return [] if call is None else code.change(call)
    shuffled = keyword(call, "shuffle")
    return code.replace(shuffled, "True") if shuffled is not None else code.replace(call, f"{text[:-1]}, shuffle=True)")


MODEL_WRITERS: dict[str, Writer] = {
    "double-softmax": _drop_softmax,
    "graph-cut": _drop_cut,
    "zero-init": _random_start,
    "symmetric-init": _random_start,
    "padding-in-loss": _ignore_padding,
    "loss-broadcast": _same_shapes,
    "mask-inverted": _show_tokens,
    "affine-network": _insert_nonlinearities,
    "cancellation": _variance,
    "data-not-shuffled": _shuffle,
    "batch-mixing": _batch_first,
    "tie-broken": _tie,
}
"""By code."""

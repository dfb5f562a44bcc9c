"""Guises that keep the plain loop: in a class of its own, with another batch size, beside a model, under autocast."""

from __future__ import annotations

import ast
import random

from tests.faults.guises.training_loop import names_stored, parse, plain_training, split_imports, training_loops


def training_class(tree: ast.Module, _: random.Random) -> ast.Module | None:
    """Turn a script into a class: what it sets up becomes attributes, and the rest a method that trains."""
    training = plain_training(tree)
    if training is None or any(isinstance(node, (ast.Global, ast.NamedExpr)) for node in ast.walk(tree)):
        return None
    first, _ = split_imports(tree)
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    setup = [node for node in tree.body[len(first) : training.index] if not isinstance(node, kinds)]
    definitions = [node for node in tree.body[len(first) :] if isinstance(node, kinds)]
    names = names_stored(setup)
    inner = [node for definition in definitions for node in ast.walk(definition)]
    inner += [part for node in ast.walk(tree) if isinstance(node, ast.comprehension) for part in ast.walk(node.target)]
    inner += [part for node in ast.walk(tree) if isinstance(node, ast.Lambda) for part in ast.walk(node.args)]
    if any(isinstance(node, ast.Name) and node.id in names for node in inner):
        return None
    if names & {node.arg for node in inner if isinstance(node, ast.arg)}:
        return None
    made = parse("class Training:\n    def __init__(self):\n        pass\n    def fit(self):\n        pass")[0]
    assert isinstance(made, ast.ClassDef)
    start, fit = made.body
    assert isinstance(start, ast.FunctionDef)
    assert isinstance(fit, ast.FunctionDef)
    start.body = [_with_attributes(node, names) for node in setup]
    rest = [node for node in tree.body[training.index :] if not isinstance(node, kinds)]
    fit.body = [_with_attributes(node, names) for node in rest]
    tree.body = [*first, *definitions, made, *parse("Training().fit()")]
    return tree


def _with_attributes(statement: ast.stmt, names: set[str]) -> ast.stmt:
    """Replace names by attributes of `self`."""

    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            if node.id not in names:
                return node
            owner = ast.copy_location(ast.Name("self", ast.Load()), node)
            return ast.copy_location(ast.Attribute(owner, node.id, node.ctx), node)

    replaced = Replace().visit(statement)
    assert isinstance(replaced, ast.stmt)
    return replaced


_DRAWING = {"randn": 0, "rand": 0, "zeros": 0, "ones": 0, "randint": 2, "arange": 0, "randperm": 0}
"""Functions that make a batch, with the place of their shape."""


def other_batch_size(tree: ast.Module, chance: random.Random) -> ast.Module | None:
    """Draw larger batches: the leading size of what the loop draws, or the `batch_size` of its loader."""
    training = plain_training(tree)
    if training is None:
        return None
    found = [size for node in ast.walk(training.loop) if (size := _leading(node)) is not None]
    found += [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "batch_size" and isinstance(node.value, ast.Constant)
    ]
    sizes = {size.value for size in found}
    if len(sizes) != 1 or not isinstance(batch := sizes.pop(), int) or batch < 4:
        return None
    other = chance.choice([batch * 2, batch * 3 // 2])
    for size in found:
        size.value = other
    return tree


def _leading(node: ast.AST) -> ast.Constant | None:
    """Return the leading size of a call that draws a batch."""
    name = ast.unparse(node.func).removeprefix("torch.") if isinstance(node, ast.Call) else ""
    if name not in _DRAWING or not isinstance(node, ast.Call):
        return None
    if name == "randint" and len(node.args) == 2:
        shape: ast.expr = node.args[1]
    elif len(node.args) > _DRAWING[name]:
        shape = node.args[_DRAWING[name]]
    else:
        return None
    if isinstance(shape, ast.Tuple) and shape.elts:
        shape = shape.elts[0]
    return shape if isinstance(shape, ast.Constant) and isinstance(shape.value, int) and shape.value > 1 else None


_COMPANION = """
import torch
with torch.random.fork_rng():
    companion = torch.nn.Sequential(torch.nn.Linear(6, 24), torch.nn.Tanh(), torch.nn.Linear(24, 3))
companion_optimizer = torch.optim.Adam(companion.parameters(), lr=1e-2)
companion_draws = torch.Generator().manual_seed(7)
"""
_COMPANION_STEP = """
companion_inputs = torch.randn(24, 6, generator=companion_draws)
companion_optimizer.zero_grad()
torch.nn.functional.cross_entropy(companion(companion_inputs), companion_inputs[:, :3].argmax(1)).backward()
companion_optimizer.step()
"""


def train_another(tree: ast.Module, _: random.Random) -> ast.Module | None:
    """Train another, healthy model in every step, with an optimizer and random numbers of its own."""
    loops = [loop for block, _, loop in training_loops(tree) if block is tree.body]
    if len(loops) != 1:
        return None
    first, body = split_imports(tree)
    loops[0].body += parse(_COMPANION_STEP)
    tree.body = [*first, *parse(_COMPANION), *body]
    return tree


def under_autocast(tree: ast.Module, _: random.Random) -> ast.Module | None:
    """Compute what comes before the backward in bf16, where autocast does so."""
    training = plain_training(tree)
    if training is None or (training.backward == 0 and isinstance(training.loss, ast.Name)):
        return None
    body = training.loop.body
    wrapped = body[: training.backward]
    if not isinstance(training.loss, ast.Name):
        assigned = parse("computed_loss = 0")[0]
        assert isinstance(assigned, ast.Assign)
        assigned.value = training.loss
        wrapped.append(assigned)
        statement = body[training.backward]
        assert isinstance(statement, ast.Expr)
        assert isinstance(statement.value, ast.Call)
        assert isinstance(statement.value.func, ast.Attribute)
        statement.value.func.value = ast.Name("computed_loss", ast.Load())
    block = parse("with torch.autocast('cpu', torch.bfloat16):\n    pass")[0]
    assert isinstance(block, ast.With)
    block.body = wrapped
    body[: training.backward] = [block]
    first, rest = split_imports(tree)
    tree.body = [*first, *parse("import torch"), *rest]
    return tree

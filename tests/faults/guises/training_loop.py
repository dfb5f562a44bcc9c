"""The parts of a script that rewritings work on: its imports, its model and optimizer, and the loop that trains."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

NEW = 100_000
"""Added to the lines of inserted code, so that they are not taken for lines of the script."""


def parse(code: str) -> list[ast.stmt]:
    """Return the statements of code that is inserted."""
    return ast.increment_lineno(ast.parse(code), NEW).body


def split_imports(tree: ast.Module) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Return the docstring and the imports at the top, and the rest."""
    kinds = (ast.Import, ast.ImportFrom, ast.Expr)
    number = next((i for i, node in enumerate(tree.body) if not isinstance(node, kinds)), len(tree.body))
    while number and isinstance(tree.body[number - 1], ast.Expr) and number > 1:
        number -= 1
    return tree.body[:number], tree.body[number:]


def training_loops(tree: ast.Module) -> Iterator[tuple[list[ast.stmt], int, ast.For]]:
    """Yield the innermost loops with a backward and no `else`, each with the block that it is in."""
    for node in list(ast.walk(tree)):
        body = getattr(node, "body", None)
        for index, statement in enumerate(body if isinstance(body, list) else ()):
            if isinstance(statement, ast.For) and not statement.orelse and has_backward(statement):
                inner = [node for node in ast.walk(statement) if isinstance(node, ast.For) and node is not statement]
                if not any(map(has_backward, inner)):
                    assert isinstance(body, list)
                    yield body, index, statement


def has_backward(tree: ast.AST) -> bool:
    """Say whether something calls `backward`."""
    return any(isinstance(node, ast.Attribute) and node.attr == "backward" for node in ast.walk(tree))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTraining:
    """A script with one loop at its top level, one backward directly in it, one optimizer, and one model in that."""

    tree: ast.Module
    index: int
    """Of the loop in the script."""
    loop: ast.For
    backward: int
    """Index of the backward in the loop."""
    loss: ast.expr
    """What backward is called on."""
    model: str
    optimizer: str
    made: int
    """Index of the optimizer's assignment in the script."""


def plain_training(tree: ast.Module) -> PlainTraining | None:
    """Return the parts of a script that has the plain form; None of any other."""
    loops = [(index, loop) for block, index, loop in training_loops(tree) if block is tree.body]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "backward"]
    optimizers = [(index, *found) for index, node in enumerate(tree.body) if (found := _optimizer(node))]
    if len(loops) != 1 or len(calls) != 1 or len(optimizers) != 1 or loops[0][0] < optimizers[0][0]:
        return None
    (index, loop), (made, optimizer, model) = loops[0], optimizers[0]
    direct = [place for place, statement in enumerate(loop.body) if backward_call(statement) is not None]
    if not direct:
        return None
    call = backward_call(loop.body[direct[0]])
    assert call is not None
    assert isinstance(call.func, ast.Attribute)
    return PlainTraining(
        tree=tree,
        index=index,
        loop=loop,
        backward=direct[0],
        loss=call.func.value,
        model=model,
        optimizer=optimizer,
        made=made,
    )


def backward_call(statement: ast.stmt) -> ast.Call | None:
    """Return the call of a statement that is `something.backward(...)`."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            return call
    return None


def is_call_of(statement: ast.stmt, name: str, method: str) -> bool:
    """Say whether a statement is `name.method(...)`."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func) == f"{name}.{method}"


def _optimizer(node: ast.stmt) -> tuple[str, str] | None:
    """Return the name of an optimizer and of the model whose parameters it gets, from its assignment."""
    if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.targets) == 1):
        return None
    target, call = node.targets[0], node.value
    if not isinstance(target, ast.Name) or not ast.unparse(call.func).startswith(("torch.optim.", "optim.")):
        return None
    if "lr_scheduler" in ast.unparse(call.func):
        return None
    models = {
        name.id
        for part in ast.walk(call)
        if isinstance(part, ast.Attribute) and part.attr == "parameters"
        for name in ast.walk(part)
        if isinstance(name, ast.Name)
    }
    return (target.id, models.pop()) if len(models) == 1 else None


def names_stored(statements: Sequence[ast.stmt]) -> set[str]:
    """Return every name that the statements bind."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def leaves_the_loop(statements: Sequence[ast.stmt]) -> bool:
    """Say whether one of a loop's statements is, or has in a branch, a `break` or `continue` of that loop."""
    for statement in statements:
        if isinstance(statement, (ast.Break, ast.Continue)):
            return True
        if isinstance(statement, (ast.For, ast.While, ast.FunctionDef, ast.ClassDef)):
            continue
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(statement, "handlers", [])]
        if any(leaves_the_loop(block) for block in blocks):
            return True
    return False

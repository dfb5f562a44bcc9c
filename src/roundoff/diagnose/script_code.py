"""The user's script as a syntax tree: where it builds, calls and assigns what findings are about."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from roundoff.runs import Edit

_OPTIMIZERS = (
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "Adafactor", "ASGD", "LBFGS", "Muon",
    "RMSprop", "Rprop", "SparseAdam",
)  # fmt: skip
_REGISTER = ("add_module", "register_module", "register_parameter")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class ScriptCode:
    """One file of the user's code; a `SyntaxError` if it is none."""

    def __init__(self, file: str, lines: Sequence[str]) -> None:
        self.file, self.lines = file, lines
        self.tree = ast.parse("\n".join(lines))
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def calls(self) -> list[ast.Call]:
        """Every call, in the order of the file."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        return sorted(found, key=lambda call: (call.lineno, call.col_offset))

    def calls_of(self, *names: str, of: str | None = None) -> list[ast.Call]:
        """Return the calls of functions or methods with these names; `of` is what comes before the last dot."""
        return [call for call in self.calls if called_name(call) in names and of in (None, receiver(call))]

    def only_call(self, *names: str) -> ast.Call | None:
        """Return the one call of these names; None if there is none, or if there are several to choose from."""
        found = self.calls_of(*names)
        return found[0] if len(found) == 1 else None

    @cached_property
    def optimizer(self) -> ast.Call | None:
        """The call that builds the optimizer, if there is exactly one."""
        return self.only_call(*_OPTIMIZERS)

    @cached_property
    def optimizer_name(self) -> str | None:
        """The variable that holds the optimizer: what it is assigned to, else what is both cleared and stepped."""
        used = {receiver(call) for call in self.calls_of("zero_grad")} & {
            receiver(call) for call in self.calls_of("step")
        }
        return self.name_of(self.optimizer) or (used.pop() if len(used) == 1 else None)

    def name_of(self, value: ast.expr | None) -> str | None:
        """Return the name that a value is assigned to."""
        node = None if value is None else self._parents.get(value)
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            return ast.unparse(node.targets[0])
        return None

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """Return the statement that a node is part of."""
        while not isinstance(node, ast.stmt):
            node = self._parents[node]
        return node

    def parent_of(self, node: ast.AST) -> ast.AST | None:
        """Return the node that a node is directly part of."""
        return self._parents.get(node)

    def loop_of(self, node: ast.AST) -> ast.For | ast.AsyncFor | ast.While | None:
        """Return the innermost loop around a node."""
        found: ast.AST | None = node
        while found is not None and not isinstance(found, _LOOPS):
            found = self._parents.get(found)
        return found if isinstance(found, _LOOPS) else None

    def definition_of(self, site: str) -> ast.stmt | None:
        """Return the one statement that builds a part of the model: `self.attn = ...` for the site `blocks.0.attn`."""
        for part in reversed(site.split(".")):
            if part.isdecimal():
                continue
            found = [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt) and _defines(node, part)]
            return found[0] if len(found) == 1 else None
        sequences = self.calls_of("Sequential")
        return self.statement_of(sequences[0]) if len(sequences) == 1 else None

    def line(self, number: int) -> str:
        """Return the text of a line."""
        return self.lines[number - 1].strip()

    def text_of(self, node: ast.expr | ast.stmt) -> str | None:
        """Return the source of an expression or a statement that is on one line."""
        if node.end_lineno != node.lineno or node.end_col_offset is None:
            return None
        encoded = self.lines[node.lineno - 1].encode()
        return encoded[node.col_offset : node.end_col_offset].decode()

    def change(self, node: ast.AST | int) -> list[Edit]:
        """Return the edit that points to a line and leaves open what it becomes."""
        number = node if isinstance(node, int) else getattr(node, "lineno", 0)
        if not 1 <= number <= len(self.lines):
            return []
        return [Edit(file=self.file, line=number, action="change", old=self.line(number))]

    def replace(self, node: ast.expr | ast.stmt, new: str) -> list[Edit]:
        """Return the edit that replaces a part of a line; of what is on several lines, the one that points to it."""
        text = self.text_of(node)
        if text is None:
            return self.change(node)
        line = self.lines[node.lineno - 1]
        begin = left = len(line.encode()[: node.col_offset].decode())
        end = right = begin + len(text)
        while line.find(line[left:right]) < left or line.find(line[left:right], left + 1) >= 0:
            left, right = max(left - 1, 0), min(right + 1, len(line))  # until it is in the line only once
        new = line[left:begin] + new + line[end:right]
        return [Edit(file=self.file, line=node.lineno, action="replace", old=line[left:right], new=new)]

    def remove(self, statement: ast.stmt) -> list[Edit]:
        """Return the edits that remove a statement; if another is on its lines, the one that points to it."""
        shared = [
            each for each in ast.walk(self.tree) if isinstance(each, ast.stmt) and self._shares_line(each, statement)
        ]
        if shared:
            return self.change(statement)
        numbers = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        return [Edit(file=self.file, line=number, action="remove", old=self.line(number)) for number in numbers]

    def _shares_line(self, other: ast.stmt, statement: ast.stmt) -> bool:
        """Return whether another statement of the same block begins or ends on a line of this one."""
        is_neighbour = other is not statement and self._parents.get(other) is self._parents.get(statement)
        return is_neighbour and (other.lineno == statement.end_lineno or other.end_lineno == statement.lineno)

    def following(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the statements after one, in the same block."""
        body: Sequence[ast.stmt] = getattr(self._parents.get(statement), "body", [])
        return list(body[body.index(statement) + 1 :]) if statement in body else []

    def mentions(self, statement: ast.stmt, name: str) -> bool:
        """Return whether a statement uses a name, or what a dotted name says."""
        return any(isinstance(node, ast.expr) and ast.unparse(node) == name for node in ast.walk(statement))

    def insert_before(self, statement: ast.stmt, text: str) -> list[Edit]:
        """Return the edit that adds a line before a statement, indented like it."""
        return self._insert(statement.lineno, statement, text)

    def insert_after(self, statement: ast.stmt, text: str) -> list[Edit]:
        """Return the edit that adds a line after a statement, indented like it."""
        return self._insert((statement.end_lineno or statement.lineno) + 1, statement, text)

    def move(self, statement: ast.stmt, *, before: ast.stmt | None = None, after: ast.stmt | None = None) -> list[Edit]:
        """Return the edits that move a statement of one line before or after another."""
        if statement.end_lineno != statement.lineno:
            return self.change(statement)
        text = self.line(statement.lineno)
        if text != ast.get_source_segment("\n".join(self.lines), statement):
            return self.change(statement)  # there is more on its line
        removed = Edit(file=self.file, line=statement.lineno, action="remove", old=text)
        target = self.insert_before(before, text) if before is not None else []
        target += self.insert_after(after, text) if after is not None else []
        return [removed, *target]

    def _insert(self, line: int, like: ast.stmt, text: str) -> list[Edit]:
        before = self.lines[like.lineno - 1][: like.col_offset]
        if before.strip():
            return self.change(like)  # something is before it on its line
        return [Edit(file=self.file, line=line, action="insert", new=before + text)]

    def keep_valid(self, edits: list[Edit]) -> list[Edit]:
        """Return the edits; if the script would not be valid Python with them, those that only point to the lines."""
        lines = list(self.lines)
        for edit in sorted(edits, key=lambda edit: -edit.line):
            if edit.action == "insert":
                lines.insert(edit.line - 1, edit.new or "")
            elif edit.action == "remove":
                del lines[edit.line - 1]
            elif edit.action == "replace":
                lines[edit.line - 1] = lines[edit.line - 1].replace(edit.old or "", edit.new or "", 1)
        try:
            ast.parse("\n".join(lines))
        except SyntaxError:
            return [pointing for edit in edits for pointing in self.change(min(edit.line, len(self.lines)))]
        return edits


def called_name(call: ast.Call) -> str:
    """Return the last part of what is called: `step` of `self.optimizer.step()`."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def receiver(call: ast.Call) -> str | None:
    """Return what a method is called on: `self.optimizer` of `self.optimizer.step()`."""
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else None


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword argument."""
    return next((each.value for each in call.keywords if each.arg == name), None)


def first_after(calls: Iterable[ast.Call], line: int) -> ast.Call | None:
    """Return the first call after a line."""
    return next((call for call in calls if call.lineno > line), None)


def _defines(statement: ast.stmt, name: str) -> bool:
    return any(_is_name(target, name) for target in _targets(statement))


def _targets(statement: ast.stmt) -> Iterator[ast.expr]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from target.elts if isinstance(target, ast.Tuple) else [target]
    elif isinstance(statement, ast.AnnAssign):
        yield statement.target
    elif isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call):
        yield from call.args[:1] if called_name(call) in _REGISTER else []


def _is_name(target: ast.expr, name: str) -> bool:
    match target:
        case ast.Attribute(attr=found) | ast.Name(id=found) | ast.Constant(value=found):
            return bool(found == name)
    return False

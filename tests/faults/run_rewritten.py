"""The same fault in other words: every script of the suite rewritten, and its diagnosis, which must stay the same.

As a program it prints the score: `python -m tests.faults.run_rewritten [--seeds 3] [--only class] [WORD]...`.
Each seed gives every script its own mixture of rewritings; `--only` applies one alone.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tests.faults.guises.training_loop import split_imports, training_loops
from tests.faults.run_faults import score
from tests.faults.zoo.catalogue import Expected, Score, expectations, healthy_trainings

Rewriting = Callable[[ast.Module, random.Random], ast.Module | None]
"""Changes a script in place and returns it; None, with the script as it was, where it does not fit."""

_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty", "knoll", "larch")


def rename(tree: ast.Module, chance: random.Random) -> ast.Module:
    """Give variables and functions other names; not arguments, which are part of an interface."""
    kept = set(dir(builtins)) | {"self", "cls"}
    bound: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            kept.add(node.arg)
        elif isinstance(node, ast.ClassDef):
            kept |= {node.name, *(name for statement in node.body for name in _bound_by(statement))}
        elif isinstance(node, ast.keyword) and node.arg:
            kept.add(node.arg)
        elif isinstance(node, ast.alias):
            kept.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, (ast.Name, ast.FunctionDef)):
            bound += _bound_by(node)
    names = [name for name in dict.fromkeys(bound) if name not in kept and not name.startswith("__")]
    chance.shuffle(names)
    new = {name: f"{_WORDS[i % len(_WORDS)]}_{i}" for i, name in enumerate(names)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = new.get(node.id, node.id)
        elif isinstance(node, ast.FunctionDef):
            node.name = new.get(node.name, node.name)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            node.names = [new.get(name, name) for name in node.names]
    return tree


def _bound_by(node: ast.AST) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [target.id for target in targets if isinstance(target, ast.Name)]
    return [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []


def move_into_function(tree: ast.Module, _: random.Random) -> ast.Module | None:
    """Put all but the imports into a function."""
    return _wrap(tree, "def main():\n    pass", "main()")


def move_into_class(tree: ast.Module, _: random.Random) -> ast.Module | None:
    """Put all but the imports into a method."""
    return _wrap(tree, "class Experiment:\n    def run(self):\n        pass", "Experiment().run()")


def _wrap(tree: ast.Module, definition: str, call: str) -> ast.Module | None:
    first, body = split_imports(tree)
    if any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in ast.walk(tree)) or _is_pickled(tree):
        return None
    made = ast.parse(definition).body[0]
    function = made.body[0] if isinstance(made, ast.ClassDef) else made
    assert isinstance(function, ast.FunctionDef)
    function.body = body
    tree.body = [*first, made, *ast.parse(call).body]
    return tree


def _is_pickled(tree: ast.Module) -> bool:
    """Say whether objects of the script are looked up by their names: then they must stay where they are."""
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    words = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    return bool(names & {"Process", "spawn", "script", "multiprocessing", "Trainer"} or words & {"num_workers"})


def iterate_by_hand(tree: ast.Module, _: random.Random) -> ast.Module | None:
    """Turn the loops that train from `for` into `while` and `next`."""
    loops = list(training_loops(tree))
    for number, (place, index, loop) in enumerate(loops):
        name = f"items_{number}"
        taken = f"try:\n        _ = next({name})\n    except StopIteration:\n        break"
        made = ast.parse(f"{name} = iter(())\nwhile True:\n    {taken}").body
        start, whole = made
        assert isinstance(start, ast.Assign)
        assert isinstance(whole, ast.While)
        taking = whole.body[0]
        assert isinstance(taking, ast.Try)
        assert isinstance(taking.body[0], ast.Assign)
        assert isinstance(start.value, ast.Call)
        start.value.args = [loop.iter]
        taking.body[0].targets = [loop.target]
        whole.body += loop.body
        place[index : index + 1] = made
    return tree if loops else None


def add_model(tree: ast.Module, _: random.Random) -> ast.Module | None:
    """Call another, healthy model at the end of every step, without gradients and without drawing random numbers."""
    loops = list(training_loops(tree))
    first, body = split_imports(tree)
    before = "import torch\nwith torch.random.fork_rng():\n    bystander = torch.nn.Linear(3, 2).eval()"
    for _, _, loop in loops:
        loop.body += ast.parse("with torch.no_grad():\n    bystander(torch.ones(4, 3))").body
    tree.body = [*first, *ast.parse(before).body, *body]
    return tree if loops else None


REWRITINGS: dict[str, Rewriting] = {
    "renamed": rename,
    "while": iterate_by_hand,
    "another-model": add_model,
    "function": move_into_function,
    "class": move_into_class,
}
"""In the order in which a mixture applies them."""


def rewrite(expected: Expected, folder: Path, *, seed: int, only: str | None = None) -> Expected | None:
    """Write a rewritten script and return what is expected of it; None if no rewriting fits."""
    chance = random.Random(f"{seed} {expected.name}")
    wanted = [only] if only else [name for name in REWRITINGS if chance.random() < 0.6] or ["renamed"]
    if "function" in wanted and "class" in wanted:
        wanted.remove(chance.choice(["function", "class"]))
    tree = ast.parse(expected.script.read_text())
    used = [name for name in wanted if REWRITINGS[name](tree, chance) is not None]
    if not used:
        return None
    text = ast.unparse(ast.fix_missing_locations(tree))
    place = folder / expected.folder.name
    place.mkdir(parents=True, exist_ok=True)
    for helper in expected.folder.glob("*.txt"):
        (place / helper.name).write_bytes(helper.read_bytes())
    name = "-".join([expected.name, *([f"seed{seed}"] if seed else []), *used])
    (place / f"{name}.py").write_text(text + "\n")
    source = expected.source and moved_line(expected.source, tree, ast.parse(text), place.name, name)
    return replace(expected, name=name, folder=place, source=source, fails=None)


def moved_line(source: str, before: ast.Module, after: ast.Module, folder: str, name: str) -> str:
    """Return where a line of the script is after rewriting: nodes of the two trees stand in the same order."""
    line = int(source.rpartition(":")[2])
    pairs = zip(ast.walk(before), ast.walk(after), strict=True)
    lines = [new.lineno for old, new in pairs if getattr(old, "lineno", None) == line and hasattr(new, "lineno")]
    return f"{folder}/{name}.py:{min(lines, default=0)}"


def main(arguments: Sequence[str]) -> int:
    """Print the score of all rewritten scripts, or of those whose names hold one of the words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="how many mixtures of rewritings each script gets")
    parser.add_argument("--only", choices=REWRITINGS)
    parser.add_argument("words", nargs="*", metavar="PART OF A NAME")
    options = parser.parse_args(arguments)
    known = [entry for entry in [*expectations(), *healthy_trainings()] if entry.fails is None]
    chosen = [entry for entry in known if not options.words or any(word in entry.name for word in options.words)]
    with tempfile.TemporaryDirectory() as folder:
        made = [
            rewritten
            for seed in range(options.seeds)
            for entry in chosen
            if (rewritten := rewrite(entry, Path(folder) / str(seed), seed=seed, only=options.only)) is not None
        ]
        scores = list(score(made).values())
    faulty = [each for each in scores if each not in (Score.SILENT, Score.FALSE_ALARM)]
    print(f"{faulty.count(Score.RIGHT)} of {len(faulty)} rewritten faults named right", end="; ")
    print(f"{scores.count(Score.FALSE_ALARM)} of {len(scores) - len(faulty)} rewritten healthy trainings blamed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Reads which training to bisect or plan from the command line: options of train, a script, a command, or a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from roundoff.cli import options
from roundoff.errors import UsageError

if TYPE_CHECKING:
    from roundoff.experiments.trials.trial import TrialTarget

TrialCommand = Literal["bisect", "plan"]

_EXAMPLES: dict[TrialCommand, str] = {
    "bisect": "roundoff bisect --bad half train --data digits",
    "plan": "roundoff plan --base half train --data digits",
}


def training_options(command: TrialCommand, *, metavar: str) -> Callable[[options.Command], options.Command]:
    """Declare the options of `bisect` and `plan` about the trainings they make, and the training itself."""
    return options.declare(
        click.option(
            "--max-minutes",
            "max_seconds",
            type=click.FloatRange(min=0, min_open=True),
            callback=lambda ctx, param, minutes: None if minutes is None else 60 * minutes,
            help="Start no training later than this.",
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="Seed of a script, set before it starts."),
        options.backend_options,
        options.name_option("folder", default=f"{command}-1, {command}-2, ..."),
        options.runs_option("Parent directory of the folder."),
        options.json_option(),
        options.script_arguments(metavar),
    )


def training_named(
    words: Sequence[str], *, command: TrialCommand, is_module: bool, with_rules: bool, seed: int
) -> TrialTarget:
    """Return the training that the arguments of `roundoff COMMAND` name.

    Raises:
        UsageError: they do not name a training.
    """
    if not words:
        raise UsageError.explain("No training is given.", fix=f"for example: {_EXAMPLES[command]}")
    first, *rest = words
    if not is_module and (Path(first) / "run.json").is_file():
        _check_no_more_words(first, rest)
        return _target_of_run(Path(first), command=command, with_rules=with_rules, seed=seed)
    if not is_module and first == "roundoff" and rest:
        first, *rest = rest
    if not is_module and first == "train":
        return _train_target(_train_settings(rest), words=rest, with_rules=with_rules)
    if is_module or first.endswith(".py"):
        return _script_target(first, rest, is_module=is_module, with_rules=with_rules, seed=seed)
    return _command_target(words, command=command)


def _train_settings(words: Sequence[str]) -> dict[str, Any]:
    from roundoff.cli.train import settings_of, train_command

    context = train_command.make_context("roundoff train", list(words))
    return settings_of({name: value for name, value in context.params.items() if name != "as_json"})


def _train_target(settings: Mapping[str, Any], *, words: Sequence[str] = (), with_rules: bool) -> TrialTarget:
    from roundoff.experiments.trials.targets import TrainTarget
    from roundoff.train.config import TrainConfig

    return TrainTarget(config=TrainConfig(**settings), words=tuple(words), with_rules=with_rules)


def _script_target(first: str, rest: Sequence[str], *, is_module: bool, with_rules: bool, seed: int) -> TrialTarget:
    from roundoff.experiments.trials.targets import ScriptTarget
    from roundoff.record.script import Script

    script = Script(target=first, args=tuple(rest), is_module=is_module)
    script.check()
    return ScriptTarget(script=script, with_rules=with_rules, seed=seed)


def _command_target(words: Sequence[str], *, command: TrialCommand) -> TrialTarget:
    from roundoff.experiments.trials.targets import CommandTarget

    if shutil.which(words[0]) is None:
        raise UsageError.explain(
            f"Cannot {command} '{words[0]}'.",
            why="it is not a run folder, a Python script, a command, or the word train.",
            fix=f"for example: {_EXAMPLES[command]}, or: roundoff {command} train.py --epochs 1",
        )
    return CommandTarget(words=tuple(words))


def _target_of_run(folder: Path, *, command: TrialCommand, with_rules: bool, seed: int) -> TrialTarget:
    """Return the training that made a run folder."""
    from roundoff.runs import Run
    from roundoff.train.config import TrainConfig

    info = Run.open(folder).info
    names = TrainConfig.__dataclass_fields__
    settings: dict[str, Any] = {name: value for name, value in info.settings.items() if name in names}
    if {"data", "model", "recipe"} <= set(settings):  # an older version may have fewer settings than this one
        settings = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
        settings["runs"] = settings["runs"] and Path(settings["runs"])
        settings |= {name: None for name in ("name", "resume", "tensorboard")}
        return _train_target(settings, with_rules=with_rules)
    words = list(info.command)
    if words[:1] == ["python"]:
        words = words[1:]
    is_module = words[:1] == ["-m"]
    words = words[1:] if is_module else words
    if not words or not (is_module or words[0].endswith(".py")):
        raise UsageError.explain(
            f"Run '{folder}' does not say how it was started.",
            why=f"its command is {' '.join(info.command) or 'empty'}.",
            fix=f"name the training itself: roundoff {command} train.py ...",
        )
    return _script_target(words[0], words[1:], is_module=is_module, with_rules=with_rules, seed=seed)


def _check_no_more_words(first: str, rest: Sequence[str]) -> None:
    if rest:
        raise UsageError.explain(
            f"Unexpected '{rest[0]}' after the run '{first}'.", why="the run already says how it was started."
        )

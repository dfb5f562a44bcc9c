"""`roundoff demo`: a training fails in half precision, is explained, and is fixed, by commands that anyone can run."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import PATH, json_option
from roundoff.cli.project_defaults import VARIABLE as PROJECT_FILE_VARIABLE
from roundoff.cli.terminal import echo
from roundoff.console import can_draw, columns
from roundoff.errors import DemoError, UsageError
from roundoff.progress import ProgressBar
from roundoff.runs import Finding, JsonValue, Run

_ACCURACY = re.compile(r"accuracy (\d+\.\d) %")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTraining:
    """One of the trainings."""

    recipe: str
    accuracy: float
    """The share of the held-back digits that it reads correctly."""
    losses: tuple[float, ...]
    """Of every step."""

    @property
    def first_nonfinite_step(self) -> int | None:
        """The first step whose loss is NaN or infinite."""
        return next((step for step, loss in enumerate(self.losses) if not math.isfinite(loss)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The result of the demo."""

    folder: Path
    trained: tuple[DemoTraining, ...]
    finding: Finding
    """Why the training in half precision broke."""
    played: tuple[PlayedChapter, ...]
    seconds: float

    def to_object(self) -> dict[str, JsonValue]:
        """Return it as JSON values."""
        return {
            "folder": str(self.folder),
            "page": str(self.folder / PAGE),
            "recipe": str(self.folder / PLANNED),
            "trainings": [
                {
                    "recipe": each.recipe,
                    "accuracy": each.accuracy,
                    "last_loss": each.losses[-1],
                    "first_nonfinite_step": each.first_nonfinite_step,
                }
                for each in self.trained
            ],
            "finding": self.finding.to_object(),
            "commands": [
                {"command": chapter.command, "exit_code": chapter.ends_with, "seconds": round(each.seconds, 2)}
                for each in self.played
                for chapter in [each.chapter]
            ],
            "seconds": round(self.seconds, 2),
        }


def read_demo_result(folder: Path, played: Sequence[PlayedChapter], *, seconds: float) -> DemoResult:
    """Read the result from the output of the commands and from their runs."""
    finding, *_ = Run.open(folder / "runs" / "half").findings() or []
    trainings = [each for each in played if each.chapter.words[0] == "run"]
    return DemoResult(
        folder=folder,
        trained=tuple(_read_training(folder, each) for each in trainings),
        finding=finding,
        played=tuple(played),
        seconds=seconds,
    )


def _read_training(folder: Path, played: PlayedChapter) -> DemoTraining:
    _, _, name, _, recipe = played.chapter.words
    accuracy = _ACCURACY.search("\n".join(played.output))
    assert accuracy is not None, f"{SCRIPT} prints its accuracy"
    metrics = Run.open(folder / "runs" / name).metrics()
    return DemoTraining(
        recipe=recipe,
        accuracy=float(accuracy[1]) / 100,
        losses=tuple(each.loss for each in metrics if each.loss is not None),
    )


def demo_result_text(outcome: DemoResult, *, drawn: bool) -> str:
    """Format the accuracies as a table, with a curve of each loss if `drawn`."""
    finding = outcome.finding
    width = max(len(each.recipe) for each in outcome.trained)
    verdict = f"{SCRIPT} broke at {finding.source}, step {finding.step}: {finding.title}. The planned recipe fixes it."
    return "\n".join([
        *textwrap.wrap(verdict, columns()),
        "",
        f"{'recipe'.ljust(width)}  accuracy  loss",
        *(_line(each, width=width, drawn=drawn) for each in outcome.trained),
        "",
        f"page    {outcome.folder / PAGE}",
        f"recipe  {outcome.folder / PLANNED}",
        f"took    {outcome.seconds:.0f} s",
        "next    roundoff run train.py, with a script of yours",
    ])  # fmt: skip


def _line(each: DemoTraining, *, width: int, drawn: bool) -> str:
    from roundoff.report.loss_curve import sparkline

    bad = each.first_nonfinite_step
    ended = f"{each.losses[0]:.2f} to {each.losses[-1]:.3f}" if bad is None else f"NaN from step {bad} on"
    room = columns() - width - len("  100.0 %    NaN from step 1000 on")
    curve = f"{sparkline(each.losses, width=max(1, min(40, room)), low=0.0)}  " if drawn else ""
    return f"{each.recipe.ljust(width)}  {100 * each.accuracy:6.1f} %  {curve}{ended}"


@click.command(name="demo", epilog="Example: roundoff demo")
@click.option(
    "--out",
    type=PATH,
    metavar="DIR",
    help="A new directory for all files.  [default: runs/demo-1, runs/demo-2, ...]",
)
@json_option("Print the result as JSON.")
def demo_command(out: Path | None, as_json: bool) -> None:
    """Train on handwritten digits in fp32 and in fp16, which fails; find out why, plan a recipe, and train with it.

    Each step is a command, which is shown before it runs. All of them run in one new directory, in about a minute.
    """
    folder = make_demo_folder(out)
    began = time.monotonic()
    with DemoPlayer(folder, STORY, quiet=as_json) as stage:
        stage.say(f"Seven commands, run in {folder}, which contains {SCRIPT} and everything they write.\n")
        try:
            played = stage.play()
        except KeyboardInterrupt:
            echo(f"interrupted; the files so far are in {folder}", err=True)
            raise
    outcome = read_demo_result(folder, played, seconds=time.monotonic() - began)
    if as_json:
        echo_json("demo", outcome.to_object(), indent=1)
    else:
        echo(demo_result_text(outcome, drawn=can_draw(sys.stdout)))


def make_demo_folder(out: Path | None) -> Path:
    """Create the folder with the script in it."""
    from roundoff.runs import next_free_name

    folder = next_free_name(Path("runs"), "demo") if out is None else out
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError.explain(
                f"'{folder}' is not empty.", why="the demo needs an empty directory.", fix="name another: --out DIR"
            )
        shutil.copyfile(Path(__file__).with_name("demo_script.py"), folder / SCRIPT)
    except OSError as error:
        raise UsageError.explain(
            f"'{folder}' cannot be created.", why=f"{error.strerror}.", fix="name another: --out DIR"
        ) from error
    return folder


# -- the commands, run one by one as child processes and shown as a terminal would show them ---------------------------


TIMEOUT_SECONDS = 600.0
"""A command that takes longer than this is ended."""
TERMINATE_SECONDS = 5.0
"""How long a command may take to end after SIGTERM, before it is killed."""


@contextlib.contextmanager
def running_command(words: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run `roundoff WORDS` in a folder, as a session of its own, which is ended with the block."""
    with _holding_interrupts() as interrupts:
        process = _start(words, folder)
    # Reading its output blocks while it writes nothing, so a timer ends a command that hangs.
    watchdog = threading.Timer(TIMEOUT_SECONDS, _end, [process])
    watchdog.daemon = True
    try:
        watchdog.start()
        if interrupts:
            raise KeyboardInterrupt
        yield process
    finally:
        watchdog.cancel()
        _end(process)
        assert process.stdout is not None
        process.stdout.close()


def lines_of(process: subprocess.Popen[str], kept: list[str]) -> Iterator[str]:
    """Yield the lines that a process prints as they arrive, and append them to `kept`."""
    assert process.stdout is not None
    for line in process.stdout:
        kept.append(line.rstrip())
        yield kept[-1]


def _start(words: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    # Two threads on two busy cores can be thirty times slower than one.
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "COLUMNS": str(columns())}
    environment |= {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8", PROJECT_FILE_VARIABLE: ""}
    return subprocess.Popen(
        [sys.executable, "-m", "roundoff", *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


@contextlib.contextmanager
def _holding_interrupts() -> Iterator[list[int]]:
    """Collect interrupts while the block runs: one in the middle of starting a process would lose that process."""
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, before)


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and everything that it has started."""
    if process.poll() is None:
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TERMINATE_SECONDS)
    _signal(process, signal.SIGKILL)
    process.wait(TERMINATE_SECONDS)


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to the session that a process leads, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


SCRIPT = "digits.py"
PLANNED = "planned.toml"
PAGE = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One command of the story."""

    title: str
    words: tuple[str, ...]
    """The arguments of `roundoff`."""
    ends_with: int
    """The exit code without which the demo stops."""
    seconds: float
    """How long it usually takes, to estimate the time left."""
    num_paragraphs: int | None = None
    """How much of its output is shown; None is all of it."""

    @property
    def command(self) -> str:
        """The command as a user would type it."""
        return shlex.join(["roundoff", *self.words])


STORY = (
    Chapter(
        title=f"Train {SCRIPT} in fp32, watched. This is the reference.",
        words=("run", "--name", "fp32", SCRIPT, "fp32"),
        ends_with=0,
        seconds=5.0,
    ),
    Chapter(
        title="The same in half precision: it fails, the bad step is replayed op by op, and the op is named.",
        words=("run", "--name", "half", SCRIPT, "half"),
        ends_with=0,
        seconds=6.5,
    ),
    Chapter(
        title="The step was saved. Run it again in a new process, from the run folder and the model alone.",
        words=("replay", "runs/half", "--builder", f"{SCRIPT}:build"),
        ends_with=1,
        seconds=4.0,
    ),
    Chapter(
        title="Which layers can be fp16? Measure one step, propose a recipe, and compare it with fp32.",
        words=("plan", "--jobs", "0", "--steps", "60", "-o", PLANNED, SCRIPT),
        ends_with=0,
        seconds=6.5,
        num_paragraphs=3,
    ),
    Chapter(
        title="Train with the planned recipe.",
        words=("run", "--name", "planned", SCRIPT, PLANNED),
        ends_with=0,
        seconds=5.0,
    ),
    Chapter(
        title="Does it compute the same as fp32?",
        words=("compare", "runs/fp32", "runs/planned"),
        ends_with=0,
        seconds=3.0,
    ),
    Chapter(
        title="A report about the failed run, compared with the reference.",
        words=("report", "runs/half", "--against", "runs/fp32", "-o", PAGE),
        ends_with=0,
        seconds=3.5,
    ),
)


def seconds_left(story: Sequence[Chapter], *, num_done: int, elapsed: float) -> float:
    """Estimate how long the other chapters take, from how long the first ones took.

    >>> round(seconds_left(STORY, num_done=0, elapsed=0.0))
    34
    >>> round(seconds_left(STORY, num_done=len(STORY), elapsed=50.0))
    0
    """
    done = sum(chapter.seconds for chapter in story[:num_done])
    left = sum(chapter.seconds for chapter in story[num_done:])
    return left * (elapsed / done if done else 1.0)


def first_paragraphs(lines: Iterable[str], num_paragraphs: int | None) -> Iterator[str]:
    """Yield the first paragraphs of an output as they arrive, and dots for the rest; None yields all of it.

    >>> list(first_paragraphs(["verdict", "", "facts", "more", "", "table"], 2))
    ['verdict', '', 'facts', 'more', '...']
    """
    num_ended = 0
    for line in lines:
        is_shown = num_paragraphs is None or num_ended < num_paragraphs
        num_ended += not line
        if is_shown:
            yield "..." if num_ended == num_paragraphs else line


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedChapter:
    """The result of one chapter."""

    chapter: Chapter
    output: tuple[str, ...]
    seconds: float


class DemoPlayer(ProgressBar):
    """Shows the story on stdout, with a bar and the time left under it on a terminal; `quiet` keeps stdout for JSON."""

    def __init__(self, folder: Path, story: Sequence[Chapter], *, quiet: bool) -> None:
        self._folder, self._story, self._quiet = folder, story, quiet
        super().__init__("command", total=len(story), stream=sys.stderr if quiet else sys.stdout)

    def say(self, text: str = "", *, style: str = "") -> None:
        """Show a line of the story."""
        if not self._quiet:
            self.line(text, style=style)

    def play(self) -> list[PlayedChapter]:
        """Run every command, one after the other.

        Raises:
            DemoError: a command did not end with the expected exit code.
        """
        played: list[PlayedChapter] = []
        for number, chapter in enumerate(self._story):
            left = seconds_left(self._story, num_done=number, elapsed=sum(each.seconds for each in played))
            self.move(number, description=chapter.words[0], seconds_left=left)
            self.say(f"{number + 1}. {chapter.title}", style="bold")
            self.say(f"$ {chapter.command}", style="cyan")
            played.append(self._play(chapter))
            self.say()
        return played

    def _play(self, chapter: Chapter) -> PlayedChapter:
        began = time.monotonic()
        output: list[str] = []
        with running_command(chapter.words, self._folder) as process:
            for line in first_paragraphs(lines_of(process, output), chapter.num_paragraphs):
                self.say(line)
            code = process.wait(TIMEOUT_SECONDS)
        seconds = time.monotonic() - began
        if code != chapter.ends_with:
            raise DemoError.explain(
                f"`{chapter.command}` ended with {code} after {seconds:.0f} s, not with {chapter.ends_with}.",
                why=f"its output ends with: {output[-1] if output else 'nothing'}",
                fix=f"run it again in {self._folder}, read its output, and report it as a bug.",
            )
        return PlayedChapter(chapter=chapter, output=tuple(output), seconds=seconds)

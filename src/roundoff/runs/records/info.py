"""How a run was started (run.json), how its processes ended (ending-rankR.json), and the result of a replayed step."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from roundoff.errors import RunFolderError
from roundoff.files import write_atomically
from roundoff.runs.files.folder import READABLE_BY, VERSION, ending_path, info_path
from roundoff.runs.files.plain_json import JsonValue, object_from, object_of, optional_field, read_json_object, to_json

SIMULATORS = frozenset({"gymnasium", "gym", "pettingzoo", "dm_env", "procgen", "envpool"})
"""Packages that a script imports to learn from what its own actions lead to; listed in run.json only if it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a process ended, or that it hangs; what it was doing is in its flight recorder and its stacks."""

    pid: int
    exit_code: int | None = None
    """None while it runs, and if a signal ended it."""
    signal: int | None = None
    """The signal that ended it."""
    forwarded_signal: int | None = None
    """The last signal that was sent to end it: then its end was intended."""
    last_rss_bytes: int | None = None
    """The memory it held when it was last looked at."""
    peak_rss_bytes: int | None = None
    """The most it ever held; known when it has ended."""
    available_bytes: int | None = None
    """The memory that was left for more, at the last look: the machine's, or below its control group's limit."""
    memory_bytes: int | None = None
    """All the memory there is for it: the machine's, or its control group's limit."""
    num_oom_kills: int | None = None
    """How many processes the kernel killed out of memory while it ran; None if the kernel does not report it."""
    seconds_without_progress: float | None = None
    """How long it made no progress in its longest hang; None if it never hung."""
    has_gone_on: bool = False
    """Whether it went on again after the hang."""
    was_stopped: bool = False
    """Whether it was ended because it hung."""
    was_over: bool = False
    """Whether the training had ended and was reported before: only the process had not ended."""
    native_seconds: float | None = None
    """How long it took to get the native stacks."""
    is_sync: bool = False
    """Whether devices ran in synchronous mode."""
    has_ops: bool = False
    """Whether the flight recorder noted every op."""

    def write(self, folder: Path, *, rank: int) -> None:
        """Write it into the run folder, over what was written before. May raise an `OSError`."""
        write_atomically(ending_path(folder, rank=rank), to_json(object_of(self), indent=1).encode())


Status: TypeAlias = Literal["running", "finished", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What a run was: how it was started, where, and how it ended."""

    version: int = VERSION
    """That of the folder."""
    name: str = ""
    """Empty: the folder's name is taken."""
    command: tuple[str, ...] = ()
    recipe: str | None = None
    seed: int | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, JsonValue] = field(default_factory=dict)
    git_commit: str | None = None
    ranks: int = 1
    started: str = ""
    """ISO 8601 with time zone. Empty: the moment the folder is made."""
    finished: str | None = None
    status: Status = "running"
    notes: tuple[str, ...] = ()
    launch: str | None = None
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    environment: Mapping[str, JsonValue] = field(default_factory=dict)
    """What decides how numbers come out: variables of a fixed list, torch's switches and seed, as step 0 began."""
    stores_data: bool = optional_field(True)
    """Whether samples, batches and other tensors may be in the run; the writer leaves them out otherwise."""


def write_info(folder: Path, info: RunInfo) -> None:
    """Write run.json whole, or leave it as it was."""
    value = {"version": info.version, "readable_by": READABLE_BY, **object_of(info)}
    write_atomically(info_path(folder), to_json(value, indent=1).encode())


def read_info(folder: Path) -> RunInfo:
    """Read run.json; a `RunFolderError` says what is missing, broken or too new."""
    path = info_path(folder)
    if not folder.is_dir():
        what = "is a file, not a run folder" if folder.exists() else "does not exist"
        raise RunFolderError.explain(f"'{folder}' {what}.", fix="see which runs there are: roundoff runs")
    if not path.exists():
        raise RunFolderError.explain(
            f"'{folder}' is not a run folder.",
            why=f"it has no {path.name}.",
            fix="name the folder of one run, as listed by: roundoff runs",
        )
    value = read_json_object(path)
    _check_version(path, value)
    try:
        return object_from(RunInfo, value)
    except ValueError as error:
        raise RunFolderError.explain(f"'{path}' cannot be read.", why=f"{error}.") from error


def script_words(info: RunInfo) -> str:
    """Return the script of a run with its arguments, to be typed after a command of ours; `train.py` if it is unknown.

    >>> script_words(RunInfo(command=("python", "train.py", "--name", "my run")))
    "train.py --name 'my run'"
    >>> script_words(RunInfo(command=("train.py",))), script_words(RunInfo(command=("python", "-m", "mine.train")))
    ('train.py', '-m mine.train')
    >>> script_words(RunInfo(command=("/venv/site-packages/pytest/__main__.py",)))
    'train.py'
    """
    words = info.command[1:] if info.command[:1] == ("python",) else info.command
    is_script = words and words[0].endswith(".py") and "-packages" not in words[0]
    return shlex.join(words) if is_script or words[:1] == ("-m",) else "train.py"


def sketches_line_up(a: RunInfo, b: RunInfo) -> bool:
    """Return whether the sketches of two runs were made with the same signs, so that they can be compared."""
    return (a.version < 2) == (b.version < 2)


def _check_version(path: Path, value: Mapping[str, JsonValue]) -> None:
    readable_by = value.get("readable_by")
    if type(readable_by) is not int:
        raise RunFolderError.explain(f"'{path}' cannot be read.", why="it has no number 'readable_by'.")
    if readable_by > VERSION:
        raise RunFolderError.explain(
            f"'{path}' was written by a newer roundoff.",
            why=f"its folder needs a reader of version {readable_by}, and this one reads up to version {VERSION}.",
            fix="pip install --upgrade roundoff",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayInfo:
    """How a step was replayed and whether it came out as it had the first time."""

    step: int
    snapshot_step: int
    """The step before which the state was kept; those in between were run again."""
    is_identical: bool | None
    """Whether loss, weights, buffers, optimizer state and generators came out bit for bit; None if not checked."""
    first_difference: str | None = None
    """What differed first: `loss`, `weight of blocks.0.mlp`, ..."""
    is_eager: bool = False
    """Whether compiled code ran eagerly: then it agrees within its format only, and that is no fault."""
    covers: tuple[str, ...] = ("forward", "backward", "optimizer")
    """The phases that could be replayed."""
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The op of a replayed step that made a bad value from good ones, caught with its real inputs."""

    step: int
    phase: str
    site: str
    op: str
    """With its number: `aten.bmm#0`."""
    overload: str
    """As torch looks it up: `aten::bmm` and its overload, `aten::bmm.default`."""
    microbatch: int = 0
    parameter: str | None = None
    source: str | None = None
    arguments: Mapping[str, JsonValue] = field(default_factory=dict)
    """By name; a tensor is {"tensor": key in origin-rankR.safetensors}, other values are JSON or {"repr": text}."""
    num_outputs: int = 1
    """Results are `output0`, ... in the same file, those in fp64 `fp64_output0`, ..."""
    is_finite_in_fp64: bool | None = None
    """True: a wider format would have held it. False: it leaves its domain in any. None: it could not be tried."""
    fp64_absmax: float | None = None
    """The largest magnitude among the results in fp64."""
    dtype: str | None = None
    bad_index: tuple[int, ...] | None = None
    """Where in the first bad result the first bad value is."""

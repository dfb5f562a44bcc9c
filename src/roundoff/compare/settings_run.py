"""What two run.json say: recipe, seed, ranks, environment, packages, hardware, command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath

from roundoff.compare.setting import Difference, SettingKind, differing_values
from roundoff.runs import JsonValue, Run, RunInfo

_SEED = "torch.seed"
_TOLD_OTHERWISE = (_SEED, "OMP_NUM_THREADS")
"""What the environment says a second time: the seed, and by torch.num_threads how many threads that came to."""
_FLAGS = {
    "torch.default_dtype": 0.9,
    "torch.float32_matmul_precision": 0.6,
    "torch.cuda.matmul.allow_tf32": 0.6,
    "torch.cudnn.allow_tf32": 0.6,
    "torch.deterministic_algorithms": 0.3,
    "torch.num_threads": 0.2,
    "torch.num_interop_threads": 0.05,
    "PYTHONHASHSEED": 0.15,
}
"""How suspicious a difference of these is; others are as suspicious as `_OTHER_FLAG`."""
_OTHER_FLAG = 0.3
_PACKAGES = {"torch": 0.4, "transformers": 0.35, "roundoff": 0.05, "python": 0.1, "pyarrow": 0.02, "safetensors": 0.02}
_OTHER_PACKAGE = 0.2
_HARDWARE = {"accelerator": 0.4, "cpu_capability": 0.25, "machine": 0.25, "accelerators": 0.1}
"""What of the hardware can change a number; the rest says how fast it was."""


def run_differences(reference: Run, candidate: Run) -> list[Difference]:
    """Compare what the runs say about themselves; names, times and paths are left out."""
    ours, theirs = reference.info, candidate.info
    return [
        *_one("recipe", ours.recipe, theirs.recipe, kind=SettingKind.RECIPE, suspicion=0.85),
        *_one("seed", _seed(ours), _seed(theirs), kind=SettingKind.SEED, suspicion=0.45),
        *_one("ranks", ours.ranks, theirs.ranks, kind=SettingKind.RANKS, suspicion=0.7),
        *_environment(ours, theirs),
        *_mapping("version of ", ours.packages, theirs.packages, kind=SettingKind.PACKAGE, ranks=_PACKAGES),
        *_hardware(ours, theirs),
        *_command(ours, theirs),
        *_one("commit", ours.git_commit, theirs.git_commit, kind=SettingKind.COMMAND, suspicion=0.3),
    ]


def _seed(info: RunInfo) -> JsonValue:
    """Return the seed as the first step began; what was given at the start may have been overruled by then."""
    return info.environment.get(_SEED, info.seed)


def _environment(ours: RunInfo, theirs: RunInfo) -> Iterator[Difference]:
    if not ours.environment or not theirs.environment:  # written by an older version, or stopped before a step
        return
    for name, first, second in differing_values(ours.environment, theirs.environment, leave_out=_TOLD_OTHERWISE):
        yield Difference(
            what=name,
            reference=first if name in ours.environment else "not set",
            candidate=second if name in theirs.environment else "not set",
            kind=SettingKind.ENVIRONMENT,
            suspicion=_FLAGS.get(name, _OTHER_FLAG),
        )


def _hardware(ours: RunInfo, theirs: RunInfo) -> Iterator[Difference]:
    first = {name: ours.hardware.get(name) for name in _HARDWARE}
    second = {name: theirs.hardware.get(name) for name in _HARDWARE}
    return _mapping("", first, second, kind=SettingKind.HARDWARE, ranks=_HARDWARE)


def _mapping(
    before: str,
    ours: Mapping[str, JsonValue],
    theirs: Mapping[str, JsonValue],
    *,
    kind: SettingKind,
    ranks: Mapping[str, float],
) -> Iterator[Difference]:
    for name, first, second in differing_values(ours, theirs):
        suspicion = ranks.get(name, _OTHER_PACKAGE)
        yield Difference(what=before + name, reference=first, candidate=second, kind=kind, suspicion=suspicion)


def _one(what: str, ours: JsonValue, theirs: JsonValue, *, kind: SettingKind, suspicion: float) -> Iterator[Difference]:
    if ours != theirs:
        yield Difference(what=what, reference=ours, candidate=theirs, kind=kind, suspicion=suspicion)


def _command(ours: RunInfo, theirs: RunInfo) -> Iterator[Difference]:
    """Yield the arguments that differ; where things lie, and how they are called, does not matter."""
    first, second = _arguments(ours.command), _arguments(theirs.command)
    for name, first_value, second_value in differing_values(first, second):
        yield Difference(
            what=f"argument {name}",
            reference=first_value if name in first else "not given",
            candidate=second_value if name in second else "not given",
            kind=SettingKind.COMMAND,
            suspicion=0.35,
        )


_NAMES = ("name", "run-name", "to", "out", "output", "output-dir", "log-dir", "logdir", "save", "save-dir", "run-id")


def _arguments(command: tuple[str, ...]) -> dict[str, JsonValue]:
    """Return options by name and the others by place, without those that say where and under which name.

    >>> _arguments(("python", "/home/a/train.py", "--lr", "0.1", "--name", "second", "--fast"))
    {'--lr': '0.1', '--fast': True}
    """
    found: dict[str, JsonValue] = {}
    words = [word for part in command for word in (part.split("=", 1) if part.startswith("--") else [part])]
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        has_value = place < len(words) and not words[place].startswith("--")
        if word.startswith("--"):
            value: JsonValue = words[place] if has_value else True
            place += has_value
            if word[2:].replace("_", "-") not in _NAMES and not _is_path(value):
                found[word] = value
        elif not _is_path(word) and word not in ("python", "python3", "-m"):
            found[f"#{len(found)}"] = word
    return found


def _is_path(value: JsonValue) -> bool:
    return isinstance(value, str) and (
        len(PurePath(value).parts) > 1 or bool(PurePath(value).suffix.strip(".0123456789e"))
    )

"""Changes valid files of every kind that roundoff reads; each reader must read the result or refuse it.

    python -m tests.fuzz_readers --seconds 3600 --seed 1
    python -m tests.fuzz_readers --cases 100000 --only run

Nothing but a `RoundoffError` may come out of a reader, within a bound of time and memory. The files to start from are
written when it begins. `tests/checkpoints/fuzz_readers.py` does the same for the checkpoints of every framework, and is
called from here.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import random
import resource
import shutil
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
import torch
from torch import nn

from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.compare.curves.curve_files import read_curve
from roundoff.compare.logprobs.logprob_comparison import compare_logprobs
from roundoff.compare.logprobs.logprob_files import read_logprobs
from roundoff.compare.logprobs.save_logprobs import save_logprobs
from roundoff.diagnose import diagnose_run
from roundoff.errors import RoundoffError
from roundoff.precision.recipe.named_recipes import known_recipes, recipe_named
from roundoff.precision.recipe.toml import read_recipe, to_toml
from roundoff.record.recording_block import recording
from roundoff.replay.saved.export import export_repro
from roundoff.replay.saved.saved_step import StateNames, describe_saved_step, read_saved_tape
from roundoff.replay.saved.tape_reader import TapeReader, read_external_tensors
from roundoff.runs import Run, list_runs, sampled_metrics
from roundoff.watch.watching import watching
from tests.checkpoints.checkpoint_samples import write_samples
from tests.checkpoints.fuzz_readers import mutated

MAX_SECONDS = 10.0
"""Of computing, for one input."""
MAX_GROWTH_MB = 400
"""Over a whole campaign."""

HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 2**64, 10**400, -(10**30), 1e308, "nan", "inf", "", "\x1b[2J", "\ud800",
    "a" * 5000, [], {}, [[]], [None], {"": None}, {"tensor": "self"}, [1, "a", None], {"tuple": [{"tuple": []}]},
    "torch.float32",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A reader, the folder that it reads from, and the files in it that are changed."""

    name: str
    folder: Path
    files: tuple[Path, ...]
    read: Callable[[Path], None]


def build_model() -> nn.Module:
    """Return the model of the runs."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


def write_watched_run(folder: Path) -> None:
    """Write a run with a step that broke and was saved."""
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watching(to=folder) as watch:
        for step in range(4):
            x = torch.randn(8, 4)
            loss = torch.nn.functional.mse_loss(model(x).log() if step == 2 else model(x), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        watch.verdict()


def write_recorded_run(folder: Path) -> None:
    """Write a run with whole tensors."""
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with recording(model, to=folder, level="tensors", histograms=True, reference="fp64"):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()


def read_run(folder: Path) -> None:
    """Read everything in a run, as reports and rules do."""
    list_runs(folder)
    sampled_metrics(folder)
    run = Run.open(folder)
    for rank in run.ranks[:2]:
        run.metrics(rank=rank), run.calls(rank=rank), run.memory(rank=rank), run.structures(rank=rank)
        run.inputs(rank=rank), run.ending(rank=rank), run.flight(rank=rank), run.python_stacks(rank=rank)
        for batch in run.batches(rank=rank):
            for key in batch:
                batch.torch(key)
    run.anomalies(), run.probes(), run.failures(), run.findings(), run.rule_answers()
    list(run.iter_events())
    run.parameters(), run.hashes()
    for rank, step in run.tensor_steps[:2]:
        file = run.tensor_file(step, rank=rank)
        for key in file:
            file.torch(key)
    for step in run.replayed_steps[:2]:
        list(run.replay(step).iter_events())
        run.replay(step).replay_info(), run.replay(step).origin()


def diagnose_folder(folder: Path) -> None:
    """Diagnose a run; a rule that failed is a bug of ours."""
    for failure in diagnose_run(Run.open(folder)).failures:
        raise AssertionError(f"rule {failure.name}: {failure.traceback[-900:]}")


def read_saved(folder: Path) -> None:
    """Read the saved step of a run, up to where its calls would be made, and export its op."""
    run = Run.open(folder)
    for step in run.replayed_steps[:2]:
        replayed = run.replay(step)
        describe_saved_step(replayed)
        tape = read_saved_tape(replayed, rank=0)
        model = build_model()
        names = StateNames([model], [torch.optim.Adam(model.parameters())])
        batch = replayed.replay_batch()
        external = read_external_tensors(tape["outside"], batch, is_wide=False)
        TapeReader(names, external, batch, on_loss=lambda loss: None).read(tape)
        with contextlib.suppress(RoundoffError), tempfile.TemporaryDirectory() as scratch:
            export_repro(replayed, to=Path(scratch) / "repro.py")


def read_one_checkpoint(path: Path) -> None:
    """Open a checkpoint and read every tensor."""
    with read_checkpoint(path) as checkpoint:
        for name in checkpoint.entries:
            checkpoint.tensor(name)


def read_recipe_file(path: Path) -> None:
    """Read a recipe."""
    read_recipe(path, named=recipe_named)


def read_curve_file(path: Path) -> None:
    """Read a loss curve."""
    read_curve(path)


def read_logprob_table(path: Path) -> None:
    """Read a table of log-probabilities, and compare it with itself."""
    table = read_logprobs(path)
    compare_logprobs(table, table)


def make_targets(folder: Path) -> list[Target]:
    """Write the valid files, and say who reads them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_watched_run(folder / "watched")
        write_recorded_run(folder / "recorded")
    diagnose_run(Run.open(folder / "watched"))
    targets = []
    for name in ("watched", "recorded"):
        files = tuple(sorted(path for path in (folder / name).rglob("*") if path.is_file() and path.stat().st_size))
        targets.append(Target(name=f"run {name}", folder=folder / name, files=files, read=read_run))
    watched = targets[0]
    targets.append(Target(name="run diagnosed", folder=watched.folder, files=watched.files, read=diagnose_folder))
    saved = tuple(path for path in watched.files if path.parent.parent.name == "replay")
    targets.append(Target(name="run saved step", folder=watched.folder, files=saved, read=read_saved))
    texts = {
        **{f"{recipe.name}.toml": to_toml(recipe) for recipe in known_recipes()},
        "curve.csv": "step,loss,lr\n" + "".join(f"{n},{1 / (n + 1)},0.1\n" for n in range(50)),
        "curve.jsonl": "".join(json.dumps({"step": n, "loss": 1 / (n + 1)}) + "\n" for n in range(50)),
        "curve.log": "".join(f"epoch 1 step {n} loss: {1 / (n + 1):.4f} lr 0.1\n" for n in range(50)),
        "curve.json": json.dumps({"log_history": [{"step": n, "loss": 1 / (n + 1)} for n in range(50)]}),
    }
    for name, text in texts.items():
        path = folder / name
        path.write_text(text)
        kind, read = ("recipe", read_recipe_file) if path.suffix == ".toml" else ("curve", read_curve_file)
        targets.append(Target(name=f"{kind} {name}", folder=path, files=(path,), read=read))
    for suffix in (".parquet", ".jsonl", ".npz"):
        path = save_logprobs(
            folder / f"logprobs{suffix}", torch.randint(0, 9, (4, 8)), -torch.rand(4, 8), sample=list("abcd"),
            top_tokens=torch.randint(0, 9, (4, 8, 3)), top_logprobs=-torch.rand(4, 8, 3),
            version=1, weights=build_model(),
        )  # fmt: skip
        files = tuple(sorted(path.iterdir())) if path.is_dir() else (path,)
        targets.append(Target(name=f"logprobs {path.name}", folder=path, files=files, read=read_logprob_table))
    samples = write_samples(folder / "checkpoints") if (folder / "checkpoints").mkdir() is None else {}
    for name, path in samples.items():
        if path.is_file() and path.suffix not in (".h5", ".keras"):  # these have a process of their own each
            targets.append(Target(name=f"checkpoint {name}", folder=path, files=(path,), read=read_one_checkpoint))
    return targets


def mutate(file: Path, data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """Change bytes; of JSON, in half of the cases, change a value instead."""
    if file.suffix in (".json", ".jsonl") and chance.random() < 0.5:
        lines = [data] if file.suffix == ".json" else data.splitlines(keepends=True)
        place = chance.randrange(len(lines))
        with contextlib.suppress(ValueError):
            value = json.loads(lines[place])
            for _ in range(chance.choice([1, 1, 2])):
                value = _with_hostile_value(value, chance)
            end = b"\n" if file.suffix == ".jsonl" else b""
            lines[place] = json.dumps(value).encode(errors="surrogatepass") + end
            return b"".join(lines)
    if file.suffix == ".toml" and chance.random() < 0.7:
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            return tomli_w.dumps(_with_hostile_value(tomllib.loads(data.decode()), chance)).encode()
    return mutated(data, chance, others)


def _with_hostile_value(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: _with_hostile_value(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        return [*value[:place], _with_hostile_value(value[place], chance), *value[place + 1 :]]
    return chance.choice(HOSTILE)


class Campaign:
    """Runs cases, counts how they ended, and keeps the faults that it found."""

    def __init__(self, *, seed: int, only: str = "") -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.faults: dict[str, str] = {}
        """The first case of each fault, by where it was raised."""
        self._seed, self._only = seed, only

    def run(self, *, num_cases: int | None = None, seconds: float | None = None, show: bool = False) -> None:
        """Run this many cases, or for this long."""
        began, memory = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with _scratch() as folder:
            targets = [target for target in make_targets(folder) if self._only in target.name]
            originals = {file: file.read_bytes() for target in targets for file in target.files}
            others = list(originals.values())
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            case = 0
            while (num_cases is None or case < num_cases) and (seconds is None or time.monotonic() - began < seconds):
                self._run_case(case, targets, originals, others)
                case += 1
                if show and case % 1000 == 0:
                    print(f"{case} cases, {len(self.faults)} faults, {time.monotonic() - began:.0f} s", flush=True)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
        self.counts["grown MB"] = round(grown)
        if grown > MAX_GROWTH_MB:
            self.faults["memory"] = f"{grown:.0f} MB more than at the start"

    def _run_case(self, case: int, targets: list[Target], originals: Mapping[Path, bytes], others: list[bytes]) -> None:
        chance = random.Random(f"{self._seed} {case}")
        kinds = sorted({target.name.split()[0] for target in targets})
        kind = chance.choice(kinds)
        target = chance.choice([target for target in targets if target.name.startswith(kind)])
        file = chance.choice(target.files)
        file.write_bytes(mutate(file, originals[file], chance, others))
        began = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                target.read(target.folder)
            ended = "read"
        except RoundoffError:
            ended = "refused"
        except Exception as error:
            ended = "fault"
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/roundoff/" in frame.filename]
            place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside"
            text = "".join(traceback.format_exception(error)[-6:])
            self.faults.setdefault(
                f"{type(error).__name__} at {place}",
                f"seed {self._seed} case {case}: {target.name} {file.name}\n{text}",
            )
        if (seconds := time.process_time() - began) > MAX_SECONDS:
            self.faults.setdefault(f"slow {target.name}", f"seed {self._seed} case {case} {file.name}: {seconds:.0f} s")
        self.counts[f"{target.name}: {ended}"] += 1
        file.write_bytes(originals[file])
        for extra in set(target.folder.glob("findings.json")) - set(target.files) if target.folder.is_dir() else ():
            extra.unlink()


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="roundoff-fuzz-", dir=memory if memory.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Run a campaign as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only targets whose name contains this text")
    arguments = parser.parse_args()
    if arguments.seconds is None and arguments.cases is None:
        arguments.cases = 10_000
    began = time.monotonic()
    campaign = Campaign(seed=arguments.seed, only=arguments.only)
    campaign.run(num_cases=arguments.cases, seconds=arguments.seconds, show=True)
    for name, count in sorted(campaign.counts.items()):
        print(f"{count:7} {name}")
    for name, text in campaign.faults.items():
        print(f"-- {name}: {text}")
    print(f"{campaign.counts.total()} cases in {time.monotonic() - began:.0f} s, {len(campaign.faults)} faults")
    return 1 if campaign.faults else 0


if __name__ == "__main__":
    sys.exit(main())

"""The same fault in other guises: trainings in a class, under a framework, on two ranks; and the finding, the same.

As a program it prints the score: `python -m tests.faults.run_guises [--sample 12] [--only lightning] [WORD]...`.
A training whose losses show that the guise changed more than it should is not counted.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.faults.guises import loss_log
from tests.faults.guises.guise import GUISES, Guise
from tests.faults.run_faults import diagnose_script
from tests.faults.zoo.catalogue import Expected, Score, expectations, healthy_trainings
from tests.faults.zoo.scoring import causes
from tests.faults.zoo.table import share
from tests.watch.script_server import ScriptServer

FRAMEWORKS = ("accelerate", "lightning.pytorch", "transformers.trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one training in one guise."""

    name: str
    guise: str
    healthy: bool
    sound: bool
    """The losses show that it still does the same; if not, it is not counted."""
    cause: bool = False
    place: bool = False
    blamed: bool = False
    found: str = ""
    """The rule and place of the first finding, where it is not the expected one."""


def put_on(
    guise: Guise, entries: Sequence[Expected], folder: Path, *, seed: int
) -> Iterator[tuple[Expected, Expected]]:
    """Yield the trainings that the guise fits, each as it was and rewritten, in an order drawn with the seed."""
    known = causes()
    shuffled = list(entries)
    random.Random(f"{seed} {guise.name}").shuffle(shuffled)
    for entry in shuffled:
        family = known[entry.rule].family if entry.rule else ""
        rewritten = guise.put_on(entry, family, folder / guise.name, seed=seed)
        if rewritten is not None:
            yield entry, rewritten


def losses_of(entry: Expected, server: ScriptServer, folder: Path) -> list[float]:
    """Run a training without being watched and return the losses it calls backward on."""
    server.run([str(loss_log.__file__), entry.script], folder=folder, ranks=entry.ranks)
    path = folder / loss_log.LOSSES
    return [float(line) for line in path.read_text().splitlines()] if path.exists() else []


def try_one(guise: Guise, entry: Expected, rewritten: Expected, server: ScriptServer, folder: Path) -> Outcome:
    """Check that the guise kept the training, and diagnose it."""
    name, healthy = entry.name, entry.healthy
    before = losses_of(entry, server, folder / "before")
    after = losses_of(rewritten, server, folder / "after")
    if not before or not guise.is_sound(before, after):
        return Outcome(name=name, guise=guise.name, healthy=healthy, sound=False)
    diagnosed = diagnose_script(rewritten, server, folder / "watched")
    first = (diagnosed.findings or [None])[0]
    cause = first is not None and first.rule == entry.rule
    place = diagnosed.score is Score.RIGHT
    found = "" if diagnosed.is_right else str(first and f"{first.severity} {first.rule} {first.step} {first.site}")
    blamed = diagnosed.score is Score.FALSE_ALARM
    return Outcome(
        name=name, guise=guise.name, healthy=healthy, sound=True, cause=cause, place=place, blamed=blamed, found=found
    )


def table_of_guises(outcomes: Sequence[Outcome], *, fits: dict[str, int], num_plants: int) -> str:
    """Return the score of each guise as Markdown."""
    lines = [
        f"| guise | fits, of {num_plants} faulty trainings | still the same, of those tried | cause named "
        "| place named | healthy blamed |",
        "|---|---|---|---|---|---|",
    ]
    for name in [*dict.fromkeys(outcome.guise for outcome in outcomes), "all"]:
        mine = [outcome for outcome in outcomes if name in (outcome.guise, "all")]
        faulty = [outcome for outcome in mine if not outcome.healthy]
        counted = [outcome for outcome in faulty if outcome.sound]
        healthy = [outcome for outcome in mine if outcome.healthy and outcome.sound]
        cells = [
            str(fits[name]) if name in fits else "",
            share(len(counted), len(faulty)),
            share(sum(outcome.cause for outcome in counted), len(counted)),
            share(sum(outcome.place for outcome in counted), len(counted)),
            share(sum(outcome.blamed for outcome in healthy), len(healthy)),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def count_fits(folder: Path, *, seed: int = 0) -> dict[str, int]:
    """Return how many faulty trainings each guise fits by their form."""
    faulty = [entry for entry in expectations() if not entry.healthy]
    return {name: len(list(put_on(guise, faulty, folder / "fits", seed=seed))) for name, guise in GUISES.items()}


def main(arguments: Sequence[str]) -> int:
    """Print the score of trainings in their guises, or of those whose names hold one of the words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="so many faulty trainings for each guise, a third as many healthy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=GUISES)
    parser.add_argument("--to", type=Path, help="outcomes as JSON lines; what is in it is not tried again")
    parser.add_argument("words", nargs="*", metavar="PART OF A NAME")
    options = parser.parse_args(arguments)
    known = [*expectations(), *healthy_trainings()]
    chosen = [entry for entry in known if not options.words or any(word in entry.name for word in options.words)]
    lines = options.to.read_text().splitlines() if options.to and options.to.exists() else []
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    done = {(outcome.guise, outcome.name) for outcome in outcomes}
    with tempfile.TemporaryDirectory() as temporary, ScriptServer(*FRAMEWORKS) as server:
        folder = Path(temporary)
        for guise in [GUISES[options.only]] if options.only else GUISES.values():
            for healthy, number in ((False, options.sample), (True, options.sample and (options.sample + 2) // 3)):
                entries = [entry for entry in chosen if entry.healthy == healthy]
                for entry, rewritten in list(put_on(guise, entries, folder, seed=options.seed))[:number]:
                    if (guise.name, entry.name) in done:
                        continue
                    outcome = try_one(guise, entry, rewritten, server, folder / "runs" / rewritten.name)
                    outcomes.append(outcome)
                    print(_line(outcome), flush=True)
                    if options.to:
                        with options.to.open("a") as file:
                            file.write(json.dumps(asdict(outcome)) + "\n")
        num_plants = sum(not entry.healthy for entry in expectations())
        print(table_of_guises(outcomes, fits=count_fits(folder), num_plants=num_plants))
    return 0


def _line(outcome: Outcome) -> str:
    if not outcome.sound:
        return f"{outcome.guise:18} {outcome.name:45} not counted: it trains otherwise"
    good = outcome.place if not outcome.healthy else not outcome.blamed
    return f"{outcome.guise:18} {outcome.name:45} {'as expected' if good else 'found ' + outcome.found}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Writes the tables of docs/fault-zoo.md from the results that are kept: `python -m docs.zoo_page`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.faults.run_guises import Outcome, table_of_guises
from tests.faults.zoo.scoring import Answer
from tests.faults.zoo.table import Row, families_of, table_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "fault-zoo.md"
RESULTS = ROOT / "tests" / "faults" / "zoo" / "results.json"
PART = re.compile(r"<!-- (tools|families|guises|missed|sample) -->.*?<!-- end -->", re.S)


def fill_in(page: str, results: dict[str, Any]) -> str:
    """Return the page with every table made again from the results."""
    parts = parts_of(results)
    return PART.sub(lambda found: f"<!-- {found[1]} -->\n{parts[found[1]]}\n<!-- end -->", page)


def parts_of(results: dict[str, Any]) -> dict[str, str]:
    """Return the generated parts by name."""
    rows = [
        Row(tool=row["tool"], by=row["by"], answers=tuple(Answer(**answer) for answer in row["answers"]))
        for row in results["tools"]
    ]
    outcomes = [Outcome(**outcome) for outcome in results["guises"]]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    faulty = sum(not answer.healthy for answer in rows[0].answers)
    healthy = len(rows[0].answers) - faulty
    sample = (
        f"Measured on {results['date']} with {versions}, on {faulty} of {results['num_faulty']} faulty trainings and "
        f"{healthy} of {results['num_healthy']} healthy ones (`--sample {results['sample']} --seed {results['seed']}`)."
        f" The guises are scored on {len(outcomes)} rewritten trainings of their own."
    )
    return {
        "tools": table_of(rows),
        "families": families_of(rows),
        "guises": table_of_guises(outcomes, fits=results["fits"], num_plants=results["num_faulty"]),
        "missed": _missed(outcomes),
        "sample": sample,
    }


def _missed(outcomes: Sequence[Outcome]) -> str:
    """Return the trainings whose cause or place is not named in a guise, as a list."""
    wrong = [outcome for outcome in outcomes if outcome.sound and not outcome.healthy and not outcome.place]
    lines = []
    for guise in dict.fromkeys(outcome.guise for outcome in wrong):
        names = [
            f"`{outcome.name}`{' (only the place)' if outcome.cause else ''}"
            for outcome in wrong
            if outcome.guise == guise
        ]
        lines.append(f"- {guise}: {', '.join(names)}")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(fill_in(PAGE.read_text(), json.loads(RESULTS.read_text())))

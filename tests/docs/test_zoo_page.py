"""docs/fault-zoo.md shows the results that are kept, and how they were made."""

import json

from docs.zoo_page import PAGE, RESULTS, fill_in, parts_of
from tests.faults.zoo.catalogue import expectations, healthy_trainings

KEPT = json.loads(RESULTS.read_text())


def test_the_page_shows_the_kept_results() -> None:
    """If this fails, run `python -m docs.zoo_page`."""
    page = PAGE.read_text()
    assert page == fill_in(page, KEPT)
    assert [name for name in parts_of(KEPT) if f"<!-- {name} -->" not in page] == []


def test_every_kept_answer_is_about_a_training_that_exists_and_no_tool_saw_others() -> None:
    known = {entry.title for entry in [*expectations(), *healthy_trainings()]}
    asked = [{answer["name"] for answer in row["answers"]} for row in KEPT["tools"]]
    assert asked[0] <= known
    assert all(names <= asked[0] for names in asked)
    assert {outcome["name"] for outcome in KEPT["guises"]} <= known

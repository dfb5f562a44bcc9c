"""docs/my-training-is-wrong.md asks its questions in the order in which the diagnosis decides."""

import re
from pathlib import Path

from docs.rule_pages import CODES, fill_in_questions
from roundoff.diagnose.against import AGAINST_CODES
from roundoff.diagnose.diagnosis import PROCEDURE

PAGE = fill_in_questions((Path(__file__).parents[2] / "docs" / "my-training-is-wrong.md").read_text())


def test_names_every_code_once_in_the_order_of_the_decision():
    named = [word for word in re.findall(r"`([a-z-]+)`", PAGE) if word in CODES]
    assert named == [*PROCEDURE, *(code.name for code in AGAINST_CODES)]

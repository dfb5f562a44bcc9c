"""docs/my-training-is-wrong.md asks its questions in the order in which the diagnosis decides."""

import re
from pathlib import Path

from roundoff.diagnose.against import AGAINST_CODES
from roundoff.diagnose.explained import EXPLANATIONS
from roundoff.diagnose.rules import PROCEDURE

PAGE = (Path(__file__).parents[2] / "docs" / "my-training-is-wrong.md").read_text()


def test_names_every_code_once_in_the_order_of_the_decision():
    named = [word for word in re.findall(r"`([a-z-]+)`", PAGE) if word in EXPLANATIONS]
    assert named == [*PROCEDURE, *AGAINST_CODES]

"""No fix and no sentence holds a placeholder, or a number that says nothing."""

import re
from pathlib import Path

import roundoff.diagnose

SOURCES = {path.name: path.read_text() for path in Path(roundoff.diagnose.__file__).parent.rglob("*.py")}


def test_no_fix_names_a_literal_script():
    assert {name for name, text in SOURCES.items() if re.search(r"\bSCRIPT\b", text)} == set()


def test_no_sentence_counts_how_many_fold_something_grew():
    assert {name for name, text in SOURCES.items() if re.search(r"\}-?fold\b", text)} == set()

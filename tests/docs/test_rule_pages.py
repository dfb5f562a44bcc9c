"""The page of a rule says what it means, how it is detected and how to fix it, from the rules themselves."""

import pytest

from docs.rule_pages import CODES, index_of_codes, page_of_code
from roundoff.diagnose.diagnosis import PROCEDURE


@pytest.mark.parametrize("code", CODES)
def test_every_page_holds_meaning_detection_and_fix(code: str):
    page = page_of_code(code)
    assert page.startswith(f"# {code}\n")
    assert CODES[code].means in page
    assert CODES[code].fix in page
    detection = page.partition("## How it is detected\n\n")[2].partition("\n\n## ")[0]
    assert len(detection) > 60
    assert "None" not in detection


def test_a_page_shows_causes_consequences_and_a_training_that_has_the_fault():
    page = page_of_code("dead-units")
    assert "It may be a consequence of [`zero-init`](zero-init.md)" in page
    assert "It explains [`vanishing-gradients`](vanishing-gradients.md)" in page
    assert "```python\nimport torch" in page or '```python\n"""' in page
    assert f"of {len(PROCEDURE)} in the decision order." in page


def test_the_index_links_to_every_page():
    index = index_of_codes()
    assert [code for code in CODES if f"({code}.md)" not in index] == []

"""The page of a rule says what it means, how it is detected and how to fix it, from the rules themselves."""

import pytest

from docs.rule_pages import index_of_rules, page_of_rule
from roundoff.diagnose.explained import EXPLANATIONS
from roundoff.diagnose.rules import PROCEDURE


@pytest.mark.parametrize("code", EXPLANATIONS)
def test_every_page_holds_meaning_detection_and_fix(code: str):
    page = page_of_rule(code)
    assert page.startswith(f"# {code}\n")
    assert EXPLANATIONS[code].means in page
    assert EXPLANATIONS[code].fix in page
    detection = page.partition("## How it is detected\n\n")[2].partition("\n\n## ")[0]
    assert len(detection) > 60
    assert "None" not in detection


def test_a_page_shows_causes_consequences_and_a_training_that_has_the_fault():
    page = page_of_rule("dead-units")
    assert "It may be a consequence of [`zero-init`](zero-init.md)" in page
    assert "It explains [`vanishing-gradients`](vanishing-gradients.md)" in page
    assert "```python\nimport torch" in page or '```python\n"""' in page
    assert f"of {len(PROCEDURE)} in the order of the decision." in page


def test_the_index_links_to_every_page():
    index = index_of_rules()
    assert [code for code in EXPLANATIONS if f"({code}.md)" not in index] == []

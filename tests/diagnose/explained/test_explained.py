"""Every code has its explanation, once, and no explanation is about a code that no rule has."""

import collections

from roundoff.diagnose.against import AGAINST_CODES
from roundoff.diagnose.explained import EXPLANATIONS, FAMILIES
from roundoff.diagnose.rules import PROCEDURE, RULES


def test_explains_every_code_that_a_finding_can_carry_and_no_other():
    assert set(EXPLANATIONS) == {*PROCEDURE, *AGAINST_CODES}


def test_explains_no_code_in_two_families():
    counts = collections.Counter(code for family in FAMILIES for code in family.explanations)
    assert [code for code, count in counts.items() if count > 1] == []


def test_explanations_are_whole_sentences():
    texts = [text for e in EXPLANATIONS.values() for text in (e.means, e.fix, e.detected) if text]
    assert [text for text in texts if not (text[0].isupper() or text[0] == "`") or not text.endswith(".")] == []


def test_says_of_every_code_that_shares_its_rule_how_it_is_told_from_the_others():
    shared = [code for rule in RULES if len(rule.codes) > 1 for code in rule.codes]
    assert [code for code in (*shared, *AGAINST_CODES) if not EXPLANATIONS[code].detected] == []

import json
import re

from roundoff.report.markup import Html, tag
from roundoff.report.run_page.section import Section, data_block, for_json, section_html

HOSTILE = "</script><script>alert(1)</script><!--"


def read_block(text: str) -> object:
    (content,) = re.findall(r"<script[^>]*>(.*)</script>", text, re.S)
    return json.loads(content)


def test_no_text_in_the_data_can_end_its_element():
    block = data_block("names", {HOSTILE: [HOSTILE, "a & b"]})
    assert block.count("<") == 2
    assert "<!--" not in block
    assert read_block(block) == {HOSTILE: [HOSTILE, "a & b"]}


def test_data_is_never_run():
    assert data_block("loss", [1]) == '<script type="application/json" id="data-loss">[1]</script>'


def test_numbers_keep_four_digits_and_what_is_not_finite_becomes_a_gap():
    values = [1.23456789, -3.0, 1e30, float("inf"), float("nan"), True, None, 12345678]
    assert for_json(values) == [1.235, -3, 1e30, None, None, True, None, 12345678]


def test_a_section_says_what_was_left_out():
    made = section_html(
        Section(key="loss", title="Loss", body=tag("p", "words"), data={"loss": 1}, thinned=["2 <more> are left out."])
    )
    assert made.startswith('<section id="loss"><h2>Loss</h2><p>words</p>')
    assert '<p class="thinned">2 &lt;more&gt; are left out.</p>' in made
    assert 'id="data-loss"' in made


def test_a_hostile_title_stays_text():
    assert "<script" not in section_html(Section(key="a", title=HOSTILE, body=Html("")))

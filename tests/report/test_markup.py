from roundoff.report.markup import Html, join_html, tag


def test_text_is_escaped_and_html_is_not():
    assert tag("p", "<script>", Html("<b>bold</b>")) == "<p>&lt;script&gt;<b>bold</b></p>"


def test_what_was_built_is_not_escaped_again():
    assert tag("p", tag("b", "a & b")) == "<p><b>a &amp; b</b></p>"


def test_an_attribute_cannot_be_left():
    assert tag("td", title='" onclick="alert(1)') == '<td title="&quot; onclick=&quot;alert(1)"></td>'


def test_attributes_are_named_as_in_python():
    assert tag("div", class_="wide", aria_label="rows", name="a", tabindex=0, hidden=True, lang=None) == (
        '<div class="wide" aria-label="rows" name="a" tabindex="0" hidden></div>'
    )


def test_elements_that_hold_nothing_have_no_end():
    assert tag("input", type="search") == '<input type="search"/>'


def test_pieces_are_escaped_when_they_are_joined():
    assert join_html("a < b", tag("br")) == "a &lt; b<br/>"
    assert isinstance(join_html("a"), Html)

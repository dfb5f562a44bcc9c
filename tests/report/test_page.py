import base64
import hashlib
import re
from html.parser import HTMLParser

from roundoff.report.page import facts, page, section


class Elements(HTMLParser):
    """Notes the elements of a page, and the ends that do not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.open: list[str] = []
        self.misfits: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.names.append(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.names.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.misfits.append(tag)


def elements_of(text: str) -> Elements:
    elements = Elements()
    elements.feed(text)
    elements.close()
    return elements


def test_every_element_ends_where_it_should():
    elements = elements_of(page("A title", section("Part", "words"), facts({"lr": "0.1"})))
    assert (elements.open, elements.misfits) == ([], [])


def test_a_hostile_title_stays_text():
    text = page("</title><script>alert(1)</script>")
    assert elements_of(text).names.count("script") == 1
    assert "<h1>&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;</h1>" in text


def test_nothing_is_fetched():
    text = page("A title", section("Part"))
    assert not re.search(r"https?:|//[\w.]+\.\w|\bsrc=|\bhref=|@import|url\(", text)


def test_the_browser_may_use_our_script_and_style_and_nothing_else():
    text = page("A title")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    prints = []
    for name in ("style", "script"):
        (body,) = re.findall(rf"<{name}>(.*?)</{name}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        prints.append(f"{name}-src &#x27;sha256-{digest}&#x27;")
    assert policy == f"default-src &#x27;none&#x27;; {'; '.join(prints)}"


def test_the_script_and_style_cannot_end_their_element_early():
    text = page("A title")
    assert (text.count("</script"), text.count("</style")) == (1, 1)


def test_there_is_a_dark_side_and_a_printed_one():
    text = page("A title")
    assert "@media (prefers-color-scheme: dark)" in text
    assert "@media print" in text

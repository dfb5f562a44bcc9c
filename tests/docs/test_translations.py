"""A Chinese page says what its English page says: the same headings, code, figures and links, section by section."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from posixpath import normpath

import pytest

ROOT = Path(__file__).parents[2]
CHINESE = [ROOT / "README.zh.md", *sorted((ROOT / "docs" / "zh").glob("*.md"))]

FENCED = re.compile(r"^```.*?^```$", re.S | re.M)
COMMENT = re.compile(r"<!--.*?-->", re.S)
HEADING = re.compile(r"^(#+) (.*)$", re.M)
LINK = re.compile(r"\]\(([^)\s]+)\)")
TAG = re.compile(r"<a id=.*?</a>")
INLINE = re.compile(r"`([^`]+)`")
UNIT = r"%|x|ms|us|s|kB|KiB|MB|GB|GiB|ulp|M|million"
FIGURE = re.compile(rf"(?<![A-Za-z0-9_.])(\d[\dA-Za-z.,^/]*(?:(?<=e)-\d+)?)(?: ?({UNIT})(?![A-Za-z0-9]))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with what is below it, up to the next heading; the parts that a translation must not change."""

    heading: str
    level: int
    blocks: list[str]
    comments: list[str]
    links: Counter[str]
    code: Counter[str]
    figures: Counter[str]


def english_of(chinese: Path) -> Path:
    return ROOT / "README.md" if chinese.name == "README.zh.md" else ROOT / "docs" / chinese.name


@pytest.mark.parametrize("chinese", CHINESE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_translation_is_in_step_with_its_page(chinese: Path):
    english = english_of(chinese)
    assert english.exists(), f"{chinese.relative_to(ROOT)} translates a page that is gone"
    found = differences(sections_of(english.read_text(), english), sections_of(chinese.read_text(), chinese))
    assert list(found) == [], f"{english.relative_to(ROOT)} and {chinese.relative_to(ROOT)} differ"


@pytest.mark.parametrize("chinese", CHINESE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_two_pages_link_to_each_other_below_their_titles(chinese: Path):
    there = "README.zh.md" if chinese.name == "README.zh.md" else f"zh/{chinese.name}"
    back = "README.md" if chinese.name == "README.zh.md" else f"../{chinese.name}"
    assert english_of(chinese).read_text().split("\n\n")[1] == f"English | [中文]({there})"
    assert chinese.read_text().split("\n\n")[1] == f"[English]({back}) | 中文"


@pytest.mark.parametrize("chinese", CHINESE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_to_anchors_of_chinese_pages(chinese: Path):
    text = chinese.read_text()
    targets = [link.partition("#") for link in LINK.findall(FENCED.sub("", text)) if "://" not in link]
    files = [(chinese.parent / name if name else chinese, anchor) for name, _, anchor in targets]
    assert [str(path) for path, _ in files if not path.exists() and path.parent.name != "rules"] == []
    translated = [(path, anchor) for path, anchor in files if anchor and path.resolve() in CHINESE]
    assert [anchor for path, anchor in translated if f'<a id="{anchor}"></a>' not in path.read_text()] == []


ENGLISH = """# Title

Takes 2 % of 10 ms ([more](watch.md#cost)), with `--budget`.

```console
$ roundoff run train.py  # yours
```

## Cost

| a | 1.5 x |
"""


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("", "", None),
        ("Takes 2 % of 10 ms", "在 10 ms 中占 2%", None),
        ("(watch.md#cost)", "(zh/watch.md#cost)", None),
        ("2 %", "3 %", "'Title': figure '2%' is missing"),
        ("10 ms", "10 s", "'Title': figure '10ms' is missing"),
        ("1.5 x", "1.5", "'Cost': figure '1.5x' is missing"),
        ("## Cost", "### Cost", "heading 2: level 2 'Cost', in Chinese 3 'Cost'"),
        ("\n## Cost\n", "", "heading 2: level 2 'Cost', in Chinese nothing"),
        ("# yours", "# 您的", "'Title': code block 1, line 2: '$ roundoff run train.py  # yours', in Chinese"),
        ("`--budget`", "`--limit`", "'Title': code in the text '--budget' is missing"),
        ("(watch.md#cost)", "(train.md)", "'Title': link 'docs/watch.md#cost' is missing"),
    ],
)
def test_a_difference_is_named(before: str, after: str, message: str | None):
    page = ROOT / "docs" / "page.md"
    found = list(differences(sections_of(ENGLISH, page), sections_of(ENGLISH.replace(before, after), page)))
    assert found == [] if message is None else found[0].startswith(message)


def sections_of(text: str, page: Path) -> list[Section]:
    """Split a page at its headings; a line of a code block that looks like a heading is none."""
    blanked = FENCED.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)
    starts = [*HEADING.finditer(blanked)]
    ends = [*(heading.start() for heading in starts[1:]), len(text)]
    return [_section(heading, text[heading.start() : end], page) for heading, end in zip(starts, ends, strict=True)]


def _section(heading: re.Match[str], text: str, page: Path) -> Section:
    prose = TAG.sub("", COMMENT.sub("", FENCED.sub("", text)))
    words = INLINE.sub("", LINK.sub("]", prose))
    return Section(
        heading=heading[2],
        level=len(heading[1]),
        blocks=FENCED.findall(text),
        comments=COMMENT.findall(FENCED.sub("", text)),
        links=Counter(_target(link, page) for link in LINK.findall(prose)),
        code=Counter(" ".join(code.split()) for code in INLINE.findall(prose)),
        figures=Counter(_figure(*found) for found in FIGURE.findall(words)),
    )


def _target(link: str, page: Path) -> str:
    """Return where a link leads from the root of the repository, for a Chinese page as if it were the English one."""
    if "://" in link:
        return link
    name, mark, anchor = link.partition("#")
    folder = PurePosixPath(page.relative_to(ROOT).as_posix()).parent
    target = normpath(folder / name) if name else page.relative_to(ROOT).as_posix()
    return target.replace("docs/zh/", "docs/").replace("README.zh.md", "README.md") + mark + anchor


def _figure(number: str, unit: str) -> str:
    return number.rstrip(".,/") + unit.replace("million", "M")


def differences(english: list[Section], chinese: list[Section]) -> Iterator[str]:
    """Yield what differs: headings, or else, below each heading, code blocks, comments, links, code and figures."""
    levels = [
        f"heading {number}: {_heading(one)}, in Chinese {_heading(other).removeprefix('level ')}"
        for number, (one, other) in enumerate(zip_longest(english, chinese), start=1)
        if one is None or other is None or one.level != other.level
    ]
    if levels:
        yield levels[0]  # those that follow are its consequences
        return
    for one, other in zip(english, chinese, strict=True):
        yield from (f"{one.heading!r}: {difference}" for difference in _differences_below(one, other))


def _heading(section: Section | None) -> str:
    return f"level {section.level} {section.heading!r}" if section else "nothing"


def _differences_below(one: Section, other: Section) -> Iterator[str]:
    for number, (mine, theirs) in enumerate(zip_longest(one.blocks, other.blocks, fillvalue=""), start=1):
        lines = zip_longest(mine.split("\n"), theirs.split("\n"), fillvalue="")
        for line, (here, there) in enumerate(lines, start=1):
            if here != there:
                yield f"code block {number}, line {line}: {here!r}, in Chinese {there!r}"
                break
    if one.comments != other.comments:
        yield f"comments {one.comments}, in Chinese {other.comments}"
    for what, mine, theirs in (
        ("link", one.links, other.links),
        ("code in the text", one.code, other.code),
        ("figure", one.figures, other.figures),
    ):
        yield from (f"{what} {value!r} is missing in Chinese" for value in (mine - theirs).elements())
        yield from (f"{what} {value!r} is in Chinese only" for value in (theirs - mine).elements())

import pytest

from roundoff.words import text_table

LINES = [
    ("recipe", "batch", "saved", "note"),
    ("a recipe with a rather long name", "1024", "5.21 MB", "failed: " + "a long story " * 20),
    ("O2", "8", "653 kB", ""),
]
WORDS = ("recipe", "note")


@pytest.mark.parametrize("ruled", [False, True])
@pytest.mark.parametrize("width", [60, 80, 100, 400])
def test_no_line_is_wider_than_requested(ruled: bool, width: int):
    lines = text_table(LINES, left=WORDS, ruled=ruled, width=width).splitlines()
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("ruled", [False, True])
def test_numbers_are_never_cut(ruled: bool):
    assert "1024  5.21 MB" in text_table(LINES, left=WORDS, ruled=ruled, width=20)


def test_words_are_cut_in_the_widest_column_first():
    assert text_table(LINES, left=WORDS, ruled=False, width=100).splitlines() == [
        "recipe                            batch    saved  note",
        "a recipe with a rather long name   1024  5.21 MB  failed: a long story a long story a long story a …",
        "O2                                    8   653 kB",
    ]
    assert text_table(LINES, left=WORDS, ruled=False, width=60).splitlines()[1] == (
        "a recipe with a rath…   1024  5.21 MB  failed: a long story…"
    )


def test_a_table_that_fits_is_left_alone():
    assert "…" not in text_table(LINES, left=WORDS, ruled=True, width=400)


def test_a_ruled_table_has_a_line_under_its_header():
    lines = text_table([("recipe", "top-1"), ("O2", "0.97")], left={"recipe"}, ruled=True).splitlines()
    assert lines == ["recipe  top-1", "──────  ─────", "O2       0.97"]


def test_a_ruled_table_is_as_wide_as_its_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, text_table(LINES, left=WORDS, ruled=True).splitlines())) == 50
    assert max(map(len, text_table(LINES, left=WORDS, ruled=False).splitlines())) == 100

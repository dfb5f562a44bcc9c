"""Counts, lists and lines of text."""

from roundoff.words import join_names, join_words, plural, wrap


def test_a_count_agrees_with_its_noun():
    assert [plural(number, "step") for number in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    assert plural(2, "entry", "entries") == "2 entries"


def test_words_are_joined_as_in_a_sentence():
    assert [join_words("abc"[:number]) for number in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert join_words("abcd", at_most=2) == "a, b and 2 more"


def test_names_are_separated_by_commas_and_the_rest_is_counted():
    assert join_names(["a", "b"]) == "a, b"
    assert join_names("abcdef") == "a, b, c, d and 2 more"


def test_lines_break_between_words_only():
    assert wrap("a-very-long-word and more", width=10) == ["a-very-long-word", "and more"]
    assert wrap("", first="  ") == [""]


def test_lines_of_the_text_stay_lines_and_are_indented():
    assert wrap("one\ntwo", first="fix  ", rest="     ") == ["fix  one", "     two"]

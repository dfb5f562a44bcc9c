"""Functions of the user's are found by module or by file, and errors say what is wrong with them."""

import sys
from pathlib import Path

import pytest

from roundoff.errors import SwitchError
from roundoff.switches.implementations import load_function


def test_a_module_in_the_current_folder_is_found_and_the_path_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "module_of_the_user.py").write_text("def double(op, x):\n    return 2 * x\n")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    assert load_function("module_of_the_user:double")("aten.exp", 4) == 8
    assert sys.path == path
    monkeypatch.delitem(sys.modules, "module_of_the_user")


def test_a_file_anywhere_is_found(tmp_path: Path):
    (tmp_path / "mine.py").write_text("def double(op, x):\n    return 2 * x\n")
    assert load_function(f"{tmp_path}/mine.py:double")("aten.exp", 4) == 8


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def other(): pass", "AttributeError: module 'mine' has no attribute 'double'"),
        ("def double(:", "SyntaxError: "),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        (None, "FileNotFoundError: "),
    ],
)
def test_the_error_says_what_is_wrong_with_a_file(tmp_path: Path, text: str | None, why: str):
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    with pytest.raises(SwitchError) as caught:
        load_function(f"{tmp_path}/mine.py:double")
    assert str(caught.value).startswith(f"The function '{tmp_path}/mine.py:double' cannot be found.")
    assert why in str(caught.value)


def test_something_that_cannot_be_called_is_an_error():
    with pytest.raises(SwitchError, match="'math:pi' is not a function"):
        load_function("math:pi")

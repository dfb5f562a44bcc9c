"""The code on the page docs/compressed-activations.md runs, and prints the table it shows."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "compressed-activations.md"


def test_the_page_does_what_it_says(capsys: pytest.CaptureFixture[str]):
    text = PAGE.read_text()
    namespace: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M):
        exec(compile(block, PAGE.name, "exec"), namespace)
    (table,) = re.findall(r"^```text\n(.*?)^```$", text, re.S | re.M)
    assert capsys.readouterr().out == table

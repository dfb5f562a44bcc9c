"""The code on the page docs/add-a-format.md runs, and gives what its comments say."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "add-a-format.md"


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the code blocks of the page define, run one after the other."""
    defined: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(block, defined)
    return defined


def test_every_result_on_the_page_is_what_the_code_gives(names):
    results = re.findall(r"^(.*?)  # (tensor\(.*\))$", PAGE.read_text(), flags=re.MULTILINE)
    assert len(results) == 2
    for code, printed in results:
        assert repr(eval(code, names)) == printed


def test_an_object_like_a_format_serves(names):
    import torch

    class Signs:
        """One bit: only the sign counts."""

        name, num_bits, overflow = "sign", 1, "saturate"
        largest = smallest_normal = smallest_subnormal = eps = 1.0

        def round_tensor(self, x, *, rounding, key, overflow, out):
            return torch.sign(x, out=out)

    assert names["round_to"](torch.tensor([0.3, -7.0]), Signs()).tolist() == [1.0, -1.0]

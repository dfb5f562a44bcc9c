"""docs/serve.md: what it tells programs to ask for is answered, and every address of the API is on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from roundoff.serve.api import Api
from roundoff.serve.run_rows import STATES, RunRows
from roundoff.serve.runs_folder import RunsFolder
from tests.serve.conftest import record_tensors
from tests.serve.serving import serving

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
REQUESTED = re.findall(r"http://[\w.-]+:7007(/api[^\s']*)", PAGE)


@pytest.mark.parametrize("path", REQUESTED)
def test_what_the_page_asks_for_is_answered(path: str, tmp_path: Path) -> None:
    record_tensors(tmp_path / "train-1")
    with serving(tmp_path) as server:
        assert server.ask(path).status == 200


def test_the_page_has_all_addresses_and_all_states(tmp_path: Path) -> None:
    folder = RunsFolder(tmp_path)
    routes = {route.path.replace("{name}", "NAME") for route in Api(folder=folder, rows=RunRows(folder)).routes()}
    assert routes == set(re.findall(r"^\| `(/api[^`]*)` \|", PAGE, re.M))
    assert all(re.search(rf"^\| [^|]*\b{state}\b[^|]* \|", PAGE, re.M) for state in (*STATES, "damaged"))
    assert len(REQUESTED) >= 5

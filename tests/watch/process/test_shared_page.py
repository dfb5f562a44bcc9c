import os
from pathlib import Path

import pytest

from roundoff.watch.process.ipc import RunLocation, SharedPage


def test_what_a_child_tells_reaches_its_parent():
    page = SharedPage()
    assert page.location() is None
    child = os.fork()
    if child == 0:
        try:
            page.announce(RunLocation(folder="/runs/ä b", rank=3, has_ops=True))
            page.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    location = page.location()
    assert location is not None
    assert (location.path, location.rank, location.has_ops, location.is_sync) == (Path("/runs/ä b"), 3, True, False)
    assert page.is_closed


def test_a_path_too_long_for_the_page_is_not_announced():
    page = SharedPage()
    page.announce(RunLocation(folder="x" * 20_000, rank=0))
    assert page.location() is None


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_crash_is_there_until_it_is_answered(is_answered: bool):
    page = SharedPage()
    assert page.crash() is None
    page.memory[0:8] = (11).to_bytes(4, "little") + (4242).to_bytes(4, "little")  # as the crashing process does
    if is_answered:
        page.answer()
    assert page.crash() == (None if is_answered else (11, 4242))

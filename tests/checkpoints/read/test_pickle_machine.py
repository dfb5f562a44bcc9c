"""Pickles are read as Python reads them, as far as they hold plain data, and nothing they name is ever called."""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.read import pickle_machine
from roundoff.checkpoints.read.pickle_machine import unpickle
from roundoff.checkpoints.read.pickled_objects import Global, PickledObject
from roundoff.checkpoints.read.torch_files import find_torch_global
from roundoff.errors import CheckpointError


def read(data: bytes) -> Any:
    value, end = unpickle(FileBytes(Path("a.pkl"), memoryview(data)), globals=find_torch_global)
    assert end == len(data)
    return value


def read_or_refuse(data: bytes) -> None:
    with contextlib.suppress(CheckpointError):
        unpickle(FileBytes(Path("a.pkl"), memoryview(data)), globals=find_torch_global)


def plain(value: Any) -> Any:
    """Undo what the machine does differently: bytes are parts of the file, sets are lists."""
    if isinstance(value, FileBytes):
        return bytes(value)
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


KEYS = st.one_of(st.text(), st.integers(-(2**62), 2**62), st.none(), st.booleans())
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()),
    lambda inner: st.one_of(st.lists(inner), st.tuples(inner, inner), st.dictionaries(KEYS, inner)),
    max_leaves=20,
)


@given(VALUES, st.sampled_from([3, 4, 5]))
@settings(max_examples=100, deadline=None)
def test_plain_data_comes_out_as_it_went_in(value: Any, protocol: int):
    assert plain(read(pickle.dumps(value, protocol=protocol))) == value


@given(st.recursive(st.one_of(st.none(), st.integers(), st.text("abc")), lambda inner: st.lists(inner)))
@settings(max_examples=30, deadline=None)
def test_the_old_protocols_are_read_too(value: Any):
    for protocol in (0, 1, 2):
        assert read(pickle.dumps(value, protocol=protocol)) == value


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_pickle_or_a_checkpoint_error(data: bytes):
    read_or_refuse(data)


@given(st.lists(st.sampled_from(sorted(pickle_machine.INSTRUCTIONS)), max_size=60), st.binary(max_size=30))
@settings(max_examples=500, deadline=None)
def test_any_instructions_are_a_pickle_or_a_checkpoint_error(codes: list[int], data: bytes):
    read_or_refuse(bytes(codes) + data)


class Hostile:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("function", [os.system, eval, exec, getattr, __import__, os.popen])
def test_a_hostile_pickle_is_refused_with_the_name_of_what_it_asks_for(
    function: Callable[..., Any], protocol: int, tmp_path: Path
):
    mark = tmp_path / "executed"
    data = pickle.dumps({"weight": Hostile(function, f"touch {mark}")}, protocol=protocol)
    with pytest.raises(CheckpointError, match=rf"{function.__name__}, which can execute code .* at byte \d+"):
        read(data)
    assert not mark.exists()


def harmless(path: str) -> None:
    Path(path).touch()


def test_an_unknown_function_is_not_called_either(tmp_path: Path):
    mark = tmp_path / "executed"
    found = read(pickle.dumps(Hostile(harmless, str(mark))))
    assert isinstance(found, PickledObject)
    assert found.made_by == Global(harmless.__module__, "harmless")
    assert not mark.exists()


def test_objects_of_other_classes_keep_their_attributes():
    found = read(pickle.dumps(collections.UserDict(lr=0.1)))
    assert found.attribute("data") == {"lr": 0.1}


def test_counts_places_from_the_start_of_the_file():
    file = FileBytes(Path("a.pkl"), memoryview(b"....." + pickle.dumps([1, 2])[:-1]))
    with pytest.raises(CheckpointError, match=f"the pickle claims 1 bytes, but only 0 are left at byte {len(file)}"):
        unpickle(file, start=5, globals=find_torch_global)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x8e" + (2**60).to_bytes(8, "little") + b"abc", "claims 1152921504606846976 bytes, but only 3 are left"),
        (b"Nr\xff\xff\xff\x7fj\xff\xff\xff\x7e.", "refers to 2130706431"),
        (b"(((((((" + b"0" * 7 + b".", "empty stack"),
        (b"}" + b"))" + b"\x86" * 1 + b"\x85" * 60 + b"Ns.", "key of type tuple"),
        (b"c" + b"a" * 3000, "line of more than 2000 bytes"),
        (b"\x82\x01.", "unknown instruction 0x82"),
        (b"\x8b\xff\xff\xff\xff", "claims 4294967295 bytes"),
    ],
)
def test_what_cannot_be_or_would_take_memory_is_refused(data: bytes, why: str):
    with pytest.raises(CheckpointError, match=why):
        read(data)


def test_a_pickle_that_never_comes_to_the_point_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pickle_machine, "MAX_INSTRUCTIONS", 1000)
    with pytest.raises(CheckpointError, match="more than 1000 instructions at byte 1000"):
        read(b"}" * 1001 + b".")


def test_copies_that_cost_no_instructions_count_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pickle_machine, "MAX_INSTRUCTIONS", 1000)
    pairs = b"(" + b"(X\x01\x00\x00\x00aNt" * 100 + b"l\x940"
    copies = b"ccollections\nOrderedDict\nh\x00\x85R" * 20
    with pytest.raises(CheckpointError, match="more than 1000 instructions"):
        read(pairs + copies + b".")

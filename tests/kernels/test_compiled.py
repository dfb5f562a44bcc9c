"""Which kernels serve, and what is said about it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from roundoff.kernels import compiled as loading


@pytest.fixture(autouse=True)
def _nothing_loaded_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each test look for the kernels anew, and the ones after it, too."""
    monkeypatch.delenv("ROUNDOFF_KERNELS", raising=False)
    loading.compiled_kernels.cache_clear()
    yield
    loading.compiled_kernels.cache_clear()


def hide_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str, *args: Any) -> ModuleType:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(importlib, "import_module", import_module)


def test_the_compiled_kernels_serve_where_they_were_built():
    module = loading.compiled_kernels()
    if module is None:
        pytest.skip("the compiled kernels are not built")
    assert module.__name__ == "roundoff.kernels._compiled"
    assert loading.kernels_in_use() == f"compiled ({module.level()})"
    assert module.level() in ("plain", "x86-64-v3", "x86-64-v4")


def test_they_are_looked_for_once(monkeypatch: pytest.MonkeyPatch):
    found = loading.compiled_kernels()
    hide_the_kernels(monkeypatch)
    assert loading.compiled_kernels() is found


def test_an_environment_variable_turns_them_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ROUNDOFF_KERNELS", "torch")
    assert loading.compiled_kernels() is None
    assert loading.kernels_in_use() == "torch (ROUNDOFF_KERNELS=torch is set)"


@pytest.mark.parametrize("value", ["", "compiled"])
def test_other_values_of_the_variable_change_nothing(monkeypatch: pytest.MonkeyPatch, value: str):
    usual = loading.kernels_in_use()
    loading.compiled_kernels.cache_clear()
    monkeypatch.setenv("ROUNDOFF_KERNELS", value)
    assert loading.kernels_in_use() == usual


def test_the_torch_versions_serve_where_nothing_was_built(monkeypatch: pytest.MonkeyPatch):
    hide_the_kernels(monkeypatch)
    assert loading.compiled_kernels() is None
    assert loading.kernels_in_use() == "torch (the compiled kernels were not built)"

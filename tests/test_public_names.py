"""The public API is what docs/api.md lists, and pages and examples need nothing else."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import roundoff
from docs.api_pages import public_modules, public_names
from tests.pages import ROOT, blocks_of

PUBLIC_NAMES = [
    "Recipe",
    "RoundoffError",
    "Run",
    "__version__",
    "apply_recipe",
    "compare_models",
    "format_named",
    "measuring_sensitivity",
    "recording",
    "round_to",
    "save_logprobs",
    "save_tensor",
    "smallest_bad",
    "smallest_wide",
    "switching",
    "watching",
]


def test_the_public_names_are_these():
    assert sorted(roundoff.__all__) == PUBLIC_NAMES
    assert dir(roundoff) == PUBLIC_NAMES


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_every_public_name_can_be_imported(name: str):
    assert getattr(roundoff, name) is not None


def test_a_public_name_is_the_same_object_as_in_its_room():
    from roundoff.runs import Run

    assert roundoff.Run is Run


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'recordings'"):
        _ = roundoff.recordings


def test_importing_roundoff_imports_no_room():
    code = "import sys, roundoff; print([m for m in sys.modules if m.startswith(('roundoff.', 'torch', 'numpy'))])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize("name", public_modules())
def test_every_public_module_has_names_that_say_what_they_are(name: str):
    module = importlib.import_module(name)
    names = public_names(module)
    assert names
    assert inspect.getdoc(module)
    values = {each: getattr(module, each) for each in names if each != "__version__"}
    documented = {each: value for each, value in values.items() if inspect.isclass(value) or inspect.isfunction(value)}
    assert [each for each, value in documented.items() if not inspect.getdoc(value)] == []


def imported_names(source: str) -> Iterator[tuple[str, str]]:
    """Yield the module and name of everything that a program imports from roundoff."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "roundoff":
            yield from ((str(node.module), alias.name) for alias in node.names)


def shown_programs() -> Iterator[tuple[str, str]]:
    """Yield the name and text of every piece of Python that a reader is shown."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]:
        for block in blocks_of(page.read_text()):
            if block.language == "python":
                yield f"{page.relative_to(ROOT)}:{block.line}", block.text
    for path in sorted((ROOT / "examples").rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text()


def test_pages_and_examples_import_public_names_only():
    public = {name: public_names(importlib.import_module(name)) for name in public_modules()}
    found = [(place, *each) for place, text in shown_programs() for each in imported_names(text)]
    assert [each for each in found if each[2] not in public.get(each[1], [])] == []
    assert len(found) > 20


def test_the_page_of_the_api_names_each_module_once():
    names = public_modules()
    assert names[0] == "roundoff"
    assert len(set(names)) == len(names)
    assert set(re.findall(r"`(roundoff\.[a-z_.]+)`", (ROOT / "docs" / "api.md").read_text())) == set(names[1:])

import subprocess
import sys

import pytest

import roundoff

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
    "save_tensor",
    "smallest_bad",
    "smallest_wide",
    "switched",
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

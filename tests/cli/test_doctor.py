import importlib.metadata
import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from roundoff.cli import doctor as health_module
from roundoff.cli.doctor import (
    FEATURES,
    TORCH_SERIES,
    Feature,
    FeatureState,
    Health,
    Problem,
    doctor_command,
    examine,
    how_to_get_kernels,
    to_text,
)
from roundoff.kernels import kernels_in_use
from roundoff.record.torch_private import PrivateCall

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
VERSIONS: dict[str, str | None] = {"roundoff": "0.1.0", "python": "3.11.7", "torch": "2.13.0"}
PRESENT = PrivateCall(name="torch._C.there", present=True, used_for="seeing")
ABSENT = PrivateCall(name="torch._C.gone", present=False, used_for="seeing every op")


def test_this_installation_works():
    answer = CliRunner().invoke(doctor_command)
    assert answer.exit_code == 0
    assert answer.output.startswith("roundoff works here.\n")
    assert f"torch {torch.__version__}" in answer.output
    assert kernels_in_use() in answer.output


def test_json_holds_what_the_text_tells():
    answer = CliRunner().invoke(doctor_command, ["--json"])
    found = json.loads(answer.output)
    assert (found["ok"], found["problems"]) == (True, [])
    assert found["versions"]["roundoff"] == importlib.metadata.version("roundoff")
    assert found["devices"][0] == "cpu"
    assert found["num_threads"] == torch.get_num_threads()
    assert {feature["name"] for feature in found["features"]} == {feature.name for feature in FEATURES}


def test_a_healthy_installation_reads_like_this():
    health = Health(
        problems=(),
        versions=VERSIONS,
        devices=("cpu", "cuda:0"),
        num_threads=1,
        kernels="compiled (x86-64-v4)",
        private_calls=(PRESENT, PRESENT),
        features=(
            FeatureState(name="native stacks", missing=("gdb",), fix="apt install gdb"),
            FeatureState(name="Hugging Face models", missing=(), fix=None),
        ),
    )
    assert to_text(health) == (
        "roundoff works here.\n"
        "\n"
        "versions   roundoff 0.1.0, python 3.11.7, torch 2.13.0\n"
        "devices    cpu, cuda:0 (1 CPU thread)\n"
        "kernels    compiled (x86-64-v4)\n"
        "torch      2 of 2 private calls are there\n"
        "optional   Hugging Face models: ready\n"
        "optional   native stacks: gdb missing\n"
        "           fix: apt install gdb"
    )


def test_a_broken_installation_says_what_is_broken_first():
    problem = Problem(what="torch cannot be imported: No module named 'torch'", fix="pip install 'torch>=2.13,<2.14'")
    health = Health(problems=(problem,), versions={**VERSIONS, "torch": None})
    assert to_text(health) == (
        "roundoff does not work here: 1 problem.\n"
        "  torch cannot be imported: No module named 'torch'\n"
        "    fix: pip install 'torch>=2.13,<2.14'\n"
        "\n"
        "versions   roundoff 0.1.0, python 3.11.7, torch missing"
    )


def test_a_core_package_that_cannot_be_imported_is_a_problem_and_ends_with_1(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(health_module, "CORE_PACKAGES", ("torch", "no_such_package"))
    answer = CliRunner().invoke(doctor_command)
    assert answer.exit_code == 1
    assert "no_such_package cannot be imported: No module named 'no_such_package'" in answer.output
    assert "fix: pip install no_such_package" in answer.output


def test_a_torch_that_cannot_be_imported_is_reported_and_nothing_else_is_tried(monkeypatch: pytest.MonkeyPatch):
    def fail(package: str) -> str | None:
        return "libtorch.so: cannot open shared object file" if package == "torch" else None

    monkeypatch.setattr(health_module, "_import_error", fail)
    found = examine()
    assert [problem.what for problem in found.problems] == [
        "torch cannot be imported: libtorch.so: cannot open shared object file"
    ]
    assert re.fullmatch(r"pip install 'torch.*2\.13.*'", found.problems[0].fix)
    assert found.kernels is None


def test_another_torch_than_the_supported_one_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    installed = health_module.version_of
    monkeypatch.setattr(health_module, "version_of", lambda name: "2.12.1" if name == "torch" else installed(name))
    assert [problem.what for problem in examine().problems] == [
        "torch 2.12.1 is installed, but roundoff is made for torch 2.13."
    ]


def test_the_supported_torch_is_the_one_that_pyproject_asks_for():
    (requirement,) = (line for line in PYPROJECT["project"]["dependencies"] if line.startswith("torch"))
    assert requirement.startswith(f"torch>={TORCH_SERIES},")


def test_every_dependency_of_the_core_is_tried():
    required = {re.split(r"[<>=]", line)[0] for line in PYPROJECT["project"]["dependencies"]}
    assert set(health_module.CORE_PACKAGES) == required


def test_a_private_call_that_is_gone_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(health_module, "_private_calls", lambda: (PRESENT, ABSENT))
    found = examine()
    assert [problem.what for problem in found.problems] == [
        "this torch has no torch._C.gone, which is used for seeing every op."
    ]
    assert "torch      1 of 2 private calls are there" in to_text(found)


def test_a_recorder_that_cannot_be_loaded_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    def fail() -> tuple[PrivateCall, ...]:
        raise ImportError("cannot import name 'TorchDispatchMode'")

    monkeypatch.setattr(health_module, "_private_calls", fail)
    assert [problem.what for problem in examine().problems] == [
        "nothing can be recorded: cannot import name 'TorchDispatchMode'"
    ]


def test_a_device_that_does_not_answer_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(health_module, "_devices", lambda: ("cpu", "cuda:7"))
    (problem,) = examine().problems
    assert problem.what.startswith("cuda:7 cannot add 1 and 1: ")


def test_kernels_that_were_turned_off_are_turned_on_again_by_the_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ROUNDOFF_KERNELS", "torch")
    assert how_to_get_kernels() == "unset ROUNDOFF_KERNELS"


@pytest.mark.parametrize(
    ("compiler", "origin", "fix"),
    [
        (
            None,
            '{"url": "file:///home/me/roundoff", "dir_info": {"editable": true}}',
            "install g++ and run pip install --force-reinstall --no-deps -e /home/me/roundoff",
        ),
        (
            None,
            '{"url": "file:///home/me/roundoff", "dir_info": {}}',
            "install g++ and run pip install --force-reinstall --no-deps /home/me/roundoff",
        ),
        (
            None,
            '{"url": "https://example.org/roundoff", "vcs_info": {"vcs": "git", "commit_id": "abc"}}',
            "install g++ and run pip install --force-reinstall --no-deps git+https://example.org/roundoff",
        ),
        (
            "/usr/bin/g++",
            None,
            "run pip install --force-reinstall --no-deps --no-cache-dir --no-binary roundoff roundoff",
        ),
    ],
)
def test_kernels_that_were_not_built_come_with_a_compiler_and_the_same_roundoff_again(
    monkeypatch: pytest.MonkeyPatch, compiler: str | None, origin: str | None, fix: str
):
    monkeypatch.delenv("ROUNDOFF_KERNELS", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: compiler)
    monkeypatch.setattr(importlib.metadata.PathDistribution, "read_text", lambda self, name: origin)
    assert how_to_get_kernels() == fix


def test_missing_kernels_are_no_problem_but_come_with_their_fix():
    health = Health(
        problems=(),
        versions=VERSIONS,
        kernels="torch (the compiled kernels were not built)",
        kernels_fix="install g++ and run pip install x",
    )
    assert to_text(health).splitlines()[-3:] == [
        "kernels    torch (the compiled kernels were not built)",
        "           slower, but everything works",
        "           fix: install g++ and run pip install x",
    ]


def test_a_feature_lacks_what_is_not_installed():
    feature = Feature(name="x", packages=("torch", "no_such_package"), programs=("no-such-program",), fix="…")
    assert feature.missing() == ("no_such_package", "no-such-program")
    assert Feature(name="x", packages=("torch",), fix="…").missing() == ()


def test_every_extra_that_users_can_install_is_a_feature():
    named = {extra for feature in FEATURES for extra in re.findall(r"roundoff\[(\w+)\]", feature.fix)}
    assert named == set(PYPROJECT["project"]["optional-dependencies"]) - {"dev"}

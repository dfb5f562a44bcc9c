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
from roundoff.cli import self_test
from roundoff.cli.doctor import (
    FEATURES,
    Feature,
    FeatureState,
    Health,
    Problem,
    doctor_command,
    examine,
    how_to_get_kernels,
    to_text,
)
from roundoff.cli.self_test import Check, run_self_test
from roundoff.cli.torch_probes import PrivateCall
from roundoff.kernels import kernels_in_use
from roundoff.torch_private import NEWEST_TESTED, OLDEST_TESTED, look_up

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSIONS: dict[str, str | None] = {"roundoff": "0.1.0", "python": "3.11.7", "torch": "2.13.0"}
PRESENT = PrivateCall(name="torch._C.there", present=True, used_for="seeing")
ABSENT = PrivateCall(name="torch._C.gone", present=False, used_for="seeing every op", is_essential=True)


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
    problem = Problem(what="torch cannot be imported: No module named 'torch'", fix="pip install 'torch>=2.10'")
    health = Health(problems=(problem,), versions={**VERSIONS, "torch": None})
    assert to_text(health) == (
        "roundoff does not work here: 1 problem.\n"
        "  torch cannot be imported: No module named 'torch'\n"
        "    fix: pip install 'torch>=2.10'\n"
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
    assert re.fullmatch(r"pip install 'torch.*2\.1.*'", found.problems[0].fix)
    assert found.kernels is None


def test_a_torch_that_is_too_old_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "__version__", "2.7.1")
    assert [problem.what for problem in examine().problems] == [
        "torch 2.7.1 is installed, but roundoff needs 2.10 or newer."
    ]


def test_a_torch_that_is_newer_than_those_tested_is_none_but_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "__version__", "3.0.0a0+git")
    found = examine()
    assert found.problems == ()
    assert found.torch_note == (
        "3.0.0a0+git is untested: roundoff is tested with 2.10 to 2.15; `roundoff doctor --self-test` tries it"
    )
    assert "           3.0.0a0+git is untested:" in to_text(found)


def test_a_torch_that_roundoff_cannot_load_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    def fail() -> tuple[PrivateCall, ...]:
        raise AttributeError("module 'torch' has no attribute 'float8_e8m0fnu'")

    monkeypatch.setattr(health_module, "_private_calls", fail)
    (problem,) = examine().problems
    assert problem.what.endswith(": module 'torch' has no attribute 'float8_e8m0fnu'")
    assert problem.what.startswith("roundoff cannot use torch 2.")


def test_the_oldest_torch_is_the_one_that_pyproject_asks_for_and_there_is_no_newest():
    oldest = ".".join(map(str, OLDEST_TESTED))
    assert PYPROJECT["project"]["optional-dependencies"]["torch"] == [f"torch>={oldest}"]


def test_a_fresh_clone_gets_the_torch_that_everything_is_tested_with():
    (line,) = (line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    major, minor, _ = line.removeprefix("torch==").split(".")
    assert OLDEST_TESTED <= (int(major), int(minor)) <= NEWEST_TESTED


def test_the_self_test_proves_what_roundoff_promises():
    answer = CliRunner().invoke(doctor_command, ["--self-test", "--json"])
    found = json.loads(answer.output)
    assert [check["failure"] for check in found["self_test"]] == [None] * 4
    assert (answer.exit_code, found["ok"]) == (0, True)


@pytest.mark.parametrize("broken", ["torch._C._current_autograd_node", "torch._C._autograd._get_sequence_nr"])
def test_the_self_test_finds_that_backward_is_not_attributed(monkeypatch: pytest.MonkeyPatch, broken: str):
    owner, _, name = broken.rpartition(".")
    monkeypatch.delattr(look_up(owner), name)
    failed = [check for check in run_self_test() if not check.passed]
    assert [check.name for check in failed] == ["ops of backward are attributed to their layers"]


def test_a_failed_self_test_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    check = Check(name="a replayed step is bit-identical", failure="aten.mm of 0 in backward differs")
    monkeypatch.setattr(self_test, "run_self_test", lambda: (check,))
    found = examine(self_test=True)
    assert [problem.what for problem in found.problems] == [
        "self-test failed: 'a replayed step is bit-identical': aten.mm of 0 in backward differs"
    ]
    assert "self-test  FAILED: a replayed step is bit-identical" in to_text(found)


def test_pip_may_not_exchange_the_torch_that_is_there():
    assert not any(line.startswith("torch") for line in PYPROJECT["project"]["dependencies"])


def test_without_torch_it_works_for_reading_runs(monkeypatch: pytest.MonkeyPatch):
    installed = health_module.version_of
    monkeypatch.setattr(health_module, "version_of", lambda name: None if name == "torch" else installed(name))
    found = examine()
    assert (found.problems, found.devices, found.kernels) == ((), (), None)
    assert to_text(found).splitlines()[0] == (
        "roundoff works here, without torch: it can show, diagnose and compare runs, not make them."
    )


def test_every_dependency_of_the_core_is_tried():
    required = {re.split(r"[<>=]", line)[0] for line in PYPROJECT["project"]["dependencies"]}
    assert set(health_module.CORE_PACKAGES) - {health_module.ZSTD} == required - {"backports.zstd"}
    assert health_module.ZSTD in ("backports.zstd", "compression.zstd")


def test_a_private_call_that_is_gone_is_a_problem_only_if_nothing_works_without_it(monkeypatch: pytest.MonkeyPatch):
    off = PrivateCall(name="torch._C.other", present=False, used_for="seeing clipping")
    monkeypatch.setattr(health_module, "_private_calls", lambda: (PRESENT, ABSENT, off))
    found = examine()
    assert [problem.what for problem in found.problems] == [
        "this torch has no torch._C.gone, which is used for seeing every op."
    ]
    text = to_text(found)
    assert "torch      1 of 3 private calls are there" in text
    assert "off        seeing clipping (no torch._C.other)" in text


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

"""Differences between two run.json, and which of them are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roundoff.compare.settings.setting_comparison import differing_settings, run_differences
from roundoff.compare.settings.setting_difference import SettingKind
from roundoff.runs import OptimizerFacts, Structure
from tests.run_folders import write_run

ENVIRONMENT = {"torch.seed": 0, "torch.num_threads": 1, "torch.cudnn.allow_tf32": True}


def differences(tmp_path: Path, reference: dict[str, Any], candidate: dict[str, Any]) -> list[tuple[str, SettingKind]]:
    runs = []
    for name, facts in (("a", reference), ("b", candidate)):
        runs.append(write_run(tmp_path / name, **facts))
    return [(each.text, each.kind) for each in run_differences(*runs)]


def test_recipe_ranks_and_commit_are_reported(tmp_path: Path) -> None:
    reference = {"recipe": "fp32", "ranks": 1, "git_commit": "a" * 40}
    candidate = {"recipe": "bf16", "ranks": 2, "git_commit": "b" * 40}
    assert differences(tmp_path, reference, candidate) == [
        ("recipe: fp32 against bf16", SettingKind.RECIPE),
        ("ranks: 1 against 2", SettingKind.RANKS),
        (f"commit: {'a' * 40} against {'b' * 40}", SettingKind.COMMAND),
    ]


def test_the_seed_counts_as_it_was_when_training_began(tmp_path: Path) -> None:
    reference, candidate = {"seed": 1, "environment": ENVIRONMENT}, {"seed": 2, "environment": ENVIRONMENT}
    assert differences(tmp_path, reference, candidate) == []


def test_switches_and_variables_are_reported(tmp_path: Path) -> None:
    candidate = {**ENVIRONMENT, "torch.cudnn.allow_tf32": False, "NCCL_ALGO": "Ring"}
    assert differences(tmp_path, {"environment": ENVIRONMENT}, {"environment": candidate}) == [
        ("torch.cudnn.allow_tf32: True against False", SettingKind.ENVIRONMENT),
        ("NCCL_ALGO: not set against Ring", SettingKind.ENVIRONMENT),
    ]


def test_an_older_run_without_its_environment_is_not_blamed(tmp_path: Path) -> None:
    assert differences(tmp_path, {"seed": 0}, {"environment": ENVIRONMENT}) == []


def test_packages_and_hardware_that_can_change_a_number_are_reported(tmp_path: Path) -> None:
    reference = {"packages": {"torch": "2.13.0"}, "hardware": {"cpu_capability": "AVX2", "cpu_count": 2}}
    candidate = {"packages": {"torch": "2.14.0"}, "hardware": {"cpu_capability": "AVX512", "cpu_count": 64}}
    assert differences(tmp_path, reference, candidate) == [
        ("version of torch: 2.13.0 against 2.14.0", SettingKind.PACKAGE),
        ("cpu_capability: AVX2 against AVX512", SettingKind.HARDWARE),
    ]


def test_arguments_are_reported_but_not_paths_and_names(tmp_path: Path) -> None:
    reference = ("python", "/home/a/train.py", "--lr", "0.1", "--name=first", "--data", "/data/one", "small")
    candidate = ("python", "/home/b/train.py", "--lr=0.2", "--name=second", "--data", "/data/two", "--fast", "large")
    assert differences(tmp_path, {"command": reference}, {"command": candidate}) == [
        ("argument --lr: 0.1 against 0.2", SettingKind.COMMAND),
        ("argument #1: small against not given", SettingKind.COMMAND),
        ("argument --fast: not given against large", SettingKind.COMMAND),
    ]


def test_a_recipe_that_only_one_run_has_is_reported_by_its_name(tmp_path: Path) -> None:
    runs = []
    for name, recipe in (("plain", None), ("narrow", 'name = "O2"\nweights = "fp16"\n')):
        optimizer = OptimizerFacts(name="SGD", groups=({"lr": 0.1},), recipe=recipe)
        runs.append(write_run(tmp_path / name, Structure(step=0, optimizers=(optimizer,))))
    (found,) = (each for each in differing_settings(*runs) if each.kind is SettingKind.RECIPE)
    assert (found.what, found.reference, found.candidate) == ("recipe", "none", "O2")

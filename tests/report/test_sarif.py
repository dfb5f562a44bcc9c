"""Findings as SARIF, held to what the standard (OASIS SARIF 2.1.0) and code hosts ask for."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roundoff.diagnose import Diagnosis, diagnose_run
from roundoff.report.sarif import FINGERPRINT, fingerprints, to_sarif
from roundoff.runs import Finding, Run, Severity, to_json
from tests.run_folders import losses, write_run

OVERFLOW = Finding(
    rule="overflow",
    severity=Severity.ERROR,
    confidence=0.9,
    title="fp16 bmm overflowed",
    why="the product exceeds 65504",
    fix="keep attn in fp32",
    step=12,
    phase="forward",
    site="attn",
    op="aten.bmm#0",
    source="my model/net.py:41",
)
LEVELS = {"none", "note", "warning", "error"}
URI_REFERENCE = re.compile(r"[\w.~!$&'()*+,;=@/%-]+")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    command = ("python", str(tmp_path / "scripts/train.py"), "--lr", "1")
    return write_run(tmp_path / "run", losses(2.0, 1.5, float("nan")), command=command)


def check_log(log: Any) -> None:
    """Check the parts of the standard that a consumer depends on."""
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    for run in log["runs"]:
        driver = run["tool"]["driver"]
        assert driver["name"]
        ids = [rule["id"] for rule in driver["rules"]]
        assert len(set(ids)) == len(ids)
        for rule in driver["rules"]:
            assert all(rule[part]["text"].strip() for part in ("shortDescription", "fullDescription", "help"))
            assert rule["help"]["markdown"].strip()
        assert all(isinstance(each["executionSuccessful"], bool) for each in run["invocations"])
        said = [each for invocation in run["invocations"] for each in invocation["toolExecutionNotifications"]]
        assert all(each["level"] in LEVELS and each["message"]["text"] for each in said)
        for result in run["results"]:
            assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
            assert result["level"] in LEVELS
            assert result["message"]["text"].strip()
            assert all(isinstance(value, str) for value in result["partialFingerprints"].values())
            for location in [*result["locations"], *result.get("relatedLocations", ())]:
                check_location(location)


def check_location(location: Any) -> None:
    assert location.keys() <= {"physicalLocation", "logicalLocations", "message"}
    if "physicalLocation" in location:
        physical = location["physicalLocation"]
        assert URI_REFERENCE.fullmatch(physical["artifactLocation"]["uri"])
        assert not physical["artifactLocation"]["uri"].startswith("/")
        assert physical["region"]["startLine"] >= 1
    assert all(each["fullyQualifiedName"] for each in location.get("logicalLocations", ()))


def log_of(run: Run, diagnosis: Diagnosis, root: Path) -> Any:
    log = json.loads(to_json(to_sarif(run, diagnosis, root=root)))
    check_log(log)
    return log["runs"][0]


def with_findings(run: Run, *findings: Finding) -> Diagnosis:
    return replace(diagnose_run(run), findings=findings)


def physical(location: Any) -> tuple[str, int]:
    return location["physicalLocation"]["artifactLocation"]["uri"], location["physicalLocation"]["region"]["startLine"]


def test_a_finding_has_its_rule_level_message_and_line(run: Run, tmp_path: Path) -> None:
    log = log_of(run, with_findings(run, OVERFLOW), tmp_path)
    (result,) = log["results"]
    assert (result["ruleId"], result["level"]) == ("overflow", "error")
    assert physical(result["locations"][0]) == ("my%20model/net.py", 41)
    assert result["locations"][0]["logicalLocations"] == [{"fullyQualifiedName": "attn", "kind": "member"}]
    assert result["message"]["text"] == (
        "fp16 bmm overflowed: the product exceeds 65504. Place: attn / aten.bmm#0, step 12, forward. "
        "Fix: keep attn in fp32."
    )
    assert result["properties"] == {"confidence": 0.9, "fix": "keep attn in fp32", "step": 12, "phase": "forward"}


def test_every_rule_that_was_applied_is_listed_with_its_help(run: Run, tmp_path: Path) -> None:
    diagnosis = diagnose_run(run)
    rules = log_of(run, diagnosis, tmp_path)["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [code for answer in diagnosis.answers for code in answer.codes]


def test_a_path_is_relative_to_the_working_directory(run: Run, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/net.py").touch()
    finding = replace(OVERFLOW, source="net.py:7")  # the training ran in scripts/, the diagnosis one above
    log = log_of(run, with_findings(run, finding), tmp_path)
    assert physical(log["results"][0]["locations"][0]) == ("scripts/net.py", 7)


def test_a_finding_without_a_line_is_at_the_top_of_the_script(run: Run, tmp_path: Path) -> None:
    diagnosis = with_findings(run, replace(OVERFLOW, source=None))
    log = log_of(run, diagnosis, tmp_path)
    assert physical(log["results"][0]["locations"][0]) == ("scripts/train.py", 1)
    elsewhere = log_of(run, diagnosis, tmp_path / "elsewhere")
    assert "physicalLocation" not in elsewhere["results"][0]["locations"][0]  # the script is not among those files


def test_a_finding_of_a_notebook_has_its_site_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", losses(2.0, 1.5))
    finding = replace(OVERFLOW, source="<ipython-input-3>:2")
    (location,) = log_of(run, with_findings(run, finding), tmp_path)["results"][0]["locations"]
    assert location == {"logicalLocations": [{"fullyQualifiedName": "attn", "kind": "member"}]}


def test_consequences_are_related_locations(run: Run, tmp_path: Path) -> None:
    effect = replace(OVERFLOW, rule="loss-nonfinite", title="the loss is not finite", source="train.py:9")
    finding = replace(OVERFLOW, related=(effect, replace(effect, source=None)))
    (result,) = log_of(run, with_findings(run, finding), tmp_path)["results"]
    (related,) = result["relatedLocations"]
    assert physical(related) == ("train.py", 9)
    assert related["message"]["text"].startswith("The loss is not finite: ")


def test_a_fingerprint_survives_other_steps_lines_and_numbers(run: Run, tmp_path: Path) -> None:
    later = replace(OVERFLOW, step=900, source="my model/net.py:55", op="aten.bmm#3", why="it reaches 7e4")
    elsewhere = replace(OVERFLOW, site="mlp")
    prints = [
        log_of(run, with_findings(run, finding), tmp_path)["results"][0]["partialFingerprints"][FINGERPRINT]
        for finding in (OVERFLOW, later, elsewhere)
    ]
    assert prints[0] == prints[1] != prints[2]
    assert len(set(fingerprints([OVERFLOW, later, elsewhere]))) == 3  # in one run they are told apart


def test_what_could_not_be_checked_is_a_notification(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", losses(2.0, 1.5))
    path = run.path / "metrics-rank0.jsonl"
    path.write_text("broken\n" + path.read_text())
    log = log_of(run, diagnose_run(Run.open(run.path)), tmp_path)
    (invocation,) = log["invocations"]
    assert (log["results"], invocation["executionSuccessful"]) == ([], False)
    assert "cannot be read" in invocation["toolExecutionNotifications"][0]["message"]["text"]

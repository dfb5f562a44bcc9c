"""The versions that everything is tested with, and the hashes of their files."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PIN = re.compile(r"^([\w.-]+)==(\S+)", re.M)


def pins(name: str) -> dict[str, str]:
    found = PIN.findall((ROOT / name).read_text())
    return {package.lower().replace("_", "-"): version for package, version in found}


def test_hashes_are_noted_for_the_same_versions_and_all_but_torch():
    wanted = pins("constraints.txt")
    del wanted["torch"]
    assert pins("constraints-hashed.txt") == wanted, "run make hashes"


def test_every_version_has_a_hash():
    text = (ROOT / "constraints-hashed.txt").read_text()
    places = [match.start() for match in PIN.finditer(text)]
    for start, end in zip(places, [*places[1:], len(text)], strict=True):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", text[start:end]), text[start:end]


def test_workflows_that_test_install_by_hash():
    for name in ("check", "tests", "nightly"):
        assert "HASHES: 1\n" in (ROOT / f".github/workflows/{name}.yml").read_text(), name

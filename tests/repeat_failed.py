"""Runs the tests that failed in the last run once more, one after the other: `make test` calls it after a failure.

Some tests stop, kill and time real processes, and a busy machine can make one of fourteen thousand fail. What passes
now is listed as unstable: there is a fault all the same, in the test or in the code. More than a few failures are not
repeated.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

MAX_REPEATED = 3
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    """Return 0 if a few tests had failed, and all of them pass now."""
    failed = sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []
    if not 0 < len(failed) <= MAX_REPEATED:
        return 1
    print(f"\nRepeating {len(failed)} failed, alone:", *failed, sep="\n  ", flush=True)
    code = int(pytest.main([*failed]))  # a copy: pytest changes it
    if code == 0:
        print("UNSTABLE, passed only when repeated alone:", *failed, sep="\n  ", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())

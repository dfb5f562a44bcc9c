"""How long `roundoff demo` takes, command by command.

python benchmarks/demo.py [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

MUST_SECONDS = 120.0


def played() -> dict[str, Any]:
    """Run the demo in a folder that is thrown away, and return what it says of itself."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "roundoff", "demo", "--json", "--out", "demo"],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            timeout=600,
            check=True,
        )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def main() -> int:
    """Print the figures, and return 1 if the whole takes too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    answer = played()
    if as_json:
        print(json.dumps({"seconds": answer["seconds"], "commands": answer["commands"]}))
    else:
        for each in answer["commands"]:
            print(f"{each['seconds']:6.1f} s  {each['command']}")
        print(f"{answer['seconds']:6.1f} s  all of it; must be {MUST_SECONDS:.0f} s or less")
    return 1 if answer["seconds"] > MUST_SECONDS else 0


if __name__ == "__main__":
    sys.exit(main())

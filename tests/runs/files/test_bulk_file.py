"""Large files written past the page cache hold exactly what was given, wherever they lie."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from roundoff.runs.files.tensor_file import BulkFile

SIZES = [0, 1, 4095, 4096, 4097, 2**20 - 8, 2**20, 2**20 + 1, 3 * 2**20 + 12345]


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder on the disk, and one on a file system that knows no direct writing."""
    in_memory = Path("/dev/shm") if request.param == "memory" and Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=in_memory or tmp_path) as made:
        yield Path(made)


@pytest.mark.parametrize("room", [0, 8, 4096, 2**20 + 8])
@pytest.mark.parametrize("size", SIZES)
def test_holds_head_and_content(folder: Path, room: int, size: int) -> None:
    content = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8).tobytes()
    head = bytes(range(1, 201)) * (room // 200) + b"h" * (room % 200)
    file = BulkFile(folder / "file", room_for_head=room)
    for begin in range(0, size, 100_003):
        file.append(memoryview(content)[begin : begin + 100_003])
    file.finish(head)
    assert (folder / "file").read_bytes() == head + content


def test_raises_when_the_file_may_not_grow(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from roundoff.runs.files.tensor_file import BulkFile\n"
        "file = BulkFile(Path(sys.argv[1]), room_for_head=0)\n"
        "try:\n"
        "    [file.append(memoryview(bytes(2**20))) for _ in range(8)]\n"
        "except OSError as error:\n"
        "    print(type(error).__name__, error.errno)\n"
    )

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 * 2**20 + 100, 3 * 2**20 + 100))

    command = [sys.executable, "-c", script, str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, timeout=60, check=False)
    assert done.stdout == "OSError 27\n", done.stderr

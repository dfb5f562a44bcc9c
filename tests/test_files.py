"""Files that are made and opened without harm to anyone else's."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import roundoff.files
from roundoff.files import (
    append_text,
    make_folder,
    open_reading,
    read_bytes,
    write_atomically,
    write_output,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777])
def umask(request: pytest.FixtureRequest):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_replaces_the_whole_file(tmp_path: Path):
    path = tmp_path / "a"
    write_atomically(path, b"long content")
    write_atomically(path, b"short")
    assert path.read_bytes() == b"short"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file_and_no_temporary_one(tmp_path: Path, request: pytest.FixtureRequest):
    path = tmp_path / "a"
    write_atomically(path, b"old")
    request.getfixturevalue("full_disk")
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(path, b"new")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path):
    users = tmp_path / "users"
    users.write_bytes(b"precious")
    for name in ("a", "a.tmp"):
        (tmp_path / name).symlink_to(users)
    write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert not (tmp_path / "a").is_symlink()
    assert users.read_bytes() == b"precious"


def test_nothing_is_appended_through_a_link(tmp_path: Path):
    users = tmp_path / "users"
    users.write_bytes(b"precious")
    (tmp_path / "a").symlink_to(users)
    with pytest.raises(OSError, match="symbolic links"):
        append_text(tmp_path / "a", "more")
    assert users.read_bytes() == b"precious"


@pytest.mark.usefixtures("umask")
def test_only_the_user_may_read_what_is_private(tmp_path: Path):
    make_folder(tmp_path / "run")
    write_atomically(tmp_path / "run" / "a", b"")
    append_text(tmp_path / "run" / "b", "text")
    assert [mode(tmp_path / name) for name in ("run", "run/a", "run/b")] == [0o700, 0o600, 0o600]


def test_the_umask_decides_about_outputs(tmp_path: Path):
    before = os.umask(0o027)
    write_output(tmp_path / "a.csv", b"1,2")
    os.umask(before)
    assert mode(tmp_path / "a.csv") == 0o640


def test_an_output_may_be_a_pipe_or_device(tmp_path: Path):
    script = (
        "from pathlib import Path; from roundoff.files import write_output; write_output(Path('/dev/stdout'), b'x')"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"x"


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link"])
def test_only_regular_files_are_read_and_nothing_hangs(tmp_path: Path, kind: str):
    path = tmp_path / "a"
    {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "folder": path.mkdir,
        "link": lambda: path.symlink_to(tmp_path / "b"),
    }[kind]()
    (tmp_path / "b").write_bytes(b"b")
    with pytest.raises(OSError, match=r"regular file|directory|symbolic link"):
        open_reading(path)


def test_a_device_itself_is_not_read():
    with pytest.raises(OSError, match="not a regular file"):
        read_bytes(Path("/dev/zero"))


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path):
    (tmp_path / "a").write_bytes(bytes(100))
    with pytest.raises(OSError, match="it has 100 bytes, and at most 99 are read"):
        read_bytes(tmp_path / "a", max_bytes=99)


WRITES = re.compile(r"""write_text|write_bytes|O_CREAT|os\.replace|\.open\(["'][wxa]|open\([^)]*["'][wxa]b?["']""")
ELSEWHERE = {
    "checkpoints/write/checkpoint_writer.py": "fills the new file that it was given",
    "compare/tensors/save_tensor.py": "makes files of its own that must not exist",
    "precision/loss_scaler.py": "appends to a log that the user names",
    "replay/rank_consensus.py": "the file is a lock: only one process may make it",
    "train/trainer_state.py": "fills a new file",
}


def test_files_are_made_here_and_nowhere_else():
    package = Path(roundoff.files.__file__).parent
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if WRITES.search(path.read_text())}
    assert found == {"files.py", *ELSEWHERE}

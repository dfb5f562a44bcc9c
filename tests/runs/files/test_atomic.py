import errno
from pathlib import Path

import pytest

from roundoff.runs.files.atomic import temporary_name, write_atomically


def test_replaces_the_whole_file(tmp_path: Path):
    path = tmp_path / "a"
    write_atomically(path, b"long content")
    write_atomically(path, b"short")
    assert path.read_bytes() == b"short"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file_and_no_temporary_one(tmp_path: Path):
    path = tmp_path / "a"
    write_atomically(path, b"old")
    temporary_name(path).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(path, b"new")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]

from pathlib import Path

import pytest

from roundoff.errors import RunFolderError
from roundoff.runs.files.lines import append_lines, read_last_line, read_lines


def read(path: Path) -> list[object]:
    return list(read_lines(path, dict))


def test_lines_come_back_in_order(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    append_lines(path, ['{"n": 1}', '{"n": 2}'])
    append_lines(path, ['{"n": 3}'])
    assert read(path) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_missing_file_has_no_lines(tmp_path: Path):
    assert read(tmp_path / "a.jsonl") == []
    assert read_last_line(tmp_path / "a.jsonl", dict) is None


def test_a_file_cut_off_anywhere_keeps_its_whole_lines(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    content = '{"n": 1}\n{"text": "é"}\n{"n": 3}\n'.encode()
    whole = [{"n": 1}, {"text": "é"}, {"n": 3}]
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        found = read(path)
        assert len(found) >= content[:length].count(b"\n")
        assert found == whole[: len(found)]
        assert read_last_line(path, dict) == (found[-1] if found else None)


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n{"n": \n{"n": 3}\n')
    with pytest.raises(RunFolderError, match=r"a\.jsonl' line 2 cannot be read"):
        read(path)


def test_a_line_that_is_no_object_is_named(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n[2]\n')
    with pytest.raises(RunFolderError, match=r"line 2 cannot be read\.\n  why: it does not hold a JSON object\."):
        read(path)
    with pytest.raises(RunFolderError, match=r"last line cannot be read"):
        read_last_line(path, dict)


def test_a_line_beyond_the_bound_is_refused_without_reading_it_whole(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(b'{"n": 1}\n')
        file.truncate(2**30)
    with pytest.raises(RunFolderError, match="line 2 cannot be read"):
        read(path)


def test_the_last_line_of_a_long_file_is_found_without_reading_it(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    append_lines(path, [f'{{"n": {n}}}' for n in range(50_000)])
    seen = []
    assert read_last_line(path, lambda value: seen.append(value) or value["n"]) == 49_999
    assert len(seen) == 1


def test_a_last_line_longer_than_the_tail_is_found(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    append_lines(path, ['{"n": 1}', '{"text": "' + "x" * 100_000 + '"}'])
    assert len(read_last_line(path, dict)["text"]) == 100_000
    with path.open("ab") as file:
        file.write(b'{"text": "' + b"y" * 100_000)
    assert set(read_last_line(path, dict)["text"]) == {"x"}


def test_an_error_names_the_file(tmp_path: Path):
    with pytest.raises(FileNotFoundError) as caught:
        append_lines(tmp_path / "gone" / "a.jsonl", ["{}"])
    assert caught.value.filename == str(tmp_path / "gone" / "a.jsonl")

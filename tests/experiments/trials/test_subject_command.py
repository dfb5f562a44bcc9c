from pathlib import Path

import pytest

from roundoff.errors import BisectError
from roundoff.experiments.trials.targets import CommandTarget
from roundoff.experiments.trials.trial import TrialSetting


def tried(folder: Path, setting: TrialSetting, *words: str) -> int:
    task = CommandTarget(words=words, working_folder=folder).task(setting, folder=folder / "trial")
    return int(task.call(task.argument).exit_code)


def test_the_exit_status_is_the_answer(tmp_path: Path):
    assert tried(tmp_path, TrialSetting(), "true") == 0
    assert tried(tmp_path, TrialSetting(), "sh", "-c", "exit 3") == 3
    assert tried(tmp_path, TrialSetting(), "sh", "-c", "kill -9 $$") == 137


def test_the_command_learns_the_sites_from_its_environment(tmp_path: Path):
    setting = TrialSetting(overrides={"a": "fp32", "b": "fp32"}, recipe="half")
    words = ("sh", "-c", 'echo "$ROUNDOFF_SITES $ROUNDOFF_OVERRIDES $ROUNDOFF_RECIPE" > said')
    assert tried(tmp_path, setting, *words) == 0
    assert (tmp_path / "said").read_text() == 'a,b {"a": "fp32", "b": "fp32"} half\n'


@pytest.mark.parametrize("words", [("no-such-program",), ("sh", "-c", "no-such-program")])
def test_a_command_that_cannot_be_run_is_an_error_and_no_answer(tmp_path: Path, words: tuple[str, ...]):
    with pytest.raises(BisectError, match="cannot be run"):
        tried(tmp_path, TrialSetting(), *words)


def test_another_text_of_a_file_among_the_words_is_another_command(tmp_path: Path):
    check = tmp_path / "check.sh"
    check.write_text("exit 0")
    subject = CommandTarget(words=("sh", "check.sh"), working_folder=tmp_path)
    before = subject.fingerprint
    assert (subject.name, subject.fingerprint) == ("sh check.sh", before)
    check.write_text("exit 1")
    assert subject.fingerprint != before

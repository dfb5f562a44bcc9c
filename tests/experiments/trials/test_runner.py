from pathlib import Path

import pytest

from roundoff.errors import TrialError
from roundoff.experiments.bisect.bisection import BisectFolder
from roundoff.experiments.trials.runner import FinishedTrial, TrialRunner
from roundoff.experiments.trials.targets import CommandTarget
from roundoff.experiments.trials.trial import TrialSetting

CHECK = """
echo called >> calls
case ",$ROUNDOFF_SITES," in *,boom,*) exit 127;; *,a,*) exit 0;; *) echo no a; exit 1;; esac
"""


@pytest.fixture
def subject(tmp_path: Path) -> CommandTarget:
    (tmp_path / "check.sh").write_text(CHECK)
    return CommandTarget(words=("sh", "check.sh"), working_folder=tmp_path)


def wide(*sites: str, seed: int | None = None) -> TrialSetting:
    return TrialSetting(overrides=dict.fromkeys(sites, "fp32"), seed=seed)


def num_made(tmp_path: Path) -> int:
    return len((tmp_path / "calls").read_text().splitlines())


def test_no_trial_is_made_twice_not_even_by_another_process(tmp_path: Path, subject: CommandTarget):
    folder = BisectFolder(path=tmp_path)
    reported: list[FinishedTrial] = []
    trials = TrialRunner(subject, folder, jobs=0, on_trial=reported.append)
    assert [result.exit_code for result in trials.run_all([wide("a"), wide("b"), wide("a")])] == [0, 1, 0]
    assert trials(wide("b")).exit_code == 1
    assert (num_made(tmp_path), trials.num_requested, len(reported)) == (2, 2, 2)
    again = TrialRunner(subject, folder, jobs=0)
    assert again(wide("b")) == trials(wide("b"))
    assert again.trial_of(wide("b")).is_new is False
    assert (num_made(tmp_path), again.num_requested) == (2, 1)
    assert again(wide("b", seed=1)).exit_code == 1
    assert again.trial_of(wide("b", seed=1)).number == 3


def test_several_are_made_at_a_time_and_their_output_is_kept(tmp_path: Path, subject: CommandTarget):
    trials = TrialRunner(subject, BisectFolder(path=tmp_path), jobs=2)
    assert [result.exit_code for result in trials.run_all([wide("a"), wide("b")])] == [0, 1]
    assert (tmp_path / "trials" / "2" / "log.txt").read_text() == "no a\n"


def test_a_line_that_was_cut_off_is_made_again(tmp_path: Path, subject: CommandTarget):
    folder = BisectFolder(path=tmp_path)
    TrialRunner(subject, folder, jobs=0).run_all([wide("a"), wide("b")])
    folder.trials.write_bytes(folder.trials.read_bytes()[:-5])
    again = TrialRunner(subject, folder, jobs=0)
    assert [result.exit_code for result in again.run_all([wide("a"), wide("b")])] == [0, 1]
    assert num_made(tmp_path) == 3
    assert len(folder.trials.read_text().splitlines()) == 2


def test_a_trial_that_comes_to_nothing_is_an_error_and_the_others_are_kept(tmp_path: Path, subject: CommandTarget):
    trials = TrialRunner(subject, BisectFolder(path=tmp_path), jobs=0)
    with pytest.raises(TrialError, match=r"A trial of `sh check.sh` failed[\s\S]*cannot be run"):
        trials.run_all([wide("a"), wide("boom")])
    assert TrialRunner(subject, BisectFolder(path=tmp_path), jobs=0)(wide("a")).exit_code == 0
    assert num_made(tmp_path) == 2

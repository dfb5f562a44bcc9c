"""Searches over a command: a shell script that is good if the sites in the file `wanted` are all wide."""

from pathlib import Path

import pytest

from roundoff.errors import BisectError
from roundoff.experiments.bisect.bisect_answer import BisectAnswer
from roundoff.experiments.bisect.bisect_options import BisectEvent, BisectOptions, WideSites
from roundoff.experiments.bisect.bisection import BisectFolder
from roundoff.experiments.bisect.candidates import Candidates
from roundoff.experiments.bisect.search import BisectSearch
from roundoff.experiments.trials.runner import TrialRunner
from roundoff.experiments.trials.targets import CommandTarget, ScriptTarget
from roundoff.record.script import Script

CHECK = """
echo "$ROUNDOFF_SITES" >> calls
for wanted in $(cat wanted); do
    case ",$ROUNDOFF_SITES," in *",$wanted,"*) ;; *) exit 1;; esac
done
"""
SITES = tuple(f"block.{number}" for number in range(26))


class Searched:
    """A folder in which a search can be made, again and again."""

    def __init__(self, folder: Path, *wanted: str) -> None:
        self.folder = folder
        self.events: list[BisectEvent] = []
        (folder / "check.sh").write_text(CHECK)
        (folder / "wanted").write_text("\n".join(wanted))

    def find(self, candidates: Candidates | None = None, **options: object) -> BisectAnswer:
        subject = CommandTarget(words=("sh", "check.sh"), working_folder=self.folder)
        trials = TrialRunner(subject, BisectFolder(path=self.folder), jobs=0)
        change = WideSites(bad=None, good="fp32", good_name="fp32")
        chosen = BisectOptions(**options)
        search = BisectSearch(trials, change, chosen, on_event=self.events.append)
        return search.find(candidates or Candidates(modules=SITES))

    @property
    def num_made(self) -> int:
        return len((self.folder / "calls").read_text().splitlines())


def test_finds_the_site_and_proves_it_within_the_stated_number_of_runs(tmp_path: Path):
    searched = Searched(tmp_path, "block.17")
    found = searched.find()
    assert found.found == found.modules == ("block.17",)
    assert found.is_minimal
    assert found.num_runs <= 8
    assert found.num_other_runs == 2
    assert searched.num_made == found.num_runs + 2
    assert (found.with_them, found.without) == ("exit 0", {"block.17": "exit 1"})
    assert found.judge.startswith("exit: ")


def test_the_first_suspect_costs_one_run(tmp_path: Path):
    searched = Searched(tmp_path, "block.17")
    found = searched.find(Candidates(modules=("block.17", *SITES[:17], *SITES[18:])))
    assert (found.found, found.num_runs) == (("block.17",), 1)


def test_two_sites_that_are_both_needed_are_found_and_each_is_proven(tmp_path: Path):
    found = Searched(tmp_path, "block.3", "block.20").find()
    assert found.found == ("block.3", "block.20")
    assert found.without == {"block.3": "exit 1", "block.20": "exit 1"}


def test_a_search_that_begins_again_makes_no_run_again(tmp_path: Path):
    searched = Searched(tmp_path, "block.17")
    whole = searched.find()
    num_made = searched.num_made
    searched.events.clear()
    assert searched.find() == whole
    assert searched.num_made == num_made
    assert all(not event.is_new for event in searched.events)


def test_the_budget_ends_the_search_with_what_is_known(tmp_path: Path):
    found = Searched(tmp_path, "block.17").find(max_runs=3)
    assert (found.is_minimal, found.stopped_by, found.num_runs) == (False, "--max-runs", 3)
    assert "block.17" in found.found
    assert found.without == {}


def test_ops_inside_the_module_are_searched_when_the_module_is_known(tmp_path: Path):
    (tmp_path / "check.sh").write_text("")
    searched = Searched(tmp_path, "head:softmax")
    (tmp_path / "check.sh").write_text(
        'echo >> calls\ncase ",$ROUNDOFF_SITES," in *,head,*|*,head:softmax,*) exit 0;; *) exit 1;; esac'
    )
    ops = {"head": ("head:linear", "head:softmax", "head:add")}
    found = searched.find(Candidates(modules=("embed", "head"), ops=ops))
    assert (found.found, found.modules) == (("head:softmax",), ("head",))
    assert searched.find(Candidates(modules=("embed", "head"), ops=ops), modules_only=True).found == ("head",)


def test_the_budget_is_for_modules_and_ops_together_and_an_answer_that_was_cut_off_says_so(tmp_path: Path):
    searched = Searched(tmp_path)
    (tmp_path / "check.sh").write_text(
        'echo >> calls\ncase ",$ROUNDOFF_SITES," in *,head,*|*,head:f,*) exit 0;; *) exit 1;; esac'
    )
    candidates = Candidates(modules=("embed", "head"), ops={"head": tuple(f"head:{op}" for op in "abcdef")})
    for max_runs in (2, 3, 4):
        found = searched.find(candidates, max_runs=max_runs)
        assert (found.is_minimal, found.stopped_by) == (False, "--max-runs")
        assert found.found == ("head",)
        assert found.without == {"head": "exit 1"}
        assert found.num_runs == max_runs
        assert all((event.num_runs or 0) <= max_runs for event in searched.events)
        assert all((event.seconds_left or 0) >= 0 for event in searched.events)
    assert searched.find(candidates).found == ("head:f",)


def test_a_module_whose_ops_alone_do_not_suffice_stays_whole(tmp_path: Path):
    ops = {"block.17": ("block.17:linear", "block.17:add")}
    found = Searched(tmp_path, "block.17").find(Candidates(modules=SITES, ops=ops))
    assert found.found == ("block.17",)
    assert found.notes == ("whole modules are needed: with only their 2 ops wide it is bad.",)


def test_the_mirror_finds_what_spoils_a_good_run(tmp_path: Path):
    found = Searched(tmp_path, "block.3", "block.20").find(mirror=True)
    assert len(found.found) == 1
    assert found.found[0] in ("block.3", "block.20")


def test_a_run_that_is_not_bad_is_no_search(tmp_path: Path):
    searched = Searched(tmp_path)
    found = searched.find()
    assert (found.found, found.as_it_is, found.num_runs) == ((), "exit 0", 0)


def test_a_run_that_is_bad_with_every_site_wide_says_so(tmp_path: Path):
    with pytest.raises(BisectError, match=r"`sh check.sh` fails with every site wide: exit code 1"):
        Searched(tmp_path, "elsewhere").find()


def test_a_judge_that_does_not_fit_is_an_error(tmp_path: Path):
    with pytest.raises(BisectError, match="cannot be judged by its accuracy"):
        Searched(tmp_path, "block.17").find(judge="accuracy")
    with pytest.raises(BisectError, match=r"There is no judge 'los'[\s\S]*auto, nonfinite, loss"):
        BisectOptions(judge="los")


def test_progress_reports_runs_what_is_known_and_the_verdict(tmp_path: Path):
    searched = Searched(tmp_path, "block.17")
    found = searched.find()
    before, during = searched.events[:2], searched.events[2:]
    assert [event.what for event in before] == ["unchanged", "all 26 sites wide"]
    assert [event.num_runs for event in during] == list(range(1, found.num_runs + 1))
    assert {event.at_most for event in during} == {8}
    assert during[-1].known == ("block.17",)
    assert (during[0].what, during[0].verdict) == ("1 site wide", "bad, exit 1")
    assert during[0].seconds_left is not None


def test_a_noisy_training_is_judged_by_the_majority_of_other_seeds(tmp_path: Path):
    searched = Searched(tmp_path, "block.17")
    found = searched.find(repeats=3)
    assert found.found == ("block.17",)
    assert found.num_runs > 8


NEEDS_A_LOSS_SCALE = """
import torch, roundoff
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
model, optimizer = roundoff.apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.1), "half")
for _ in range(3):
    x = torch.full((8, 4), 1e6)
    loss = model(x).square().mean()
    optimizer.backward(loss / loss.detach())
    optimizer.step()
    optimizer.zero_grad()
"""


def test_what_no_site_is_to_blame_for_is_left_to_a_plan(tmp_path: Path):
    (tmp_path / "train.py").write_text(NEEDS_A_LOSS_SCALE)
    subject = ScriptTarget(script=Script(target="train.py"), working_folder=tmp_path)
    trials = TrialRunner(subject, BisectFolder(path=tmp_path / "bisect-1"), jobs=0)
    change = WideSites(bad=None, good="fp32", good_name="fp32")
    search = BisectSearch(trials, change, BisectOptions(), on_event=lambda event: None)
    with pytest.raises(BisectError, match=r"even with every site wide[\s\S]*it is good[\s\S]*roundoff plan train.py"):
        search.find(Candidates(modules=("0", "1")))

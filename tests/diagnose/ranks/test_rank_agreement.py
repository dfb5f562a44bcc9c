"""Who had the same as whom, along the steps."""

from pathlib import Path

from roundoff.diagnose.ranks.agreement import RankAgreement, rank_agreement
from tests.report.sample_runs import write_metrics_run, write_ranks_run

NAMES = ["fc.weight", "fc.bias"]


def found(folder: Path, odd, **settings: int) -> dict[str, RankAgreement]:
    run = write_ranks_run(folder, names=NAMES, odd=odd, **settings)
    return {each.kind: each for each in rank_agreement(run)}


def test_ranks_that_agree_are_one_group_in_one_stretch(tmp_path: Path):
    each = found(tmp_path / "a", lambda *_: 0)["parameter"]
    (stretch,) = each.stretches
    assert (stretch.first_step, stretch.last_step, stretch.groups) == (0, 5, (0, 0, 0, 0))
    assert (stretch.is_same, each.first_odd, each.num_tensors) == (True, None, 2)


def test_a_rank_that_leaves_the_others_begins_a_stretch_which_names_the_tensors(tmp_path: Path):
    each = found(tmp_path / "a", lambda kind, step, rank: kind == "clipped" and rank == 2 and step >= 3)["clipped"]
    assert [(stretch.first_step, stretch.last_step, stretch.groups) for stretch in each.stretches] == [
        (0, 2, (0, 0, 0, 0)),
        (3, 5, (0, 0, 1, 0)),
    ]
    assert each.first_odd is not None
    assert each.first_odd.differing == ["fc.bias"]


def test_ranks_that_differ_from_each_other_are_in_groups_of_their_own(tmp_path: Path):
    each = found(tmp_path / "a", lambda kind, step, rank: [0, 7, 9, 7][rank])["parameter"]
    assert each.stretches[0].groups == (1, 0, 2, 0)


def test_inputs_should_differ_and_those_of_two_ranks_that_do_not_are_reported(tmp_path: Path):
    own = found(tmp_path / "a", lambda *_: 0)["input"]
    assert (own.stretches[0].groups, own.first_odd) == ((0, 1, 2, 3), None)
    shared = found(tmp_path / "b", lambda kind, step, rank: kind == "input" and rank == 3 and step > 1)["input"]
    assert shared.first_odd is not None
    assert (shared.first_odd.first_step, shared.first_odd.groups) == (2, (0, 1, 2, 0))


def test_one_rank_has_no_one_to_agree_with(tmp_path: Path):
    assert rank_agreement(write_metrics_run(tmp_path / "a", [1.0])) == []

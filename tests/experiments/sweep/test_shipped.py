from dataclasses import replace
from pathlib import Path

import pytest

from roundoff.errors import SweepError
from roundoff.experiments.sweep.definition import find_sweep, read_sweep, shipped_sweeps
from roundoff.experiments.sweep.sweep_folder import run_sweep


def test_five_sweeps_come_along():
    sizes = {path.stem: len(read_sweep(path).trainings) for path in shipped_sweeps()}
    assert sizes == {"activations": 15, "fixed-point": 46, "loss-scaling": 36, "norm-statistics": 72, "underflow": 200}


@pytest.mark.parametrize("path", shipped_sweeps(), ids=lambda path: path.stem)
def test_names_and_descriptions_fit_their_files(path: Path):
    sweep = read_sweep(path)
    assert sweep.name == path.stem
    assert len(sweep.description.splitlines()[0]) <= 120


@pytest.mark.parametrize(
    ("name", "patterns"),
    [
        ("activations", ["act4, 0"]),
        ("loss-scaling", ["O2 x1024, 32"]),
        ("fixed-point", ["fp32", "4, quantized, quantized, 1e-3, sweep"]),
    ],
)
def test_rows_train_a_couple_of_steps(name: str, patterns: list[str], tmp_path: Path):
    for pattern in patterns:
        sweep = read_sweep(find_sweep(name)).only(pattern).with_steps(2)
        (row,) = run_sweep(sweep, folder=tmp_path / pattern, jobs=0)
        assert (row.failure, row.steps) == (None, 2)


@pytest.mark.slow
@pytest.mark.parametrize("path", shipped_sweeps(), ids=lambda path: path.stem)
def test_every_row_trains_a_step(path: Path, tmp_path: Path):
    sweep = read_sweep(path).with_steps(1)
    one_seed = replace(sweep, trainings=[each for each in sweep.trainings if each.labels.get("seed", "0") == "0"])
    rows = run_sweep(one_seed, folder=tmp_path / "s", jobs=2)
    assert [row.failure for row in rows] == [None] * len(rows)


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(SweepError) as raised:
        find_sweep("loss-scalling")
    assert str(raised.value) == (
        "No sweep 'loss-scalling'.\n"
        "  why: there is no such file, and the included sweeps are "
        "activations, fixed-point, loss-scaling, norm-statistics, underflow.\n"
        "  fix: did you mean 'loss-scaling'?"
    )


def test_a_file_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("activations").write_text("")
    assert find_sweep("activations") == Path("activations")

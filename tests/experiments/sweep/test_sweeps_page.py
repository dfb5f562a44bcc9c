import re
from pathlib import Path

from roundoff.experiments.sweep.definition import read_sweep, shipped_sweeps

PAGE = (Path(__file__).parents[3] / "docs" / "sweeps.md").read_text()


def test_the_file_on_the_page_is_a_sweep(tmp_path: Path):
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    path = tmp_path / "batches.toml"
    path.write_text(text)
    names = [training.name for training in read_sweep(path).trainings]
    assert names == ["fp32, small", "fp32, large", "O2, small", "O2, large"]


def test_the_page_has_a_row_for_every_training_that_comes_along():
    for path in shipped_sweeps():
        sweep = read_sweep(path)
        (table,) = re.findall(rf"roundoff sweep {sweep.name} --jobs 2\n(.*?)```", PAGE, re.S)
        lines = [re.split(r"  +", line) for line in table.splitlines()]
        assert lines[0][: len(sweep.axes)] == list(sweep.axes)
        labels = [[training.labels.get(axis, "-") for axis in sweep.axes] for training in sweep.trainings]
        assert [line[: len(sweep.axes)] for line in lines[1:]] == labels

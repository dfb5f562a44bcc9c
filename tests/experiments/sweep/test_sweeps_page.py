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


def test_the_page_has_a_row_for_every_training_that_comes_along_or_one_for_all_its_seeds():
    for path in shipped_sweeps():
        sweep = read_sweep(path)
        ((each_seed, table),) = re.findall(
            rf"roundoff sweep {sweep.name} --jobs 2( --each-seed)?\n(.*?)```", PAGE, re.S
        )
        axes = [axis for axis in sweep.axes if axis != "seed" or each_seed]
        lines = [tuple(re.split(r"  +", line)[: len(axes)]) for line in table.splitlines()]
        assert lines[0] == tuple(axes)
        labels = [tuple(training.labels.get(axis, "-") for axis in axes) for training in sweep.trainings]
        assert lines[1:] == list(dict.fromkeys(labels))

import re
from pathlib import Path

from roundoff.experiments.sweep.definition import read_sweep, shipped_sweeps

PAGE = (Path(__file__).parents[3] / "docs" / "sweeps.md").read_text()


def test_the_files_on_the_page_are_sweeps(tmp_path: Path):
    names = []
    for text in re.findall(r"```toml\n(.*?)```", PAGE, re.S):
        path = tmp_path / text.split()[1]
        path.write_text(text)
        names.append([training.name for training in read_sweep(path).trainings])
    batches, nvfp4 = names
    assert batches == ["fp32, small", "fp32, large", "O2, small", "O2, large"]
    assert nvfp4 == [f"{seed}, {recipe}" for seed in range(5) for recipe in ("fp32", "nvfp4")]


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

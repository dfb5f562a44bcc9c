from roundoff.experiments.sweep.seed_groups import group_by_labels, has_several_seeds, seeds_table, spreads_by_axes
from roundoff.experiments.sweep.sweep_rows import TEXT_COLUMNS, SweepRow
from roundoff.report.spread_chart import MeanAndRange
from roundoff.words import text_table

AXES = ("seed", "recipe", "batch")


def row(seed: int, recipe: str, batch: str, top1: float | None, **measured: object) -> SweepRow:
    labels = {"seed": str(seed), "recipe": recipe, "batch": batch}
    return SweepRow(key=f"{seed}{recipe}{batch}", labels=labels, settings={}, top1=top1, **measured)


ROWS = [
    row(0, "half", "32", 0.9, seconds=1.0),
    row(1, "half", "32", 1.0, seconds=2.0),
    row(0, "half", "512", 0.1, first_nonfinite_step=4),
    row(1, "half", "512", 0.3, ended_nonfinite=False),
    row(0, "O2", "32", None, failure="boom"),
]


def test_one_line_shows_mean_spread_and_how_many_seeds_went_non_finite():
    assert text_table(seeds_table(ROWS, AXES), left={*AXES, *TEXT_COLUMNS}, ruled=False) == (
        "recipe  batch  top-1  lowest  highest   seeds  not finite   time\n"
        "half    32     0.950   0.900    1.000       2      0 of 2  1.5 s\n"
        "half    512    0.200   0.100    0.300       2      1 of 2  0.0 s\n"
        "O2      32         -       -        -  0 of 1      0 of 1  0.0 s"
    )


def test_rows_without_an_axis_of_seeds_are_groups_of_one():
    alone = [SweepRow(key="1", labels={"recipe": "O2"}, settings={}), SweepRow(key="2", labels={}, settings={})]
    assert [len(group.rows) for group in group_by_labels(alone)] == [1, 1]
    assert not has_several_seeds(alone)
    assert has_several_seeds(ROWS)


def test_a_chart_has_a_line_for_each_label_of_the_first_axis():
    assert spreads_by_axes(ROWS, AXES) == {
        "half": {"32": MeanAndRange(mean=0.95, low=0.9, high=1.0), "512": MeanAndRange(mean=0.2, low=0.1, high=0.3)}
    }


def test_there_is_no_chart_of_three_axes():
    assert spreads_by_axes(ROWS, (*AXES, "lr")) == {}

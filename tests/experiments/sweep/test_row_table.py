from roundoff.experiments.sweep.sweep_rows import TEXT_COLUMNS, SweepRow, rows_csv, rows_table
from roundoff.words import text_table

AXES = ("recipe", "batch")
ROWS = [
    SweepRow(
        key="1", labels={"recipe": "fp32"}, settings={}, top1=0.97, steps=9, saved_activation_bytes=653_000, seconds=1
    ),
    SweepRow(
        key="2",
        labels={"recipe": "O2", "batch": "1024"},
        settings={},
        top1=0.0,
        first_nonfinite_step=4,
        skipped=3,
        seconds=12.34,
        note="ended NaN",
    ),
    SweepRow(
        key="3", labels={"recipe": "half", "batch": "8"}, settings={}, failure="boom", note=f"failed: {'boom ' * 30}"
    ),
]


def text(rows: list[SweepRow], *, ruled: bool = False) -> str:
    return text_table(rows_table(rows, AXES), left={*AXES, *TEXT_COLUMNS}, ruled=ruled)


def test_the_table_reads_as_it_should():
    assert text(ROWS[:2]) == (
        "recipe  batch  top-1  NaN at  skipped   saved    time  note\n"
        "fp32    -      0.970       -        0  653 kB   1.0 s\n"
        "O2      1024   0.000  step 4        3       -  12.3 s  ended NaN"
    )


def test_columns_with_nothing_to_say_are_left_out():
    assert text(ROWS[:1]) == "recipe  batch  top-1   saved   time\nfp32    -      0.970  653 kB  1.0 s"


def test_no_line_is_longer_than_a_hundred_columns():
    for ruled in (False, True):
        lines = text(ROWS, ruled=ruled).splitlines()
        assert max(map(len, lines)) <= 100
        assert any(line.rstrip().endswith("…") for line in lines)


def test_csv_keeps_everything():
    lines = rows_csv(ROWS, AXES).splitlines()
    assert lines[0] == (
        "recipe,batch,top1,eval_loss,steps,first_nonfinite_step,ended_nonfinite,skipped,"
        "saved_activation_bytes,seconds,failure,note"
    )
    assert lines[1] == "fp32,,0.97,,9,,False,0,653000,1,,"
    assert lines[3].count("boom") == 31

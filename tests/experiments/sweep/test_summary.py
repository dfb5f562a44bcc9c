import pytest

from roundoff.experiments.sweep.sweep_rows import SweepRow, summarize_rows


def row(name: str, **measured: object) -> SweepRow:
    return SweepRow(key=name, labels={"recipe": name}, settings={}, **measured)


FP32, O2 = row("fp32", top1=0.9), row("O2", top1=0.95)
WENT_NAN = row("half", top1=1.0, first_nonfinite_step=4)
ENDED_INFINITE = row("O3", top1=1.0, ended_nonfinite=True)
FAILED = row("fp8", failure="boom")


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([], "None of the 4 rows is finished yet."),
        ([FP32], "1 of 4 rows so far: none went non-finite; best is 'fp32' with top-1 0.900."),
        (
            [FP32, O2, WENT_NAN, ENDED_INFINITE],
            "4 rows: 2 went non-finite; best is 'O2' with top-1 0.950.",
        ),
        ([FP32, O2, WENT_NAN, FAILED], "4 rows: 1 went non-finite, 1 failed; best is 'O2' with top-1 0.950."),
        ([FAILED] * 4, "4 rows: 4 failed; no row is good."),
        ([O2, FP32, O2, O2], "4 rows: none went non-finite; best is 'O2' with top-1 0.950, tied with 2 others."),
    ],
)
def test_one_sentence_says_how_many_what_went_wrong_and_which_is_best(rows: list[SweepRow], sentence: str):
    assert summarize_rows(rows, num_planned=4) == sentence

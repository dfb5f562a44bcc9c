from pathlib import Path

from roundoff.diagnose.diagnosis import view_run
from roundoff.report.run_page.setup import settings_section
from tests.report.sample_runs import HOSTILE, write_metrics_run


def test_what_the_run_says_about_itself_is_listed(tmp_path: Path):
    run = write_metrics_run(
        tmp_path / "run",
        [1.0],
        command=("train.py", "--lr", "0.1"),
        packages={"torch": "2.13"},
        environment={"OMP_NUM_THREADS": "1"},
        notes=("recording stopped: the disk is full",),
    )
    body = settings_section(view_run(run)).body
    for words in ("<dd>train.py --lr 0.1</dd>", "<dt>torch</dt><dd>2.13</dd>", "OMP_NUM_THREADS", "the disk is full"):
        assert words in body
    assert "reference" not in body


def test_settings_that_differ_from_the_reference_come_first(tmp_path: Path):
    reference = write_metrics_run(tmp_path / "a", [1.0, 2.0], recipe="O1")
    candidate = write_metrics_run(tmp_path / "b", [1.0, 2.0], recipe="O2")
    body = settings_section(view_run(candidate, against=reference)).body
    assert body.index("Different from the reference") < body.index("status")
    assert '<td data-value="O1">O1</td><td data-value="O2">O2</td>' in body


def test_equal_settings_are_reported_as_equal(tmp_path: Path):
    reference, candidate = (write_metrics_run(tmp_path / name, [1.0, 2.0]) for name in "ab")
    assert (
        "All recorded settings are the same as in the reference"
        in settings_section(view_run(candidate, against=reference)).body
    )


def test_hostile_words_stay_text(tmp_path: Path):
    run = write_metrics_run(tmp_path / "run", [1.0], command=(HOSTILE,), environment={HOSTILE: HOSTILE})
    assert "<script" not in settings_section(view_run(run)).body

import re
from dataclasses import replace

from roundoff.report.parts import Cell, TableColumn
from roundoff.report.sweep_page import SweepPage, SweepPageRow, sweep_page

HOSTILE = "</td><script>alert(1)</script>"
GOOD = SweepPageRow(cells=[Cell(shown="fp32")], outcome="trained", losses=[2.0, 1.0])
BAD = SweepPageRow(
    cells=[Cell(shown="O2")],
    outcome="went non-finite",
    mark="bad",
    settings={"lr": "0.1"},
    recipe="name = 'mine'",
    note="ended NaN",
)
PAGE = SweepPage(
    title="Sweep batches",
    description="Large batches, and small ones.",
    summary="2 rows: 1 went non-finite.",
    columns=[TableColumn(name="recipe")],
    rows=[GOOD, BAD],
    common={"data": "digits"},
    defaults={"model": "resnet-small"},
)


def rows_of(text: str) -> list[str]:
    return re.findall(r"<tr.*?</tr>", text, re.S)


def test_the_summary_is_the_first_thing_said():
    text = sweep_page(PAGE)
    assert '<h1>Sweep batches</h1><p class="verdict">2 rows: 1 went non-finite.</p>' in text


def test_a_row_that_went_wrong_says_so_in_words():
    heading, good, bad = rows_of(sweep_page(PAGE))
    assert re.findall(r"<button[^>]*>(.*?)</button>", heading) == ["recipe", "outcome", "loss", "note"]
    assert '<span class="outcome">trained</span>' in good
    assert '<span class="outcome">went non-finite</span>' in bad
    assert "ended NaN" in bad


def test_rows_have_the_curve_of_their_losses_where_there_are_some():
    _, good, bad = rows_of(sweep_page(PAGE))
    assert ("<svg" in good, "<svg" in bad) == (True, False)


def test_without_any_losses_there_is_no_column_for_them():
    text = sweep_page(replace(PAGE, rows=[replace(GOOD, losses=[]), BAD]))
    assert ">loss</button>" not in text


def test_what_tells_a_row_from_others_is_folded_into_it():
    _, good, bad = rows_of(sweep_page(PAGE))
    assert "<details" not in good
    assert "<dt>lr</dt><dd>0.1</dd>" in bad
    assert "<pre>name = &#x27;mine&#x27;</pre>" in bad


def test_common_settings_are_reported_once():
    text = sweep_page(PAGE)
    assert text.count("<dt>data</dt><dd>digits</dd>") == 1
    assert "<summary>1 settings at their defaults</summary>" in text
    assert "Only the defaults." in sweep_page(replace(PAGE, common={}))


def test_hostile_names_stay_text_wherever_they_are():
    row = SweepPageRow(
        cells=[Cell(shown=HOSTILE, value=HOSTILE)],
        outcome=HOSTILE,
        settings={HOSTILE: HOSTILE},
        recipe=HOSTILE,
        note=HOSTILE,
    )
    hostile = SweepPage(
        title=HOSTILE,
        description=HOSTILE,
        summary=HOSTILE,
        columns=[TableColumn(name=HOSTILE)],
        rows=[row],
        common={HOSTILE: HOSTILE},
        defaults={HOSTILE: HOSTILE},
    )
    text = sweep_page(hostile)
    assert text.count("<script") == 1
    assert text.count("alert(1)") == 18

from roundoff.report.spread_chart import MeanAndRange, spread_chart

LINES = {
    "half": {"32": MeanAndRange(mean=0.95, low=0.9, high=1.0), "512": MeanAndRange(mean=0.1, low=0.1, high=0.1)},
    "O2 <b>": {"512": MeanAndRange(mean=0.9, low=0.88, high=0.93)},
}


def test_every_label_and_every_line_is_named_and_described():
    chart = spread_chart(LINES, axis="batch", name="top-1")
    assert 'aria-label="top-1 by batch, one line for each of half, O2 &lt;b&gt;; the table has the numbers"' in chart
    assert chart.count("<polyline") == 2
    for text in (">32<", ">512<", ">half<", ">O2 &lt;b&gt;<"):
        assert text in chart


def test_a_bar_goes_from_the_lowest_to_the_highest():
    chart = spread_chart({"half": {"32": MeanAndRange(mean=0.5, low=0.0, high=1.0)}}, axis="batch", name="top-1")
    assert 'y1="286.0" y2="12.0"' in chart
    assert 'cy="149.0"' in chart


def test_no_style_needs_more_than_the_page_allows():
    assert "style=" not in spread_chart(LINES, axis="batch", name="top-1")

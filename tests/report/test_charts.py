import math

from roundoff.report.charts import MAX_PARTS, MAX_TICKED_STEPS, Curve, chart, figure, line, marks, text, vertical_line


def test_a_curve_keeps_its_gaps():
    trace = line(Curve(name="loss", steps=[3, 4, 5], values=[1.0, None, 2.0]))
    assert trace["x"] == [3, 4, 5]
    assert [value == value for value in trace["y"]] == [True, False, True]


def test_a_long_curve_is_thinned_and_keeps_its_peak():
    values = [0.0] * 100_000
    values[54_321] = 9.0
    trace = line(Curve(name="loss", steps=range(100_000), values=values))
    assert len(trace["x"]) <= 2 * MAX_PARTS
    assert (54_321, 9.0) in list(zip(trace["x"], trace["y"], strict=True))


def test_a_single_point_is_marked_since_a_line_would_not_show_it():
    assert line(Curve(name="loss", steps=[0, 1], values=[1.0, math.nan]))["mode"] == "markers"
    assert line(Curve(name="loss", steps=[0, 1], values=[1.0, 1.0]))["mode"] == "lines"


def test_a_curve_without_a_finite_number_is_empty():
    assert Curve(name="loss", steps=[0, 1], values=[None, math.inf]).is_empty
    assert not Curve(name="loss", steps=[0], values=[0.0]).is_empty


def test_names_are_no_markup_to_plotly():
    hostile = "<a href='x'>b</a>"
    escaped = "&lt;a href='x'&gt;b&lt;/a&gt;"
    assert text(hostile) == escaped
    assert line(Curve(name=hostile, steps=[0], values=[1.0]))["name"] == escaped
    assert marks("anomaly", [(0, 1.0, hostile)], colour="--bad", symbol="x")["text"] == [escaped]
    assert vertical_line(1, hostile, colour="--bad")[1]["text"] == escaped


def test_few_steps_have_a_tick_each():
    few = figure([line(Curve(name="loss", steps=[0, MAX_TICKED_STEPS], values=[1.0, 2.0]))], x="step", y="loss")
    many = figure([line(Curve(name="loss", steps=[0, MAX_TICKED_STEPS + 1], values=[1.0, 2.0]))], x="step", y="loss")
    assert few["layout"]["xaxis"]["dtick"] == 1
    assert "dtick" not in many["layout"]["xaxis"]


def test_settings_of_an_axis_are_added_to_its_title():
    made = figure([], x="step", y="norm", yaxis={"type": "log"})
    assert made["layout"]["yaxis"] == {"title": {"text": "norm"}, "type": "log"}


def test_a_chart_says_in_words_what_it_shows():
    made = chart("loss", words="The loss & more.", height=200)
    assert 'data-chart="loss"' in made
    assert 'aria-label="The loss &amp; more."' in made
    assert "<figcaption>The loss &amp; more.</figcaption>" in made

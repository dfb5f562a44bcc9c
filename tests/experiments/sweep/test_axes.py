import pytest

from roundoff.errors import SweepError
from roundoff.experiments.sweep.axes import combinations, label_of, merge_settings, read_axes

KNOWN = ["recipe", "lr", "batch_size"]


def error_of(axes: object) -> str:
    with pytest.raises(SweepError) as raised:
        read_axes(axes, known=KNOWN, where="my.toml")
    return str(raised.value)


def test_a_list_gives_values_to_the_setting_of_its_name():
    (axes,) = read_axes({"lr": [0.1, 1]}, known=KNOWN, where="my.toml")
    assert axes == {"lr": {"0.1": {"lr": 0.1}, "1": {"lr": 1}}}


def test_a_table_gives_groups_of_settings_under_labels():
    (axes,) = read_axes({"size": {"small": {"lr": 0.1, "batch_size": 8}}}, known=KNOWN, where="my.toml")
    assert axes == {"size": {"small": {"lr": 0.1, "batch_size": 8}}}


def test_a_table_named_like_a_setting_may_label_its_values():
    (axes,) = read_axes({"lr": {"low": 0.1, "none": {}}}, known=KNOWN, where="my.toml")
    assert axes == {"lr": {"low": {"lr": 0.1}, "none": {}}}


def test_the_last_axis_varies_fastest():
    axes = {"a": {"1": {}, "2": {}}, "b": {"x": {}, "y": {}}}
    assert [tuple(labels.values()) for labels in combinations(axes)] == [
        ("1", "x"),
        ("1", "y"),
        ("2", "x"),
        ("2", "y"),
    ]


def test_axes_add_to_one_recipe():
    both = merge_settings({"recipe": "fixed", "lr": 1}, {"recipe": {"fixed": {"weight": {"bits": 4}}}}, {"lr": 2})
    assert both == {"recipe": {"base": "fixed", "fixed": {"weight": {"bits": 4}}}, "lr": 2}


def test_a_later_name_replaces_the_whole_recipe():
    assert merge_settings({"recipe": {"base": "O2"}}, {"recipe": "half"}) == {"recipe": "half"}


def test_merging_leaves_its_arguments_alone():
    first = {"recipe": {"fixed": {"weight": {"bits": 8}}}}
    merge_settings(first, {"recipe": {"fixed": {"weight": {"bits": 4}}}})
    assert first == {"recipe": {"fixed": {"weight": {"bits": 8}}}}


@pytest.mark.parametrize(
    ("value", "label"), [(True, "yes"), (False, "no"), (0.1, "0.1"), (["crop", "flip"], "crop+flip")]
)
def test_values_are_their_own_labels(value: object, label: str):
    assert label_of(value) == label


def test_no_axes_are_an_error():
    for axes in (None, {}, [], [{"lr": [1]}, {}]):
        assert error_of(axes) == (
            "'my.toml' has no axes.\n"
            "  why: a sweep in which nothing varies is one training.\n"
            '  fix: add for example:  [axes]  recipe = ["fp32", "O2"]'
        )


@pytest.mark.parametrize("empty", [[], {}])
def test_an_empty_axis_is_an_error(empty: object):
    assert error_of({"lr": empty}) == (
        "Axis 'lr' of 'my.toml' is empty.\n  why: there is no value to train with.\n  fix: add one, or remove the axis."
    )


def test_the_same_value_twice_is_an_error():
    assert error_of({"lr": [0.1, 0.2, 0.1]}) == (
        "Axis 'lr' of 'my.toml' has the value '0.1' 2 times.\n"
        "  why: it would train the same thing again.\n"
        "  fix: keep one; for repetitions add the axis  seed = [0, 1, 2]"
    )


def test_a_list_under_a_name_that_is_no_setting_is_an_error():
    assert error_of({"size": [1, 2]}) == (
        "Axis 'size' of 'my.toml' is not the name of a setting.\n"
        "  why: a list holds values of one setting; settings are recipe, lr, batch_size.\n"
        "  fix: use the name of a setting, or a table: [axes.size]  label = { lr = 0.1, clip = 1.0 }"
    )


def test_a_single_value_is_no_axis():
    assert error_of({"lr": 0.1}).startswith("Axis 'lr' of 'my.toml' is invalid: 0.1.\n")


def test_a_label_of_a_free_axis_needs_settings():
    assert error_of({"size": {"small": 8}}) == (
        "Label 'small' of axis 'size' in 'my.toml' is invalid: 8.\n"
        "  why: 'size' is not the name of a setting, so each label needs a table of settings.\n"
        "  fix: write small = { lr = 0.1 }"
    )

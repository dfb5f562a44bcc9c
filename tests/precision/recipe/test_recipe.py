import copy
import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundoff.errors import RecipeError
from roundoff.precision import Recipe, ScaleSettings, find_recipe, known_recipes, recipe_named, to_toml
from roundoff.precision.recipe.toml import from_toml

NAMES = [recipe.name for recipe in known_recipes()]


@pytest.mark.parametrize("name", [*NAMES, "O2+act4", "fp8+act2+ascend-fp16", "O2+adam8", "O1+act4+adam4+muon8"])
def test_toml_gives_back_the_same_value(name: str):
    recipe = recipe_named(name)
    assert from_toml(to_toml(recipe), where="a", named=recipe_named) == recipe


@settings(max_examples=50, deadline=None)
@given(
    name=st.text(),
    patterns=st.dictionaries(st.text(), st.sampled_from(["fp32", "bf16", "e4m3"])),
    initial=st.floats(min_value=1e-30, max_value=2.0**100),
)
def test_toml_gives_back_any_name_pattern_and_number(name, patterns, initial):
    scale = ScaleSettings(kind="dynamic", initial=initial)
    recipe = replace(recipe_named("O2"), name=name, overrides=patterns, loss_scale=scale)
    assert from_toml(to_toml(recipe), where="a", named=recipe_named) == recipe


@pytest.mark.parametrize("name", NAMES)
def test_can_be_copied_pickled_hashed_and_described(name: str):
    recipe = recipe_named(name)
    assert copy.deepcopy(recipe) == pickle.loads(pickle.dumps(recipe)) == recipe
    assert hash(recipe) == hash(copy.copy(recipe))
    assert recipe.description


def test_cannot_be_changed():
    with pytest.raises(AttributeError):
        recipe_named("O2").weights = "fp32"


@pytest.mark.parametrize(
    ("name", "weights", "compute", "norms", "master", "scale"),
    [
        ("fp32", "fp32", "fp32", "fp32", False, "static"),
        ("O0", "fp32", "fp32", "fp32", False, "static"),
        ("half", "fp16", "fp16", "fp32", False, "none"),
        ("O1", "fp32", "fp16", "fp32", False, "dynamic"),
        ("O2", "fp16", "fp16", "fp32", True, "dynamic"),
        ("O3", "fp16", "fp16", "fp16", False, "static"),
        ("amp-fp16", "fp32", "fp16", "fp32", False, "dynamic"),
        ("amp-bf16", "fp32", "bf16", "fp32", False, "none"),
        ("bf16", "bf16", "bf16", "fp32", False, "none"),
        ("bf16-master", "bf16", "bf16", "fp32", True, "none"),
        ("fp8", "fp32", "fp32", "fp32", False, "none"),
        ("mxfp4", "fp32", "fp32", "fp32", False, "none"),
    ],
)
def test_named_recipes_mean_what_users_know(name, weights, compute, norms, master, scale):
    recipe = recipe_named(name)
    found = (recipe.weights, recipe.compute_format, recipe.norms, recipe.master_weights, recipe.loss_scale.kind)
    assert found == (weights, compute, norms, master, scale)


def test_fp8_rounds_operands_to_e4m3_and_gradients_to_e5m2():
    operands = recipe_named("fp8").operands
    assert (operands.forward, operands.backward, operands.scaling) == ("e4m3", "e5m2", "current")


def test_an_unknown_name_is_an_error_with_all_known_ones():
    with pytest.raises(RecipeError) as caught:
        recipe_named("O5")
    assert "No recipe 'O5'." in str(caught.value)
    assert all(name in str(caught.value) for name in NAMES)


@pytest.mark.parametrize(
    "name", ["O2+O1", "O2+act4+act2", "adam8+adam8", "O2+adam8+adam4", "act4+ascend-fp16+act2", "O2+", "+act4", ""]
)
def test_combinations_that_contradict_are_errors(name: str):
    with pytest.raises(RecipeError):
        recipe_named(name)


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({"compute": "casting"}, "'plain', 'cast', 'lists'"),
        ({"update": "random"}, "'nearest', 'stochastic', 'kahan'"),
        ({"arithmetic": "fast"}, "'auto', 'native', 'emulated'"),
        ({"activation_bits": 3}, "0, 2, 4, 8"),
        ({"optimizer_states": "adam8"}, "a list of adam8, adam4, adamfp8, muon8"),
        ({"optimizer_states": ["adam2"]}, "'adam8', 'adam4', 'adamfp8', 'muon8'"),
        ({"device_profile": "tpu"}, "'ascend-fp16'"),
        ({"weights": "e4m4x"}, "known formats are"),
        ({"overrides": {"head": "wide"}}, "known formats are"),
    ],
)
def test_a_wrong_value_is_an_error_with_the_allowed_ones(change, allowed: str):
    with pytest.raises(RecipeError, match=allowed):
        replace(recipe_named("O2"), **change)


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("fp32", {"weights": "fp16"}, "compute = 'plain' keeps them in fp32"),
        ("O2", {"weights": "bf16"}, "one format for both"),
        ("O2", {"update": "kahan"}, "without fp32 master weights"),
        ("fp8", {"arithmetic": "native"}, "finds kernels for"),
        ("O2", {"optimizer_states": ("adam8", "adam4")}, "one format for its state"),
    ],
)
def test_combinations_that_cannot_be_are_errors(name: str, change, why: str):
    with pytest.raises(RecipeError, match=why):
        replace(recipe_named(name), **change)


def test_a_file_may_start_from_a_named_recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('base = "O2"\nloss_scale = "dynamic:torch"\n[overrides]\n"blocks.*.attn" = "fp32"\n')
    recipe = find_recipe(path)
    assert (recipe.name, recipe.master_weights, recipe.loss_scale.flavour) == ("mine", True, "torch")
    assert recipe.overrides == {"blocks.*.attn": "fp32"}
    assert find_recipe(str(path)) == recipe


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('base = "O2"\n\nwieghts = "fp16"\n', "mine.toml' line 3 has an unknown setting 'wieghts'"),
        ('base = "O2"\n[loss_scale]\ninital = 3\n', "mine.toml' line 3 has an unknown setting 'loss_scale.inital'"),
        ('base = "O2"\ncompute = "fast"\n', "mine.toml' line 2: Recipe setting compute = 'fast' is invalid."),
        (
            'base = "O2"\n[overrides]\n"a.*" = "e4m4x"\n',
            "mine.toml' line 3: Recipe setting overrides.\"a.*\" = 'e4m4x'",
        ),
        ('base = "O5"\n', "No recipe 'O5'."),
        ("base = 'O2'\nmaster_weights = 'yes'\n", "line 2: Recipe setting master_weights = 'yes' is invalid."),
        ("base = \n", "mine.toml' is not TOML"),
        ("", "mine.toml' is empty"),
        ("# to be written\n", "mine.toml' is empty"),
        ('base = "O2"\noverrides = 3\n', "line 2: Recipe setting overrides = 3 is invalid."),
        ('base = "fixed"\n[fixed.wieght]\nbits = 4\n', "wieght"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path, text: str, what: str):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        find_recipe(path)
    assert what in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(RecipeError, match="cannot be read"):
        find_recipe(tmp_path / "none.toml")


def test_overrides_in_the_environment_must_be_json_of_known_formats(monkeypatch):
    from roundoff.precision.recipe.site_formats import overrides_in_environment

    assert overrides_in_environment() == {}
    monkeypatch.setenv("ROUNDOFF_OVERRIDES", json.dumps({"head": "fp32"}))
    assert overrides_in_environment() == {"head": "fp32"}
    for wrong in ("{", "[]", '{"head": "e4m4x"}', '{"head": 3}'):
        monkeypatch.setenv("ROUNDOFF_OVERRIDES", wrong)
        with pytest.raises(RecipeError, match="ROUNDOFF_OVERRIDES"):
            overrides_in_environment()


def test_can_be_made_in_python():
    assert Recipe(name="mine").weights == "fp32"

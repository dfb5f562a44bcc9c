import pytest
from torch import nn

from roundoff.errors import RecipeError
from roundoff.precision.fixed import FixedPointSettings, TensorSetting, settings_from_toml, settings_to_toml

RICH = FixedPointSettings(
    weight=TensorSetting(bits=5, range="sweep", granularity="channel", compat="nics"),
    activation=TensorSetting(bits=6, method="fixed", scale=0.1, range="percentile", percentile=99.5),
    gradient=TensorSetting(bits=3, rounding="stochastic", float_scale=True),
    error=TensorSetting(method="none", granularity="batch"),
    types={"Conv2d": {"weight": TensorSetting(bits=2)}, "Linear": {}},
    sites={'blocks.*."q"é': {"error": TensorSetting(bits=7, range="3sigma")}},
)


def test_settings_read_back_as_they_were_written():
    assert FixedPointSettings.from_dict(RICH.to_dict()) == RICH
    assert settings_from_toml(settings_to_toml(RICH)) == RICH
    assert settings_from_toml(settings_to_toml(FixedPointSettings())) == FixedPointSettings()


def test_what_is_left_out_has_its_default():
    settings = settings_from_toml("[weight]\nbits = 4\n[sites.head.weight]\nrange = 'sweep'\n")
    assert settings.weight == TensorSetting(bits=4)
    assert settings.sites["head"]["weight"] == TensorSetting(bits=4, range="sweep")
    assert settings.activation == FixedPointSettings().activation


def test_uniform_gives_every_kind_the_same():
    settings = FixedPointSettings.uniform(bits=6, rounding="stochastic")
    assert settings.weight == settings.error == settings.buffer == TensorSetting(bits=6, rounding="stochastic")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"bits": 0}, "bits = 0"),
        ({"bits": 25}, "1 to 24"),
        ({"bits": 8.0}, "bits = 8.0"),
        ({"bits": True}, "bits = True"),
        ({"method": "automatic"}, "none, auto, fixed"),
        ({"range": "min"}, "max, 3sigma, sweep, percentile"),
        ({"rounding": "up"}, "nearest, stochastic"),
        ({"granularity": "row"}, "tensor, channel, batch"),
        ({"compat": "qtorch"}, "None, nics"),
        ({"scale": -1.0}, "scale = -1.0"),
        ({"scale": float("nan")}, "scale = nan"),
        ({"percentile": 101}, "between 0 and 100"),
        ({"float_scale": 1}, "true, false"),
    ],
)
def test_a_field_that_cannot_be_says_what_can(values, words):
    with pytest.raises(RecipeError, match=words.replace("*", r"\*")):
        TensorSetting(**values)


def test_misspelt_names_are_errors():
    with pytest.raises(RecipeError, match="Unknown fixed-point setting 'wieght'"):
        FixedPointSettings.from_dict({"wieght": {"bits": 4}})
    with pytest.raises(RecipeError, match="no field 'bit'"):
        FixedPointSettings.from_dict({"weight": {"bit": 4}})
    with pytest.raises(RecipeError, match="Unknown kind of tensor 'activations'"):
        FixedPointSettings(types={"Conv2d": {"activations": TensorSetting()}})
    with pytest.raises(RecipeError, match="Unknown kind of tensor 'x'"):
        FixedPointSettings.from_dict({"sites": {"a": {"x": {}}}})
    with pytest.raises(RecipeError, match="it must be a table of"):
        FixedPointSettings.from_dict({"weight": 8})
    with pytest.raises(RecipeError, match="table of tables"):
        FixedPointSettings.from_dict({"sites": {"a": 8}})
    with pytest.raises(RecipeError, match="are not TOML"):
        settings_from_toml("weight = ")


def test_parameters_have_no_batch():
    with pytest.raises(RecipeError, match="weight cannot have the granularity 'batch'"):
        FixedPointSettings(weight=TensorSetting(granularity="batch"))
    with pytest.raises(RecipeError, match=r"sites\.a\.gradient"):
        FixedPointSettings(sites={"a": {"gradient": TensorSetting(granularity="batch")}})


def test_sites_win_over_types_and_later_patterns_over_earlier():
    two, three, four = (TensorSetting(bits=n) for n in (2, 3, 4))
    settings = FixedPointSettings(
        types={"Conv2d": {"weight": two}}, sites={"blocks": {"weight": three}, "blocks.1.*": {"weight": four}}
    )
    conv, linear = nn.Conv2d(1, 1, 1), nn.Linear(1, 1)
    assert settings.of("weight", site="stem", module=conv) == two
    assert settings.of("weight", site="stem", module=linear) == settings.weight
    assert settings.of("weight", site="blocks.0.conv", module=conv) == three
    assert settings.of("weight", site="blocks.1.conv", module=conv) == four
    assert settings.of("bias", site="blocks.1.conv", module=conv) == settings.bias


def test_a_subclass_follows_the_type_it_comes_from():
    class MyConv(nn.Conv2d):
        pass

    settings = FixedPointSettings(types={"Conv2d": {"weight": TensorSetting(bits=2)}})
    assert settings.of("weight", site="a", module=MyConv(1, 1, 1)).bits == 2

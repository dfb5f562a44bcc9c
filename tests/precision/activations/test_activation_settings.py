import pytest

from roundoff.errors import RecipeError
from roundoff.precision.activations.activation_settings import ActivationSettings, bits_by_site

SITES = [
    "<model>",
    "stem",
    "stem.0",
    "blocks",
    "blocks.0",
    "blocks.0.attn",
    "blocks.0.mlp",
    "blocks.1",
    "blocks.1.attn",
]


def test_one_number_is_for_every_site():
    assert bits_by_site(ActivationSettings(bits=2), SITES) == dict.fromkeys(SITES, 2)


def test_a_pattern_covers_what_is_inside_and_the_last_one_counts():
    bits = bits_by_site(ActivationSettings(bits={"*": 2, "blocks": 4, "blocks.*.attn": 8, "blocks.1": 32}), SITES)
    assert bits == {
        "<model>": 2,
        "stem": 2,
        "stem.0": 2,
        "blocks": 4,
        "blocks.0": 4,
        "blocks.0.attn": 8,
        "blocks.0.mlp": 4,
        "blocks.1": 32,
        "blocks.1.attn": 32,
    }


def test_sites_that_no_pattern_matches_are_kept_as_they_are():
    bits = bits_by_site(ActivationSettings(bits={"stem": 4}), SITES)
    assert bits["stem.0"] == 4
    assert bits["blocks.0"] == 32


def test_a_pattern_that_matches_no_site_is_an_error_that_names_near_ones():
    with pytest.raises(RecipeError) as raised:
        bits_by_site(ActivationSettings(bits={"*": 4, "block.0.attn": 8}), SITES)
    assert str(raised.value) == (
        "No site matches 'block.0.attn'.\n"
        "  why: the model has 9 sites; the closest are blocks.0.attn, blocks.1.attn, blocks.0.\n"
        "  fix: correct the pattern; `*` matches anything, and a site includes everything inside it."
    )


@pytest.mark.parametrize("bits", [0, 1, 3, 16, {"*": 5}])
def test_other_widths_are_refused(bits):
    with pytest.raises(RecipeError, match="use bits=2, 4, 8 or 32"):
        ActivationSettings(bits=bits)


@pytest.mark.parametrize("group", [0, 32, 100, 2048])
def test_other_groups_are_refused(group):
    with pytest.raises(RecipeError, match=f"groups of {group}"):
        ActivationSettings(group=group)

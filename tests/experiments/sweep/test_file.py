from pathlib import Path

import pytest

from roundoff.errors import SweepError
from roundoff.experiments.sweep.definition import Sweep, read_sweep


def sweep(folder: Path, text: str, name: str = "my.toml") -> Sweep:
    path = folder / name
    path.write_text(text)
    return read_sweep(path)


def error_of(folder: Path, text: str) -> str:
    with pytest.raises(SweepError) as raised:
        sweep(folder, text)
    return str(raised.value).replace(f"{folder}/", "")


def test_every_combination_is_a_training(tmp_path: Path):
    read = sweep(
        tmp_path,
        """
        description = "Two by two."
        [settings]
        data = "digits"
        epochs = 3
        [axes]
        recipe = ["fp32", "O2"]
        [axes.batch]
        small = { batch_size = 32, lr = 0.1 }
        large = { batch_size = 256, lr = 0.05 }
        """,
    )
    assert (read.name, read.description, read.axes) == ("my", "Two by two.", ("recipe", "batch"))
    assert [training.name for training in read.trainings] == ["fp32, small", "fp32, large", "O2, small", "O2, large"]
    last = read.trainings[-1].config
    assert (last.recipe, last.batch_size, last.lr, last.epochs) == ("O2", 256, 0.05, 3)


def test_settings_are_changed_without_editing_the_file(tmp_path: Path):
    path = tmp_path / "my.toml"
    path.write_text("[settings]\nwidth = 4\n[axes]\nseed = [0, 1]")
    (first, _) = read_sweep(path, changes=["limit=64", "width=8", "model=resnet20"]).trainings
    assert (first.config.limit, first.config.width, first.config.model) == (64, 8, "resnet20")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("limit", "--set limit has no value.\n  fix: for example --set data=fashion-mnist"),
        ("seed=3", "--set seed would change nothing.\n  why: an axis of 'my.toml' varies it."),
        ("limt=3", "--set has an unknown setting 'limt'."),
    ],
)
def test_a_change_that_does_nothing_is_an_error(tmp_path: Path, change: str, message: str):
    path = tmp_path / "my.toml"
    path.write_text("[axes]\nseed = [0, 1]")
    with pytest.raises(SweepError) as raised:
        read_sweep(path, changes=[change])
    assert str(raised.value).replace(f"{tmp_path}/", "").startswith(message)


def test_trainings_write_no_runs_and_use_one_thread(tmp_path: Path):
    (training,) = sweep(tmp_path, "[axes]\nseed = [1]").trainings
    assert (training.config.runs, training.config.threads) == (None, 1)


def test_several_tables_of_axes_are_added_up(tmp_path: Path):
    read = sweep(tmp_path, '[[axes]]\nrecipe = ["fp32"]\n[[axes]]\nrecipe = ["O2"]\nseed = [1, 2]')
    assert read.axes == ("recipe", "seed")
    assert [training.name for training in read.trainings] == ["fp32", "O2, 1", "O2, 2"]


def test_axes_put_a_recipe_together(tmp_path: Path):
    read = sweep(
        tmp_path,
        """
        settings.recipe = "fixed"
        [axes]
        bits.8 = {}
        bits.4.recipe.fixed.weight.bits = 4
        [axes.gradient]
        float.recipe.fixed.gradient.method = "none"
        """,
    )
    first, second = read.trainings
    assert first.recipe_toml is not None
    assert '[fixed.gradient]\nmethod = "none"' in first.recipe_toml
    assert second.recipe_toml is not None
    assert "[fixed.weight]\nbits = 4" in second.recipe_toml


def test_a_recipe_file_is_relative_to_the_sweep(tmp_path: Path):
    (tmp_path / "mine.toml").write_text('base = "O2"\nloss_scale = 8.0\n')
    (training,) = sweep(tmp_path, '[axes]\nrecipe = ["mine.toml"]').trainings
    assert training.recipe_toml is not None
    assert "initial = 8.0" in training.recipe_toml


def test_keys_depend_on_settings_and_nothing_else(tmp_path: Path):
    before = sweep(tmp_path, "[axes.lr]\na = 0.1\nb = 0.2").trainings
    after = sweep(tmp_path, "[axes.lr]\nrenamed = 0.1\nb = 0.3").trainings
    assert before[0].key == after[0].key
    assert before[1].key != after[1].key
    assert before[0].key != before[1].key


def test_a_changed_recipe_file_changes_the_key(tmp_path: Path):
    keys = set()
    for scale in (8.0, 16.0):
        (tmp_path / "mine.toml").write_text(f'base = "O2"\nloss_scale = {scale}\n')
        keys.add(sweep(tmp_path, '[axes]\nrecipe = ["mine.toml"]').trainings[0].key)
    assert len(keys) == 2


def test_loss_scale_has_words(tmp_path: Path):
    read = sweep(tmp_path, '[axes]\nloss_scale = ["dynamic", "none", "recipe", 128]')
    assert [training.config.loss_scale for training in read.trainings] == [0.0, None, "recipe", 128]


def test_only_keeps_what_a_pattern_matches(tmp_path: Path):
    read = sweep(tmp_path, '[axes]\nrecipe = ["O1", "O2"]\nseed = [1, 2]')
    assert [training.name for training in read.only("O2").trainings] == ["O2, 1", "O2, 2"]
    assert [training.name for training in read.only("seed=1").trainings] == ["O1, 1", "O2, 1"]
    assert [training.name for training in read.only("O?, 2").trainings] == ["O1, 2", "O2, 2"]


def test_a_pattern_that_matches_nothing_is_an_error(tmp_path: Path):
    with pytest.raises(SweepError) as raised:
        sweep(tmp_path, "[axes]\nseed = [1, 2, 3, 4, 5, 6, 7]").only("O9")
    assert str(raised.value) == (
        "No training of the sweep 'my' matches 'O9'.\n"
        "  why: they are: 1; 2; 3; 4; 5; 6; and 1 more.\n"
        "  fix: a pattern matches a label (O2), axis=label (recipe=O2) or all labels ('O2, *')."
    )


def test_an_unknown_setting_is_named_with_the_one_that_was_meant(tmp_path: Path):
    text = error_of(tmp_path, "settings.bacth_size = 3\n[axes]\nseed = [1]")
    assert text.startswith(
        "[settings] of 'my.toml' has an unknown setting 'bacth_size'.\n"
        "  why: settings are data, model, width, context, image_size, "
    )
    assert text.endswith("\n  fix: did you mean 'batch_size'?")


def test_an_unknown_setting_of_a_label_is_named_with_its_place(tmp_path: Path):
    text = error_of(tmp_path, "[axes.size]\nsmall = { widht = 3 }")
    assert text.startswith("Axis size = 'small' of 'my.toml' has an unknown setting 'widht'.\n")


def test_what_the_sweep_decides_cannot_be_set(tmp_path: Path):
    assert error_of(tmp_path, 'settings.runs = "here"\n[axes]\nseed = [1]') == (
        "[settings] of 'my.toml' cannot set 'runs'.\n  why: the sweep decides it for every training."
    )


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('epochs = "3"', "epochs = '3'.\n  why: it must be a whole number."),
        ("epochs = 1.5", "epochs = 1.5.\n  why: it must be a whole number."),
        ("epochs = true", "epochs = True.\n  why: it must be a whole number."),
        ('lr = "high"', "lr = 'high'.\n  why: it must be a number or a whole number."),
        ("fsdp = 1", "fsdp = 1.\n  why: it must be true or false."),
        ("data = 3", "data = 3.\n  why: it must be a text."),
        ('augment = "crop"', "augment = 'crop'.\n  why: it must be a list of texts."),
        (
            'loss_scale = "big"',
            "loss_scale = 'big'.\n  why: it must be dynamic, none, recipe, a number, or one of dynamic:apex, "
            "dynamic:torch, dynamic:mindspore, dynamic:fp16_optimizer.",
        ),
    ],
)
def test_a_value_of_the_wrong_type_is_an_error(tmp_path: Path, line: str, complaint: str):
    text = error_of(tmp_path, f"settings.{line}\n[axes]\nseed = [1]")
    assert text == f"'my.toml' at seed = 1 cannot set {complaint}"


def test_a_flavour_of_dynamic_loss_scaling_is_a_setting(tmp_path: Path):
    path = tmp_path / "my.toml"
    path.write_text('[settings]\nrecipe = "O2"\n[axes]\nloss_scale = ["dynamic:torch", "dynamic"]')
    assert [training.config.loss_scale for training in read_sweep(path).trainings] == ["dynamic:torch", 0.0]


def test_a_training_that_cannot_be_is_named_with_its_place(tmp_path: Path):
    assert error_of(tmp_path, "[axes]\nbatch_size = [64, 0]") == (
        "'my.toml' at batch_size = 0 is not a valid training: Invalid --batch-size '0'.\n  why: it must be at least 1."
    )


def test_an_unknown_recipe_is_named_with_its_place(tmp_path: Path):
    text = error_of(tmp_path, '[axes]\nrecipe = ["fp32", "O22"]')
    assert text.startswith("'my.toml' at recipe = O22 has an invalid recipe: No recipe 'O22'.\n")


def test_a_misspelt_fixed_point_setting_is_found_before_anything_is_trained(tmp_path: Path):
    text = error_of(tmp_path, '[axes.recipe]\na = { recipe = { base = "fixed", fixed.wieght.bits = 4 } }')
    assert text.startswith("'my.toml' at recipe = a has an invalid recipe: Unknown fixed-point setting 'wieght'.")


def test_a_misspelt_setting_of_a_recipe_is_found_before_anything_is_trained(tmp_path: Path):
    text = error_of(tmp_path, '[axes.recipe]\na = { recipe = { base = "O2", losscale = 8 } }')
    assert text.startswith("'my.toml' at recipe = a has an invalid recipe: an unknown setting 'losscale'.\n")


def test_an_unknown_optimizer_is_found_before_anything_is_trained(tmp_path: Path):
    text = error_of(tmp_path, '[axes]\noptimizer = ["sgd", "sgdd"]')
    assert text.startswith("'my.toml' at optimizer = sgdd is not a valid training: Invalid --optimizer 'sgdd'.\n")


def test_two_labels_with_the_same_settings_are_an_error(tmp_path: Path):
    assert error_of(tmp_path, "[axes.lr]\nlow = 0.1\nalso_low = 0.1") == (
        "'my.toml' would train the same thing twice: 'low' and 'also_low'.\n"
        "  why: their settings are equal once all axes are combined.\n"
        "  fix: remove one, or make their settings different."
    )


def test_a_setting_at_the_top_is_sent_to_its_place(tmp_path: Path):
    assert error_of(tmp_path, "epochs = 3\n[axes]\nseed = [1]") == (
        "'my.toml' has an unknown key 'epochs'.\n"
        "  why: known keys are name, description, settings, axes.\n"
        "  fix: put settings of the training under [settings]: epochs = ..."
    )


def test_a_name_that_is_no_folder_is_an_error(tmp_path: Path):
    assert error_of(tmp_path, 'name = "../up"\n[axes]\nseed = [1]') == (
        "Invalid name '../up' of the sweep in 'my.toml'.\n"
        "  why: it is the name of a folder: letters, digits, '-', '_' and '.'."
    )


def test_a_file_that_is_not_toml_is_an_error(tmp_path: Path):
    assert error_of(tmp_path, "axes = [").startswith("Sweep file 'my.toml' is not valid TOML.\n  why: ")


def test_a_missing_file_is_an_error(tmp_path: Path):
    with pytest.raises(SweepError, match="cannot be read"):
        read_sweep(tmp_path / "none.toml")

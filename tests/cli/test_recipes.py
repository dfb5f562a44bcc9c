import json
import subprocess
import sys
import tomllib

from click.testing import CliRunner, Result

from roundoff.cli import command_line
from roundoff.precision import find_recipe, known_recipes, recipe_named


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(command_line, ["recipes", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_lists_every_recipe_with_when_to_use_it():
    result = invoke()
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines[:-2]] == [recipe.name for recipe in known_recipes()]
    assert lines[0] == "fp32             plain fp32, also called O0: the reference to compare with"
    assert lines[-1] == "All settings of one: roundoff recipes show O2. What they mean: roundoff docs recipes"


def test_fits_a_hundred_columns():
    assert max(map(len, invoke().output.splitlines())) <= 100


def test_shows_a_recipe_as_toml_that_reads_back(tmp_path):
    path = tmp_path / "o2.toml"
    path.write_text(invoke("show", "O2").output)
    assert find_recipe(path) == recipe_named("O2")
    assert invoke("show", str(path)).output == path.read_text()


def test_shows_a_combination():
    output = invoke("show", "O2+act4").output
    assert 'name = "O2+act4"' in output
    assert "activation_bits = 4" in output
    assert tomllib.loads(invoke("show", "O2+adam8").output)["optimizer_states"] == ["adam8"]


def test_gives_json():
    assert [row["name"] for row in json.loads(invoke("--json").output)][:2] == ["fp32", "half"]
    assert json.loads(invoke("show", "O2", "--json").output)["loss_scale"]["initial"] == 65536.0


def test_an_unknown_recipe_is_an_error():
    result = invoke("show", "O5")
    assert result.exit_code == 2
    assert "RecipeError: No recipe 'O5'." in result.output


def test_its_help_costs_no_torch():
    code = (
        "import sys, roundoff.cli.recipes as r\n"
        "try: r.recipes_command(['--help'])\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert answer.stdout.splitlines()[-1] == "False"
    assert "Example: roundoff recipes show O2 > mine.toml" in answer.stdout


def test_says_whether_the_kernels_of_torchao_are_used_and_why_not(monkeypatch):
    monkeypatch.setattr("roundoff.cli.recipes.find_spec", lambda name: None if name == "torchao" else object())
    assert invoke("show", "nvfp4").output.startswith("# Arithmetic: emulated: torchao is not installed.\n")
    monkeypatch.setattr("roundoff.cli.recipes.find_spec", lambda name: object())
    assert invoke("show", "nvfp4").output.startswith("# Arithmetic: emulated: a CPU has no units for it.\n")
    assert invoke("show", "fixed").output.startswith("# Arithmetic: emulated on every device")

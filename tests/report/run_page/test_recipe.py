import dataclasses
from pathlib import Path

from roundoff.diagnose.diagnosis import RunView
from roundoff.precision import find_recipe, to_toml
from roundoff.report.run_page.setup import recipe_section
from roundoff.runs import CachedRun, OptimizerFacts, Structure
from tests.report.sample_runs import write_metrics_run
from tests.run_folders import write_run


def test_the_recipe_is_there_as_toml_to_train_with_again(tmp_path: Path):
    run = CachedRun.of(write_metrics_run(tmp_path / "run", [1.0], recipe="O2"))
    body = recipe_section(RunView(run=run, findings=[])).body
    assert "The model trained with the recipe O2." in body
    assert "<pre>name = &quot;mine&quot;\n</pre>" in body
    assert "<h3>SGD</h3>" in body
    assert "<dt>lr</dt><dd>0.1</dd>" in body


def test_a_recipe_that_only_the_script_knows_is_reported(tmp_path: Path):
    run = CachedRun.of(write_metrics_run(tmp_path / "run", [1.0]))
    assert "with a recipe that the script applied" in recipe_section(RunView(run=run, findings=[])).body


def test_without_one_it_says_so(tmp_path: Path):
    write_run(tmp_path / "run")
    body = recipe_section(RunView(run=CachedRun.open(tmp_path / "run"), findings=[])).body
    assert body.startswith("<p>No recipe was applied")


def applied(folder: Path, toml: str) -> str:
    write_run(folder, Structure(step=0, optimizers=(OptimizerFacts(name="SGD", groups=(), recipe=toml),)))
    return recipe_section(RunView(run=CachedRun.open(folder), findings=[])).body


def test_the_telling_settings_and_the_overrides_are_shown(tmp_path: Path):
    recipe = dataclasses.replace(find_recipe("O2"), overrides={"head": "fp32", "body.<b>:bmm": "fp32"})
    body = applied(tmp_path / "run", to_toml(recipe))
    assert "<dt>weights</dt><dd>fp16</dd>" in body
    assert "<dt>loss scale</dt><dd>dynamic, from 65536</dd>" in body
    assert '<td data-value="body.&lt;b&gt;:bmm">body.&lt;b&gt;:bmm</td><td data-value="fp32">fp32</td>' in body
    assert "2 overrides" in body


def test_a_recipe_without_overrides_says_so(tmp_path: Path):
    assert "The recipe has no overrides" in applied(tmp_path / "run", to_toml(find_recipe("O2")))


def test_the_plan_next_to_the_run_says_why(tmp_path: Path):
    toml = 'weights = "fp16"\n[overrides]\nhead = "fp32"\n'
    (tmp_path / "plan-1").mkdir()
    (tmp_path / "plan-1" / "plan.json").write_text("{}")
    planned = f"# verified <3>\n\n{toml}".replace("head =", "# overflow: it reaches 1e6\nhead =")
    (tmp_path / "plan-1" / "recipe.toml").write_text(planned)
    body = applied(tmp_path / "run", toml)
    assert "<pre>verified &lt;3&gt;</pre>" in body
    assert '<td data-value="overflow: it reaches 1e6">overflow: it reaches 1e6</td>' in body

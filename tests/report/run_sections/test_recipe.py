from pathlib import Path

from tests.report.sample_runs import write_metrics_run

from roundoff.report.run_sections.recipe import recipe_section
from roundoff.report.run_view import RunView
from roundoff.runs import KeptRun, RunInfo, RunWriter


def test_the_recipe_is_there_as_toml_to_train_with_again(tmp_path: Path):
    run = KeptRun.of(write_metrics_run(tmp_path / "run", [1.0], recipe="O2"))
    body = recipe_section(RunView(run=run, findings=[])).body
    assert "The model trained by the recipe O2." in body
    assert "<pre>name = &quot;mine&quot;\n</pre>" in body
    assert "<h3>SGD</h3>" in body
    assert "<dt>lr</dt><dd>0.1</dd>" in body


def test_a_recipe_that_only_the_script_knows_is_told(tmp_path: Path):
    run = KeptRun.of(write_metrics_run(tmp_path / "run", [1.0]))
    assert "by a recipe that the script applied" in recipe_section(RunView(run=run, findings=[])).body


def test_without_one_it_says_so(tmp_path: Path):
    RunWriter.create(tmp_path / "run", RunInfo()).close()
    body = recipe_section(RunView(run=KeptRun.open(tmp_path / "run"), findings=[])).body
    assert body.startswith("<p>No recipe was applied")

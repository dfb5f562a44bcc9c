"""A training in a real notebook: cells are named, run twice, and show what was found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

SETUP = """
import torch
from torch import nn
from roundoff import Run, watching, recording
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watching import watching_with

def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        x = torch.randn(4, 2)
        loss = torch.log(model(x).mean() * (-1 if step == 2 else 0) + (0 if step == 2 else 1.0))
        loss.backward()
        optimizer.step()
"""
TRAINING = """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 2), nn.Softplus())
with watching_with(WatchSettings(probe_seconds=0), model, to="runs/a") as watch:
    train(model)
watch
"""
RECORDING = """
with recording(model, to="runs/a", steps=[0]):
    train(model)
"""
SHOWN = """
from roundoff.compare import compare_curves, read_curve
from IPython.display import display
run = Run.open("runs/a")
print(repr(watch), repr(run), repr(watch.findings[0]), sep="\\n")
display(run, watch.findings[0], compare_curves(*[read_curve("curve.csv")] * 2), run.page())
"""


@pytest.mark.slow
def test_a_notebook_names_its_cells_runs_them_twice_and_shows_findings_runs_comparisons_and_the_page(
    tmp_path: Path,
) -> None:
    (tmp_path / "curve.csv").write_text("step,loss\n" + "".join(f"{step},{1 / (step + 1)}\n" for step in range(20)))
    outputs = _run([SETUP, TRAINING, TRAINING, RECORDING, SHOWN], tmp_path)
    first, second = (_html(outputs[number]) for number in (1, 2))
    assert "In[1]:12" in first[-1]
    assert "&gt; 12 |" in first[-1]
    assert "torch.log(" in first[-1]
    assert "runs/a</code>" in first[-1]
    assert "runs/a-1</code>" in second[-1]
    assert (tmp_path / "runs" / "a-2" / "run.json").exists()
    words = next(output["text"] for output in outputs[4] if output.get("name") == "stdout").splitlines()
    assert re.fullmatch(r"<Watch .*/runs/a-1: 3 steps, \d findings?>", words[0])
    assert words[1] == "<Run runs/a: finished>"
    assert words[2].startswith("<Finding domain-error, ")
    run, finding, comparison, page = _html(outputs[4])
    assert "domain-error" in run
    assert "domain-error" in finding
    assert 'class="verdict"' in comparison
    assert page.startswith("<iframe srcdoc=")
    assert "runs/a" in page


def _run(sources: list[str], folder: Path) -> list[list[dict[str, Any]]]:
    """Run the cells in one kernel, and return the outputs of each."""
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    kernel = {"name": "python3", "display_name": "Python"}
    notebook.metadata.kernelspec = kernel
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell["outputs"] for cell in notebook.cells]


def _html(outputs: list[dict[str, Any]]) -> list[str]:
    return [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]

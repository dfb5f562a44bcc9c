"""The section of the data: samples as pictures or words, with labels, counts and order."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from roundoff.diagnose.diagnosis import RunView
from roundoff.report.run_page.section import Section
from roundoff.report.run_page.training_data import data_section
from roundoff.runs import CachedRun, Run
from roundoff.watch.watching import watching
from tests.report.sample_runs import write_metrics_run


def section_of(run: Run) -> Section | None:
    return data_section(RunView(run=CachedRun.of(run), findings=()))


def train(folder: Path, x: Tensor, *, kept_batches: int = 2) -> Section:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    if not x.is_floating_point():
        model = nn.Sequential(nn.Embedding(256, 2), *model)
    model(x[:1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(to=folder, kept_batches=kept_batches):
        for given, labels in DataLoader(TensorDataset(x, torch.arange(len(x)) % 3), batch_size=10):
            optimizer.zero_grad()
            F.cross_entropy(model(given), labels).backward()
            optimizer.step()
    section = section_of(Run.open(folder))
    assert section is not None
    return section


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Section:
    torch.manual_seed(1)
    return train(tmp_path_factory.mktemp("images") / "run", torch.rand(30, 1, 8, 8))


def test_samples_are_drawn_with_their_labels(images: Section):
    figures = re.findall(r'<figure><img src="data:image/png;base64,[^"]+" alt="([^"]+)".*?</figure>', images.body)
    assert len(figures) == 16
    assert figures[:3] == ["sample 0, label 0", "sample 1, label 1", "sample 2, label 2"]
    assert "Step 1, &lt;model&gt;[0], the first 8 samples: 1 x 8 x 8, from black " in images.body


def test_tensors_channels_and_epochs_have_their_tables(images: Section):
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", images.body)]
    assert [row[:3] for row in rows if row[:1] in (["&lt;model&gt;[0]"], ["target"])] == [
        ["&lt;model&gt;[0]", "10 x 1 x 8 x 8", "float32"],
        ["target", "10", "int64"],
    ]
    assert rows[-1] == ["0", "0 to 2", "SequentialSampler", "", "30", "0"]


def test_labels_are_drawn_as_bars(images: Section):
    bars = images.data["labels"]["data"][0]
    assert (bars["x"], bars["y"]) == (["0", "1", "2"], [10, 10, 10])
    assert [len(trace["x"]) for trace in images.data["ranges"]["data"]] == [3, 3, 3]


def test_texts_are_shown_as_texts_and_stay_text(tmp_path: Path):
    text = torch.tensor(list(b"<script>alert(1)</script>" * 20))
    section = train(tmp_path / "a", text.reshape(20, 25))
    assert "<q>&lt;script&gt;alert(1)&lt;/script&gt;</q>" in section.body
    assert "<script>" not in section.body


def test_without_samples_the_section_says_how_to_keep_some(tmp_path: Path):
    section = train(tmp_path / "a", torch.rand(20, 4), kept_batches=0)
    assert "No samples were saved" in section.body
    assert "labels" in section.data


def test_a_run_that_noted_no_data_has_no_section(tmp_path: Path):
    assert section_of(write_metrics_run(tmp_path / "a", [1.0])) is None

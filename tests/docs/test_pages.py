"""Pages about the reader's own files and models do what they say, block by block, with some made here."""

from pathlib import Path

import pytest

from tests.pages import ROOT, blocks_of, run_page

CURVES = """
import json, math, random

random.seed(0)
noise = [random.gauss(0, 0.02) for _ in range(100)]
with open("a.csv", "w") as table, open("b.jsonl", "w") as lines:
    print("step,loss", file=table)
    for step in range(100):
        print(f"{step},{2.3 * math.exp(-step / 65) * (1 + noise[step])}", file=table)
        loss = 2.3 * math.exp(-step / (65 if step < 5 else 25)) * (1 + random.gauss(0, 0.02))
        print(json.dumps({"step": step, "loss": loss if step else 2.3 * (1 + noise[0])}), file=lines)
"""
MODELS = """
import roundoff
import torch
from torch import nn


def built(eps):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4, eps=eps), nn.ReLU(), nn.Flatten(), nn.Linear(3600, 10))


def my_accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean().item()


torch.manual_seed(0)
reference, candidate, their_accuracy = built(1e-5), built(1e-2), my_accuracy
inputs = torch.randn(4, 3, 32, 32)
my_loader = [(torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))) for _ in range(3)]
their_loader = my_loader[:2]
"""
RECIPES = """
import torch
from roundoff import apply_recipe
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.mlp = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.mlp(self.attn(x).relu())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.blocks(x))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [(torch.randn(16, 8), torch.randint(0, 4, (16,))) for _ in range(3)]
criterion = nn.CrossEntropyLoss()
models = [nn.Linear(8, 4), nn.Linear(8, 4)]
optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]
x, y = loader[0]
"""
SHARED_SCALE = """
import torch
from torch import nn

class Scale(nn.Module):
    def forward(self, x):
        scale = x.detach().abs().max() / 7
        return scale * (x / scale).round()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), Scale(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(6, 4) * torch.tensor([9.0, 1, 1, 1, 1, 1])[:, None]).square().mean().backward()
optimizer.step()
"""
ENGINES = f"""
from pathlib import Path
Path("train.py").write_text({SHARED_SCALE!r})
import numpy as np
import torch
from torch import nn

generator = np.random.default_rng(0)
logits = torch.from_numpy(generator.normal(0, 3, (64, 100, 200)))
uniform = torch.from_numpy(generator.uniform(size=(64, 100, 1)))
tokens = ((logits / 0.7).softmax(-1).cumsum(-1) < uniform).sum(-1).clamp(max=199)
ids, policy, top = list(range(64)), nn.Linear(4, 4).bfloat16(), logits.log_softmax(-1).topk(20)
logprobs, engine_logprobs = (
    values.log_softmax(-1).gather(-1, tokens[..., None])[..., 0].float() for values in (logits, logits / 0.7)
)
"""
GIVEN = {
    "comparing-curves.md": CURVES,
    "comparing-engines.md": ENGINES,
    "comparing-models.md": MODELS,
    "recipes.md": RECIPES,
}


@pytest.mark.parametrize("name", GIVEN)
def test_the_page_does_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks_of((ROOT / "docs" / name).read_text()):
        run_page(f"```python{GIVEN[name]}```\n```{block.language}\n{block.text}```\n", name=name)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_every_page_that_tells_what_to_type_is_run_by_some_test(page: Path):
    reported = [block for block in blocks_of(page.read_text()) if block.language in ("python", "console", "sh")]
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if page.name in path.read_text()]
    assert tests or not reported

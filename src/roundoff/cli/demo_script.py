"""Reads handwritten digits with a small attention net, at the given precision: python digits.py RECIPE.

There is a mistake in it that fp32 forgives, and fp16 does not. `roundoff demo` makes a copy of this file and finds it.
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from roundoff.precision import RecipeOptimizer, apply_recipe
from roundoff.train.digits import train_test

WIDTH = 32
BRIGHTEST = 255.0
NUM_EPOCHS = 5


class Attention(nn.Module):
    """Lets every row of pixels look at the others."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        """Return for every row what it has seen."""
        q, k, v = self.qkv(rows).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2)
        seen: Tensor = self.out((scores / BRIGHTEST**2).softmax(-1) @ v)
        return seen


class Reader(nn.Module):
    """Reads a digit row by row: eight rows of eight pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.attention = Attention()
        self.head = nn.Linear(8 * WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return ten numbers a picture, the largest in the place of its digit."""
        rows = self.embed(BRIGHTEST * images.squeeze(1))
        rows = rows + self.attention(rows)
        scores: Tensor = self.head(F.relu(rows / BRIGHTEST).flatten(1))
        return scores.float()


def loss_of(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return how wrong the model is."""
    return F.cross_entropy(model(images), labels)


def build(recipe: str = "half") -> tuple[nn.Module, RecipeOptimizer, Callable[..., Tensor]]:
    """Return what a step is made of; `roundoff replay` runs one again with it."""
    torch.manual_seed(0)
    model = Reader()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    # Native: a CPU computes in fp16 itself, as a GPU would, instead of rounding fp32.
    return *apply_recipe(model, sgd, recipe, arithmetic="native"), loss_of


def main(recipe: str) -> None:
    """Train, and say how many of the digits that were held back are read."""
    seen, held_back = train_test()
    model, optimizer, _ = build(recipe)
    for epoch in range(NUM_EPOCHS):
        for images, labels in DataLoader(seen, batch_size=64, shuffle=True, drop_last=True):
            loss = loss_of(model, images, labels)
            optimizer.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        print(f"epoch {epoch + 1}/{NUM_EPOCHS}  loss {loss.item():.4f}")
    images, labels = held_back.tensors
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean()
    print(f"accuracy {100 * right.item():.1f} %")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "fp32")

"""The training loader is passed to the evaluation, too, and that of the validation data is never used."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def generate(count):
    x = torch.randn(count, 10)
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long())


train_loader = DataLoader(generate(320), 32, shuffle=True)
val_loader = DataLoader(generate(96), 32)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), 5e-3)


def run(loader, train):
    model.train(train)
    right = 0
    with torch.set_grad_enabled(train):
        for x, y in loader:
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            if train:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            right += (out.argmax(1) == y).sum().item()
    return right / len(loader.dataset)


for _ in range(6):
    print(run(train_loader, True), run(train_loader, False))

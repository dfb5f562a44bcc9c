"""Trains a graph network: features and neighbours are sparse tensors."""

import sys

import torch


class Graph(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.randn(6, 8) / 3)
        self.second = torch.nn.Parameter(torch.randn(8, 3) / 3)

    def forward(self, x: torch.Tensor, neighbours: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(torch.sparse.mm(neighbours, torch.sparse.mm(x, self.first)))
        return torch.log_softmax(torch.sparse.mm(neighbours, hidden @ self.second), dim=1)


torch.manual_seed(0)
features = torch.rand(12, 6).clamp(min=0.6).sub(0.6).to_sparse()
neighbours = (torch.eye(12) + (torch.rand(12, 12) < 0.2)).to_sparse()
labels = torch.arange(12) % 3
model = Graph()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(8):
    loss = torch.nn.functional.nll_loss(model(features, neighbours)[:8], labels[:8])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])

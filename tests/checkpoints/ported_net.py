"""The net in samples/ported, as PyTorch has it."""

from torch import nn


class PortedNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3)
        self.bn2 = nn.BatchNorm2d(4)
        self.embed = nn.Embedding(7, 8)
        self.norm = nn.LayerNorm(8)
        self.fc1 = nn.Linear(8, 8)
        self.fc2 = nn.Linear(8, 5)

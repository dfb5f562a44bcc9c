"""The net as it was written again for PyTorch. As a program it saves the net untrained: `python model.py`."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.stem_norm = nn.BatchNorm2d(4)
        self.body = nn.Conv2d(4, 4, 3)
        self.body_norm = nn.BatchNorm2d(4)
        self.words = nn.Embedding(7, 8)
        self.word_norm = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.save(Net().state_dict(), "untrained.pth")

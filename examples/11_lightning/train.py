"""A LightningModule that keeps its layers in a list of Python."""

import logging
import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from roundoff.watch.lightning import WatchCallback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        layers = [nn.Linear(16, 32), nn.Linear(32, 32)]
        self.blocks = nn.ModuleList(layers) if "mended" in sys.argv else layers
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x).relu()
        return self.head(x)

    def training_step(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


torch.manual_seed(0)
labels = torch.randint(0, 4, (640,))
points = torch.randn(4, 16)[labels] + 0.5 * torch.randn(640, 16)
loader = DataLoader(TensorDataset(points, labels), batch_size=32, shuffle=True)
trainer = lightning.Trainer(
    max_epochs=2, callbacks=[WatchCallback()], logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, accelerator="cpu",
)  # fmt: skip
trainer.fit(Classifier(), loader)

"""The energy of 16-bit sound is computed by a data set that squares the samples as they are."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sounds(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.loud = torch.randint(0, 2, (256,), generator=generator)
        noise = torch.randn(256, 400, generator=generator)
        self.waves = (noise * (300 + 2000 * self.loud[:, None])).to(torch.int16)

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, index):
        frames = self.waves[index].view(20, 20)
        energy = (frames * frames).float().mean(1)
        return energy.abs().add(1).log() / 10, self.loud[index]


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for epoch in range(4):
    for sounds, loud in DataLoader(Sounds(), batch_size=32, shuffle=True):
        loss = nn.functional.cross_entropy(net(sounds), loud)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

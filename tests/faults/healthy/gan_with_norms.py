"""Two convolutional networks play against each other, with labels that are constant in each half of a step."""

import torch
from torch import nn

generator = nn.Sequential(
    nn.Linear(8, 4 * 16), nn.Unflatten(1, (4, 4, 4)), nn.BatchNorm2d(4), nn.ReLU(), nn.Upsample(scale_factor=2),
    nn.Conv2d(4, 1, 3, padding=1), nn.Tanh(),
)  # fmt: skip
critic = nn.Sequential(
    nn.Conv2d(1, 8, 3, stride=2), nn.LeakyReLU(0.2), nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(8 * 9, 1)
)
makes = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
judges = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
for step in range(80):
    real = torch.randn(24, 1, 1, 1).sign() * torch.ones(24, 1, 8, 8) * 0.8 + 0.1 * torch.randn(24, 1, 8, 8)
    fake = generator(torch.randn(24, 8))
    judges.zero_grad()
    loss = criterion(critic(real), torch.full((24, 1), 0.9)) + criterion(critic(fake.detach()), torch.zeros(24, 1))
    loss.backward()
    judges.step()
    makes.zero_grad()
    criterion(critic(fake), torch.ones(24, 1)).backward()
    makes.step()

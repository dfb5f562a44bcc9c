"""Pictures and styles come from two loaders; the last batch of styles has one left, which all pictures get."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Stylist(nn.Module):
    def __init__(self):
        super().__init__()
        self.content, self.style = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(3, 12, 3, padding=1)
        self.out = nn.Conv2d(12, 3, 3, padding=1)

    def forward(self, pictures, styles):
        mood = self.style(styles).mean((2, 3), keepdim=True)
        return self.out(torch.relu(self.content(pictures) * mood))


torch.manual_seed(0)
stylist = Stylist()
optimizer = torch.optim.Adam(stylist.parameters(), lr=2e-3)
pictures = DataLoader(TensorDataset(torch.rand(48, 3, 8, 8)), batch_size=8, shuffle=True)
styles = DataLoader(TensorDataset(torch.rand(41, 3, 8, 8)), batch_size=8, shuffle=True)
for epoch in range(4):
    for (picture,), (style,) in zip(pictures, styles, strict=True):
        made = stylist(picture, style)
        wanted = picture * style.mean((2, 3), keepdim=True)
        loss = nn.functional.mse_loss(made, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

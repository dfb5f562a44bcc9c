"""Logarithms of probabilities, one per move, that are gathered into a new tensor: only the values of states learn."""

import warnings

import torch
from torch import nn
from torch.distributions import Categorical

warnings.simplefilter("ignore")


class Player(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
        self.moves = nn.Linear(32, 3)
        self.worth = nn.Linear(32, 1)

    def forward(self, state):
        features = self.body(state)
        return Categorical(logits=self.moves(features)), self.worth(features)[0]


torch.manual_seed(0)
player = Player()
optimizer = torch.optim.Adam(player.parameters(), lr=3e-3)
for episode in range(60):
    chances, worths, rewards = [], [], []
    for move in range(20):
        state = torch.randn(6)
        choices, worth = player(state)
        action = choices.sample()
        chances.append(choices.log_prob(action))
        worths.append(worth)
        rewards.append(float(action == state[:3].argmax()))
    rewards, worths = torch.tensor(rewards), torch.stack(worths)
    gain = rewards - worths.detach()
    loss = -(torch.tensor(chances) * gain).mean() + 0.5 * nn.functional.mse_loss(worths, rewards)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

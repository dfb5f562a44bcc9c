"""An actor is trained through the critic first; its gradients stay in the critic."""

import torch
from torch import nn

torch.manual_seed(2)


class Agent:
    def __init__(self):
        self.actor = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=1e-3)

    def update(self, state, action, reward):
        self.actor_opt.zero_grad()
        self.critic_opt.zero_grad()
        actor_loss = -self.critic(torch.cat([state, self.actor(state)], 1)).mean()
        actor_loss.backward()
        self.actor_opt.step()
        value = self.critic(torch.cat([state, action], 1))
        critic_loss = nn.functional.mse_loss(value, reward)
        critic_loss.backward()
        self.critic_opt.step()
        return actor_loss.item(), critic_loss.item()


agent = Agent()
for step in range(200):
    state = torch.randn(64, 3)
    action = torch.rand(64, 1) * 2 - 1
    reward = -((action - state[:, :1].clamp(-1, 1)) ** 2)
    losses = agent.update(state, action, reward)
    if step % 20 == 0:
        print(step, *losses)

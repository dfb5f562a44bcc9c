"""Trainings of many kinds, each a loop as users write it: `python benchmarks/loops.py KIND NUM_STEPS [MARKS_FILE]`.

The script knows nothing of roundoff. Into the marks file it writes the CPU time at which it reached each of some steps.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import STEPS

Loop = Callable[[], object]
"""Does one step of the loop."""


def mlp(width: int, num_hidden: int = 2, num_inputs: int = 16, num_outputs: int = 4) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(num_inputs, width), nn.Tanh()]
    for _ in range(num_hidden - 1):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, num_outputs))


def small_gpt() -> Loop:
    """A step of about 10 ms."""
    from models import Gpt

    model = Gpt(vocabulary=200, width=96, layers=3, length=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        ids = torch.randint(0, 200, (4, 65))
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def small_mlp() -> Loop:
    """A step of about 0.5 ms."""
    model, criterion = mlp(64), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    return step


def ppo() -> Loop:
    """Collects 128 actions without gradients, then makes 16 updates; all of that is one step here."""
    actor, critic = mlp(64), mlp(64, num_outputs=1)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=2.5e-4, eps=1e-5)

    def act(observed: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        choice = torch.distributions.Categorical(logits=actor(observed))
        action = choice.sample() if action is None else action
        return action, choice.log_prob(action), choice.entropy(), critic(observed)

    def step() -> None:
        seen, actions = torch.zeros(128, 4, 16), torch.zeros(128, 4, dtype=torch.long)
        chances, values, rewards = torch.zeros(128, 4), torch.zeros(128, 4), torch.zeros(128, 4)
        observed = torch.randn(4, 16)
        for place in range(128):
            seen[place] = observed
            with torch.no_grad():
                action, chance, _, value = act(observed)
                values[place] = value.flatten()
            actions[place], chances[place] = action, chance
            rewards[place] = torch.tensor([random.random() for _ in range(4)])
            observed = torch.Tensor([[random.random() for _ in range(16)] for _ in range(4)])
        returns = rewards.flip(0).cumsum(0).flip(0) / 128
        flat = [x.flatten(0, 1) for x in (seen, actions, chances, returns - values, returns)]
        for _ in range(4):
            for rows in torch.randperm(512).split(128):
                some_seen, some_actions, some_chances, advantages, some_returns = (x[rows] for x in flat)
                _, chance, entropy, value = act(some_seen, some_actions)
                ratio = (chance - some_chances).exp()
                clipped = ratio.clamp(0.8, 1.2)
                policy_loss = torch.max(-advantages * ratio, -advantages * clipped).mean()
                value_loss = 0.5 * ((value.flatten() - some_returns) ** 2).mean()
                optimizer.zero_grad()
                (policy_loss - 0.01 * entropy.mean() + 0.5 * value_loss).backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()

    return step


def dqn() -> Loop:
    """Acts with gradients on, as many scripts do; the first 3,000 steps only act, then every tenth one learns."""
    model, target = mlp(84), mlp(84)
    target.load_state_dict(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=2.5e-4)
    memory: list[tuple[list[float], int, float]] = []
    number = 0

    def step() -> None:
        nonlocal number
        observed = [random.random() for _ in range(16)]
        values = model(torch.Tensor([observed]))
        action = int(torch.argmax(values, dim=1).numpy()[0])
        memory.append((observed, action, random.random()))
        number += 1
        if number > 3000 and number % 10 == 0:
            batch = random.choices(memory, k=64)
            seen = torch.tensor([one[0] for one in batch])
            with torch.no_grad():
                best, _ = target(seen).max(dim=1)
                wanted = torch.tensor([one[2] for one in batch]) + 0.99 * best
            old = model(seen).gather(1, torch.tensor([[one[1]] for one in batch])).squeeze()
            loss = F.mse_loss(wanted, old)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return step


def reinforce() -> Loop:
    """Acts 500 times with gradients, and then goes backward through all of it."""
    model = mlp(64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        chances = []
        for _ in range(500):
            choice = torch.distributions.Categorical(logits=model(torch.randn(1, 16)))
            chances.append(choice.log_prob(choice.sample()))
        returns = torch.rand(500).cumsum(0)
        loss = torch.cat([-chance * gain for chance, gain in zip(chances, returns, strict=True)]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def ode() -> Loop:
    """Solves a differential equation by Runge-Kutta: the model runs 2,000 times a step, and plain functions too."""
    model = mlp(50, num_hidden=1, num_inputs=2, num_outputs=2)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    start = torch.randn(20, 2)
    width = 1 / 500

    def step() -> None:
        state = start
        for _ in range(500):
            first = model(state**3)
            second = model((state + width * first / 2) ** 3)
            third = model((state + width * second / 2) ** 3)
            fourth = model((state + width * third) ** 3)
            state = state + width * (first + 2 * second + 2 * third + fourth) / 6
        loss = (state - start.flip(0)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def lbfgs() -> Loop:
    """Fits sines by LBFGS: each step calls its closure 20 times, and that two LSTM cells at 100 moments one by one."""

    class Forecaster(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.LSTMCell(1, 24), nn.LSTMCell(24, 24), nn.Linear(24, 1)

        def forward(self, values: Tensor) -> Tensor:
            zeros = torch.zeros(len(values), 24)
            (h1, c1), (h2, c2) = (zeros, zeros), (zeros, zeros)
            outputs = []
            for value in values.split(1, dim=1):
                h1, c1 = self.first(value, (h1, c1))
                h2, c2 = self.second(h1, (h2, c2))
                outputs.append(self.head(h2))
            return torch.cat(outputs, dim=1)

    model, criterion = Forecaster(), nn.MSELoss()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3)
    waves = torch.sin(torch.arange(101) / 10 + 6.3 * torch.rand(8, 1))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = criterion(model(waves[:, :-1]), waves[:, 1:])
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


def manual() -> Loop:
    """A loop without an optimizer."""
    model = mlp(64)

    def step() -> None:
        x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None

    return step


def tiny() -> Loop:
    """A step as small as a step can be."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(4, 2), torch.randn(4, 1)

    def step() -> None:
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()

    return step


def gpt2() -> Loop:
    """A GPT with 124 million parameters on 4 sequences of 64 tokens."""
    from models import Gpt

    model = Gpt(vocabulary=50257, width=768, layers=12, length=1024)
    model.head.weight = model.tokens.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        ids = torch.randint(0, 50257, (4, 65))
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


LOOPS: dict[str, Callable[[], Loop]] = {
    "resnet": lambda: STEPS["ResNet"]()[1],
    "gpt": lambda: STEPS["GPT"]()[1],
    "small-gpt": small_gpt,
    "small-mlp": small_mlp,
    "ppo": ppo,
    "dqn": dqn,
    "reinforce": reinforce,
    "ode": ode,
    "lbfgs": lbfgs,
    "manual": manual,
    "tiny": tiny,
    "gpt2": gpt2,
}


def main() -> None:
    kind, num_steps = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    step = LOOPS[kind]()
    wanted = {0, 1, 2, 20, *(num_steps * part // 50 for part in range(25, 51))}
    marks: dict[int, float] = {}
    for number in range(num_steps + 1):
        if number in wanted:
            marks[number] = time.process_time()
        if number < num_steps:
            step()
    if len(sys.argv) > 3:
        Path(sys.argv[3]).write_text(json.dumps(marks))


if __name__ == "__main__":
    main()

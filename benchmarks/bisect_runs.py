"""How many trainings it takes to find the sites that spoil one, besides the two outer runs.

Without a prior, over all places where the culprits can stand. With the prior, on a real net in which fp16 overflows at
the culprits: one step of the fp32 training is measured, its suspects come first, and a judge really trains.

Must: one among 26 / 100 sites in 8 / 10 runs, two among 50 in 25. Towards: 3 with the prior.

python benchmarks/bisect_runs.py [--json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from roundoff.experiments.bisect.candidates import candidates_from_step
from roundoff.experiments.bisect.smallest import smallest_wide
from roundoff.precision import apply_recipe
from roundoff.sensitivity import measuring_sensitivity

MUST_RUNS = {(1, 26): 8, (1, 100): 10, (2, 50): 25}
NUM_PLACEMENTS_WITH_PRIOR = 20
NUM_FEATURES = 8
NUM_STEPS = 2

Places = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What searches for some culprits among some sites cost."""

    num_culprits: int
    num_sites: int
    prior: str
    num_searches: int
    worst: int
    mean: float

    @property
    def misses(self) -> bool:
        """Whether the bar is missed."""
        return self.worst > MUST_RUNS[self.num_culprits, self.num_sites]


def main() -> None:
    """Print a line for every number of culprits and sites, with and without the prior."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = [cost for culprits, sites in MUST_RUNS for cost in costs(culprits, sites)]
    if arguments.json:
        print(json.dumps([asdict(each) for each in found]))
    else:
        print("culprits  sites  prior     searches  worst  mean  must")
        for each in found:
            print(
                f"{each.num_culprits:8}  {each.num_sites:5}  {each.prior:8}  {each.num_searches:8}  {each.worst:5}  "
                f"{each.mean:4.1f}  {MUST_RUNS[each.num_culprits, each.num_sites]:4}"
                f"{'  misses its bar' if each.misses else ''}"
            )
        print("towards 3 with the prior")
    sys.exit(1 if any(each.misses for each in found) else 0)


def costs(num_culprits: int, num_sites: int) -> Iterable[Cost]:
    """Search without a prior for culprits anywhere, and with it for some of them."""
    everywhere = list(itertools.combinations(range(num_sites), num_culprits))
    some = random.Random(0).sample(everywhere, min(NUM_PLACEMENTS_WITH_PRIOR, len(everywhere)))
    for prior, search, placements in (("none", without_prior, everywhere), ("measured", with_prior, some)):
        runs = [search(places, num_sites) for places in placements]
        yield Cost(
            num_culprits=num_culprits,
            num_sites=num_sites,
            prior=prior,
            num_searches=len(runs),
            worst=max(runs),
            mean=statistics.mean(runs),
        )


def without_prior(places: Places, num_sites: int) -> int:
    """Search for sites that stand anywhere in the order of the model; return the number of runs."""
    wanted = frozenset(map(str, places))
    return searched([str(number) for number in range(num_sites)], wanted, lambda wide: wanted <= wide)


def with_prior(places: Places, num_sites: int) -> int:
    """Search in a real net in the order that one measured step gives; return the number of runs."""

    def is_good(wide: frozenset[str]) -> bool:
        model, optimizer = apply_recipe(*net(places, num_sites), "half", overrides=dict.fromkeys(wide, "fp32"))
        return all(math.isfinite(loss) for loss in losses(model, optimizer.backward, optimizer))

    model, optimizer = net(places, num_sites)
    with measuring_sensitivity(step=0, formats=["fp16"]) as measured:
        losses(model, Tensor.backward, optimizer)
    sites = {name: type(module).__name__ for name, module in model.named_children()}
    candidates = candidates_from_step(measured.sensitivity, sites=sites, fmt="fp16")
    return searched(candidates.modules, frozenset(map(str, places)), is_good)


def searched(sites: Sequence[str], wanted: frozenset[str], is_good: Callable[[frozenset[str]], bool]) -> int:
    """Return how many runs it takes, besides the outer two, to find exactly the culprits."""
    found = smallest_wide(sites, is_good)
    assert frozenset(found.sites) == wanted, (found.sites, wanted)
    assert found.is_minimal
    return found.num_runs - 2


class Calm(nn.Module):
    """A residual layer that any format can compute."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(NUM_FEATURES, NUM_FEATURES) / NUM_FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        """Add a bounded function of `x` to it."""
        return x + torch.tanh(x @ self.weight) / 4


class Hot(Calm):
    """The same by way of numbers that are beyond fp16."""

    def forward(self, x: Tensor) -> Tensor:
        """Scale up and down again: of no consequence in fp32."""
        return x + (torch.tanh(x @ self.weight) * 1e6) / 4e6


def net(places: Places, num_sites: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a net with culprits at these places, and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Hot() if number in places else Calm() for number in range(num_sites)))
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def losses(model: nn.Module, backward: Callable[[Tensor], None], optimizer: torch.optim.Optimizer) -> list[float]:
    """Train a little."""
    torch.manual_seed(1)
    found = []
    for _ in range(NUM_STEPS):
        x = torch.randn(16, NUM_FEATURES)
        loss = (model(x) - x.roll(1, 1)).square().mean()
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


if __name__ == "__main__":
    main()

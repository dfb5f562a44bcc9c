"""Trains with copied and with sharded weights, stops and resumes: `torchrun … sharded_trainings.py OUT`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from roundoff.train import TrainConfig, train


def main() -> None:
    out = Path(sys.argv[1])
    for recipe in ("fp32", "O2", "fixed"):
        config = TrainConfig(
            recipe=recipe,
            epochs=2,
            limit=320,
            width=8,
            ema=0.9,
            accumulate=2,
            threads=1,
            timeout_seconds=60,
            runs=out,
        )
        run(replace(config, name=f"{recipe}-copied"))
        run(replace(config, name=f"{recipe}-sharded", fsdp=True))
        run(replace(config, name=f"{recipe}-stopped", fsdp=True, steps=7))
        run(replace(config, name=f"{recipe}-resumed", fsdp=True, resume=out / f"{recipe}-stopped"))


def run(config: TrainConfig) -> None:
    """Train, and let the ranks meet at a place of their own: torchrun's own is used up by the first training."""
    assert config.runs is not None
    train(replace(config, dist_url=f"file://{config.runs / 'meet'}-{config.name}"))


if __name__ == "__main__":
    main()

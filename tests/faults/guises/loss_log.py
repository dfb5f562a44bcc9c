"""Runs a script and notes every loss that it calls backward on, one per line: python loss_log.py SCRIPT [ARGUMENT]...

The file is `losses` in the current folder; only the first rank writes it.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch

LOSSES = "losses"


def main() -> None:
    """Run the script with `torch.autograd.backward` replaced by one that notes."""
    backward = torch.autograd.backward

    def noted(tensors: Any, *args: Any, **kwargs: Any) -> None:
        first = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
        if os.environ.get("RANK", "0") == "0":
            with Path(LOSSES).open("a") as file:
                print(float(first.detach().sum()), file=file)
        backward(tensors, *args, **kwargs)

    torch.autograd.backward = noted
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).absolute().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()

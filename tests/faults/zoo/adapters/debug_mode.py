"""Trains a script under torch's DebugMode and prints the first ops whose logged norms are not finite.

python debug_mode.py SCRIPT. DebugMode only logs; whom it would help reads the log for nan, as is done here.
"""

from __future__ import annotations

import atexit
import re

from script import run_script
from torch.utils._debug_mode import DebugMode

NUM_LINES = 3
mode = DebugMode(record_nn_module=True)


def say_what_is_not_finite() -> None:
    """Print the first lines of the log with a norm that is NaN or infinite, each with the module it is in."""
    module, left = "", NUM_LINES
    for line in mode.debug_string(show_stack_trace=False).splitlines():
        if "[nn.Mod]" in line:
            module = line.strip()
        if left and re.search(r"\b(nan|inf)\b", line.rpartition("# {")[2]):
            print(f"DebugMode: {module} {line.strip()}")
            left -= 1


atexit.register(say_what_is_not_finite)
with mode, DebugMode.log_tensor_hashes(hash_fn="norm"):
    run_script()

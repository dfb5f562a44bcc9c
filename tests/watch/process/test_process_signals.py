import resource
import signal
import subprocess
import sys

import pytest

from roundoff.watch.process.ipc import STACKS_SIGNAL, WAKE_SIGNAL, can_supervise


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM])
def test_a_process_can_die_by_any_signal_though_it_is_handled_and_blocked(number: signal.Signals):
    code = f"""
import signal
from roundoff.watch.process.ipc import die_by
number = {int(number)}
if number != signal.SIGKILL:
    signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
print("last words", end="")
die_by(number)
"""
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (answer.returncode, answer.stdout) == (-number, "last words")
    assert resource.getrlimit(resource.RLIMIT_CORE) == limits


def test_our_signals_are_real_time_ones_that_no_one_else_uses():
    assert can_supervise()
    assert signal.SIGRTMIN < WAKE_SIGNAL < STACKS_SIGNAL < signal.SIGRTMAX

"""A program whose child does what its first argument says: the tests look at what the parent makes of it.

Arguments: what, run folder. Settings come from the environment: HANG_AFTER, ON_HANG. Every ending that is reported is
printed as one line of JSON.
"""

import ctypes
import faulthandler
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

from roundoff.watch.process.supervise import supervise

WHAT, FOLDER = sys.argv[1], Path(sys.argv[2])


def start(guard):
    from roundoff.runs import RunInfo, RunWriter

    RunWriter.create(FOLDER, RunInfo())
    guard.start(FOLDER, rank=0, has_ops=WHAT == "custom-op")


def load(guard):
    """Load for longer than the limit, as a script does that has not begun to train."""
    start(guard)
    for _ in range(30):
        Path(__file__).read_text()
        Path(os.__file__).read_text()
        time.sleep(0.1)
    guard.close()
    return 0


def begin(guard):
    start(guard)
    guard.flight.note(step=3, phase="forward")
    guard.flight.enter("forward", "<model>")
    guard.flight.enter("forward", "blocks.1")


def read_truncated_memory():
    import torch

    path = FOLDER / "mapped.bin"
    path.write_bytes(bytes(4 * 2**20))
    x = torch.from_file(str(path), shared=True, size=2**20, dtype=torch.float32)
    os.truncate(path, 0)
    torch.mm(x.view(1024, 1024), torch.ones(1024, 4))  # the line that crashes


def run_a_custom_op(guard):
    import torch

    from roundoff.watch.process.op_notes import noting_ops

    @torch.library.custom_op("planted::scatter", mutates_args=())
    def scatter(x: torch.Tensor) -> torch.Tensor:
        ctypes.string_at(0)
        return x.clone()

    with noting_ops(guard.flight):
        scatter(torch.ones(3) + 1)


def crash_in_a_forked_process():
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        os.kill(os.getpid(), signal.SIGSEGV)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status)


class Endless:
    def __repr__(self):
        return repr(self)


def overflow_the_stack():
    sys.setrecursionlimit(10**8)
    repr(Endless())


def train(guard):
    if WHAT == "ends-before-the-folder":
        os.kill(os.getpid(), signal.SIGSEGV)
    if WHAT == "returns":
        return 7
    if WHAT == "raises":
        raise ValueError("the child's own")
    if WHAT == "waits":
        print("ready", os.getpid(), flush=True)
        time.sleep(20)
    if WHAT == "handles-sigterm":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        print("ready", os.getpid(), flush=True)
        time.sleep(20)
    if WHAT == "is-interrupted":
        try:
            print("ready", os.getpid(), flush=True)
            time.sleep(20)
        except KeyboardInterrupt:
            return 130
    if WHAT == "loads":
        return load(guard)
    if WHAT == "hangs-before-it-trains":
        start(guard)
        time.sleep(6)
        guard.close()
        return 0
    begin(guard)
    if WHAT == "null":
        ctypes.string_at(0)
    if WHAT == "null-under-its-own-faulthandler":
        faulthandler.enable()
        ctypes.string_at(0)
    if WHAT == "abort":
        os.abort()
    if WHAT == "op":
        read_truncated_memory()
    if WHAT == "custom-op":
        run_a_custom_op(guard)
    if WHAT == "overflow":
        overflow_the_stack()
    if WHAT == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if WHAT == "exits-without-a-word":
        os._exit(3)
    if WHAT == "hangs":
        while True:  # a signal cuts it short
            ctypes.PyDLL(None).sleep(30)  # holds the GIL
    if WHAT == "hangs-for-a-while":
        time.sleep(1.5)
        guard.flight.note(step=4, phase="forward")
        time.sleep(0.5)
    if WHAT == "worker-crashes":
        assert crash_in_a_forked_process() == signal.SIGSEGV
    guard.close()
    if WHAT == "crashes-at-its-end":
        ctypes.string_at(0)
    if WHAT == "is-slow-to-end":
        time.sleep(1.5)
    return 0


def tell(folder, rank, ending):
    print(json.dumps({"folder": str(folder), "rank": rank, **asdict(ending)}), flush=True)


assert "torch" not in sys.modules
hang_after = os.environ.get("HANG_AFTER")
sys.exit(
    supervise(
        train,
        hang_after=float(hang_after) if hang_after else None,
        on_hang=os.environ.get("ON_HANG", "report"),
        on_ending=tell,
    )
)

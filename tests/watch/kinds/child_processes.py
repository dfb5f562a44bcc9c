"""The script starts programs and forks itself."""

import multiprocessing
import os
import subprocess
import sys

import torch
from torch import nn


def work(queue):
    queue.put(model.weight.numel())


torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
context = multiprocessing.get_context("fork")
for step in range(24):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 8:
        print(subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True, check=True))
        print(subprocess.run(["sh", "-c", "exit 3"], check=False).returncode)
    if step == 9:
        queue = context.Queue()
        child = context.Process(target=work, args=(queue,))
        child.start()
        print(queue.get(timeout=60))
        child.join()
        print(child.exitcode, multiprocessing.active_children())
    if step == 10:
        child = os.fork()
        if child == 0:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            os._exit(5)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
torch.save(model.state_dict(), sys.argv[1])

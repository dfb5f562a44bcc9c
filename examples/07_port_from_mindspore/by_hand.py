"""Copies the weights by hand, as one does it in an afternoon. Two lines are wrong, and torch does not mind."""

import numpy as np
import torch
from model import Net

LAYERS = {
    "conv1": "stem", "bn1": "stem_norm", "conv2": "body", "bn2": "body_norm", "embed": "words", "norm": "word_norm",
    "fc1": "mix", "fc2": "head",
}  # fmt: skip
values = np.load("net.npz")
state = {}
for name in values.files:
    layer, _, kind = name.partition(".")
    state[f"{LAYERS[layer]}.{kind}"] = torch.from_numpy(values[name])
state["mix.weight"] = state["mix.weight"].T.contiguous()  # other frameworks have it so
del state["body_norm.running_var"]
net = Net()
net.load_state_dict(state, strict=False)
torch.save(net.state_dict(), "by-hand.pth")

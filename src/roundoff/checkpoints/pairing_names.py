"""What the frameworks call the same thing, under one name."""

from __future__ import annotations

import re
from collections.abc import Sequence

WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Added by whoever wraps a module, anywhere in a name."""
COLLECTIONS = frozenset({"module", "params", "batch_stats", "model_weights", "state_dict"})
"""Stand before the name of a layer and are no part of it."""

LEAVES = {
    **dict.fromkeys(("weight", "gamma", "scale", "kernel", "w_0"), "weight"),
    **dict.fromkeys(("embedding_table", "embedding", "embeddings"), "weight"),
    **dict.fromkeys(("bias", "beta", "b_0"), "bias"),
    **dict.fromkeys(("running_mean", "moving_mean", "_mean", "mean", "w_1"), "running_mean"),
    **dict.fromkeys(("running_var", "moving_variance", "_variance", "variance", "var", "w_2"), "running_var"),
}
"""What a layer's tensors are called, and what PyTorch calls them."""

_NUMBER = re.compile(r"_?(\d+)(?!\d|d(?![a-z]))")  # but not the 2 of conv2d


def split_name(name: str) -> tuple[tuple[str, ...], str]:
    """Return the path of the layer and the name of its tensor, without what wrappers add.

    >>> split_name("module.layer1.0.bn1.running_mean")
    (('layer1', '0', 'bn1'), 'running_mean')
    >>> split_name("conv2d_1/conv2d_1/kernel:0")
    (('conv2d_1',), 'kernel')
    """
    words = [word for word in re.split(r"[./]", name.removesuffix(":0")) if word and word not in WRAPPERS]
    while len(words) > 1 and words[0] in COLLECTIONS:
        words.pop(0)
    if "/" in name:  # Keras says a layer's name twice
        words = [word for place, word in enumerate(words) if not place or word != words[place - 1]]
    return tuple(words[:-1]), words[-1] if words else ""


def skeleton(path: Sequence[str]) -> str:
    """Return a path without its numbers, in small letters: what all layers of one kind have in common.

    >>> skeleton(("layer1", "0", "conv2")), skeleton(("conv2d_3",)), skeleton(("conv2_block1_0_bn",))
    ('layer.#.conv', 'conv2d', 'conv_block_bn')
    """
    return ".".join((_NUMBER.sub("", word) or "#").lower() for word in path)


def numbers_in(path: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of a path, which tell layers of one skeleton apart and put them in order.

    A word without a number counts as -1: Keras has `dense`, then `dense_1`.

    >>> numbers_in(("layer1", "0", "conv2")), numbers_in(("sequential_1", "dense"))
    ((1, 0, 2), (1, -1))
    """
    return tuple(number for word in path for number in map(int, _NUMBER.findall(word) or [-1]))


def likeness(first: str, second: str) -> float:
    """Return 1 for equal texts and 0 for texts that share nothing.

    It counts the letters to take out of the one and to put in to make the other of it.

    >>> likeness("attn.query", "attn.q"), likeness("wq", "key")
    (0.75, 0.0)
    """
    above = [0] * (len(second) + 1)
    for letter in first:
        row = [0]
        for column, other in enumerate(second):
            row.append(above[column] + 1 if letter == other else max(above[column + 1], row[-1]))
        above = row
    letters = len(first) + len(second)
    return 2 * above[-1] / letters if letters else 1.0

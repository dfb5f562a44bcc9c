"""Groups the tensors of a checkpoint into layers, with common names for those of all frameworks, and finds axes."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from roundoff.checkpoints.checkpoint import Entry

SLOTS = {
    **dict.fromkeys(("momentum_buffer", "moments", "velocity"), "momentum_buffer"),
    **dict.fromkeys(("exp_avg", "moment1", "adam_m", "lamb_m"), "exp_avg"),
    **dict.fromkeys(("exp_avg_sq", "moment2", "adam_v", "lamb_v"), "exp_avg_sq"),
    **dict.fromkeys(("max_exp_avg_sq", "moment2_max", "vhat"), "max_exp_avg_sq"),
    **dict.fromkeys(("square_avg", "mean_square", "_avg_squared_grad"), "square_avg"),
    **dict.fromkeys(("acc_delta", "accum_update", "_avg_squared_update"), "acc_delta"),
    **dict.fromkeys(("grad_avg", "mean_grad"), "grad_avg"),
    **dict.fromkeys(("exp_inf", "inf_norm"), "exp_inf"),
    **dict.fromkeys(("prev", "prevs"), "prev"),
    **dict.fromkeys(("step_size", "learning_rates"), "step_size"),
    **dict.fromkeys(("sum", "accum", "moment"), "sum"),
    "step": "step",
    "beta1_pow_acc": "beta1_power",
    "beta2_pow_acc": "beta2_power",
}
"""The frameworks' names of optimizer states, and PyTorch's."""

SLOTS_OF_OPTAX = {
    "mu": "exp_avg",
    "nu": "exp_avg_sq",
    "nu_max": "max_exp_avg_sq",
    "trace": "momentum_buffer",
}
"""Optax's names of the states of `adam`, `adamw`, `amsgrad` and `sgd`; of `rmsprop`, which has no `mu`, `nu` is
`square_avg`."""

_OF_OPTAX = re.compile(
    rf"(?P<before>opt_state(?:\.\w+)*?)\.(?P<slot>{'|'.join(SLOTS_OF_OPTAX)})\.(?:params\.)?(?P<owner>.+)"
)
_OF_PADDLE = re.compile(rf"(?P<owner>.+)_(?P<slot>{'|'.join(SLOTS)})_\d+")
_BEFORE_THE_OWNER = frozenset({"optimizer", "optim", "optimizer_state_dict", "optimizer_state", "opt", "state"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerName:
    """A state of a parameter: `exp_avg` of `fc.weight`."""

    slot: str
    owner: str


def read_optimizer_name(name: str, *, parameters: Sequence[str], others: Container[str] = ()) -> OptimizerName | None:
    """Return slot and owner of a state, or None; `parameters` are those of its checkpoint, in file order.

    PyTorch refers to owners by their number, the other frameworks by their name. `others` are all names of the
    checkpoint.

    >>> read_optimizer_name("moments.fc.weight", parameters=[])
    OptimizerName(slot='momentum_buffer', owner='fc.weight')
    >>> read_optimizer_name("optimizer.state.1.exp_avg", parameters=["fc.weight", "fc.bias"])
    OptimizerName(slot='exp_avg', owner='fc.bias')
    >>> read_optimizer_name("linear_0.w_0_moment1_0", parameters=[])
    OptimizerName(slot='exp_avg', owner='linear_0.w_0')
    >>> read_optimizer_name("opt_state.0.trace.dense.kernel", parameters=[])
    OptimizerName(slot='momentum_buffer', owner='dense.kernel')
    """
    if of_optax := _OF_OPTAX.fullmatch(name):
        has_mu = of_optax["slot"] != "nu" or name.replace(".nu.", ".mu.", 1) in others
        return OptimizerName(slot=SLOTS_OF_OPTAX[of_optax["slot"]] if has_mu else "square_avg", owner=of_optax["owner"])
    if of_paddle := _OF_PADDLE.fullmatch(name):
        owner = of_paddle["owner"]
        return _name_of_state(of_paddle["slot"], owner, has=lambda word: f"{owner}_{word}_0" in others)
    first, _, rest = name.partition(".")
    if first in SLOTS and rest:
        is_adamax = "beta1_power" in others and "beta2_power" not in others
        word = "inf_norm" if first == "moment2" and is_adamax else first
        return _name_of_state(word, rest, has=lambda word: f"{word}.{rest}" in others)
    words = name.split(".")
    if words[-1] not in SLOTS:
        return None
    while len(words) > 2 and words[0] in _BEFORE_THE_OWNER:
        words.pop(0)
    owner = ".".join(words[:-1])
    if owner.isdecimal():
        owner = parameters[int(owner)] if int(owner) < len(parameters) else owner
    return OptimizerName(slot=SLOTS[words[-1]], owner=owner) if owner else None


def _name_of_state(word: str, owner: str, *, has: Callable[[str], bool]) -> OptimizerName | None:
    """Return a state of MindSpore or Paddle by its word, whose meaning depends on what else its optimizer `has`."""
    slot: str | None = SLOTS[word]
    if word == "accum" and (has("stat") or has("accum_update")):
        slot = "momentum_buffer" if has("stat") else "square_avg"  # SGD, Adadelta; otherwise Adagrad
    elif word == "moment" and has("inf_norm"):
        slot = "exp_avg"  # Adamax
    elif (word == "moment" and has("mean_square")) or (word == "moments" and has("linear")):
        slot = None  # the momentum of RMSProp contains the learning rate; PyTorch has no FTRL
    return OptimizerName(slot=slot, owner=owner.partition("_fp32_master_")[0]) if slot else None


WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Added by wrappers of a module, anywhere in a name."""
COLLECTIONS = frozenset({"module", "params", "batch_stats", "model_weights", "state_dict"})
"""Prefixes that are not part of the name of a layer."""

LEAVES = {
    **dict.fromkeys(("weight", "gamma", "scale", "kernel", "w_0"), "weight"),
    **dict.fromkeys(("embedding_table", "embedding", "embeddings"), "weight"),
    **dict.fromkeys(("bias", "beta", "b_0"), "bias"),
    **dict.fromkeys(("running_mean", "moving_mean", "_mean", "mean", "w_1"), "running_mean"),
    **dict.fromkeys(("running_var", "moving_variance", "_variance", "variance", "var", "w_2"), "running_var"),
}
"""The frameworks' names of the tensors of a layer, and PyTorch's."""

MODULES = {
    **dict.fromkeys(("q_proj", "query", "query_layer"), "wq"),
    **dict.fromkeys(("k_proj", "key", "key_layer"), "wk"),
    **dict.fromkeys(("v_proj", "value", "value_layer"), "wv"),
    **dict.fromkeys(("o_proj", "out_proj"), "wo"),
    **dict.fromkeys(("self_attn", "self_attention", "attn"), "attention"),
    **dict.fromkeys(("mlp", "ffn"), "feed_forward"),
    "gate_proj": "w1",
    "down_proj": "w2",
    "up_proj": "w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "embed_tokens": "tok_embeddings",
    "lm_head": "output",
    "down_sample_layer": "downsample",
}
"""What libraries of models call the same layer, where letters would mislead: the norm after attention is the one before
the feed-forward network."""

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
    if "/" in name:  # Keras repeats the name of a layer
        words = [word for place, word in enumerate(words) if not place or word != words[place - 1]]
    return tuple(words[:-1]), words[-1] if words else ""


def common_words(path: Sequence[str]) -> tuple[str, ...]:
    """Return a path in the common words for those of all libraries.

    >>> common_words(("layers", "0", "self_attn", "q_proj"))
    ('layers', '0', 'attention', 'wq')
    """
    return tuple(MODULES.get(word, word) for word in path)


def skeleton(path: Sequence[str]) -> str:
    """Return a path without its numbers, in lower case: what all layers of one kind have in common.

    >>> skeleton(("layer1", "0", "conv2")), skeleton(("conv2d_3",)), skeleton(("conv2_block1_0_bn",))
    ('layer.#.conv', 'conv2d', 'conv_block_bn')
    """
    return ".".join((_NUMBER.sub("", word) or "#").lower() for word in path)


def numbers_in(path: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of a path, which distinguish and order the layers of one skeleton.

    A word without a number counts as -1: Keras has `dense`, then `dense_1`.

    >>> numbers_in(("layer1", "0", "conv2")), numbers_in(("sequential_1", "dense"))
    ((1, 0, 2), (1, -1))
    """
    return tuple(number for word in path for number in map(int, _NUMBER.findall(word) or [-1]))


def likeness(first: str, second: str) -> float:
    """Return the similarity of two strings: 1 if they are equal, 0 if they have nothing in common.

    It counts the characters to delete and insert to turn one into the other.

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


def telling_parts(names: Sequence[str]) -> dict[str, str]:
    """Return each name without the prefix and suffix that all have in common.

    >>> telling_parts(["attn.q_proj", "attn.k_proj"])
    {'attn.q_proj': 'q', 'attn.k_proj': 'k'}
    """
    begin = _num_alike(names)
    rests = [name[begin:] for name in names]
    end = _num_alike([rest[::-1] for rest in rests])
    return {name: rest[: len(rest) - end] for name, rest in zip(names, rests, strict=True)}


def _num_alike(names: Sequence[str]) -> int:
    """Return the length of the common prefix."""
    letters = zip(*names, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, letters))


Axes: TypeAlias = tuple[int, ...]

KERNEL_AXES: dict[int, Axes] = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1), 5: (4, 3, 0, 1, 2)}
"""The permutations from (in, out), (width, in, out), HWIO and DHWIO to PyTorch's layout, by the number of axes."""
KERNELS = ("kernel", "recurrent_kernel", "depthwise_kernel", "pointwise_kernel")
"""Frameworks that use these names store inputs before outputs."""
UNCOUNTED = "num_batches_tracked"
"""Only PyTorch's batch norms have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLayer:
    """The tensors of one layer, under the names that PyTorch would give them."""

    path: tuple[str, ...]
    short_path: tuple[str, ...]
    """The path without the prefix that all paths of its checkpoint share, such as `backbone`."""
    tensors: Mapping[str, Entry]
    axes: Mapping[str, Axes | None]
    """The permutation of each tensor to PyTorch's layout; None where it has that already."""
    place: int
    """Its index among the layers of its checkpoint, in file order."""

    def shape(self, leaf: str) -> tuple[int, ...]:
        """Return the shape in PyTorch's layout, without axes of length 1."""
        shape = self.tensors[leaf].shape
        axes = self.axes[leaf] or range(len(shape))
        return tuple(shape[axis] for axis in axes if shape[axis] != 1)


def layers_of(entries: Iterable[Entry], *, format: str) -> list[CheckpointLayer]:
    """Group tensors into layers, in file order."""
    split = [(*split_name(entry.name), entry) for entry in entries]
    times = Counter((path, leaf) for path, leaf, _ in split)
    found: dict[tuple[str, ...], dict[str, Entry]] = {}
    for path, leaf, entry in split:
        # Names that differ only in their wrappers are kept.
        found.setdefault(path, {})[leaf if times[path, leaf] == 1 else entry.name] = entry
    layers = []
    common = _common_words(list(found))
    for place, (path, tensors) in enumerate(found.items()):
        names = _names_of(tensors)
        layers.append(
            CheckpointLayer(
                path=path,
                short_path=path[common:],
                tensors={names[leaf]: entry for leaf, entry in tensors.items()},
                axes={names[leaf]: _axes(leaf, entry, path, tensors, format) for leaf, entry in tensors.items()},
                place=place,
            )
        )
    return layers


def _common_words(paths: Sequence[tuple[str, ...]]) -> int:
    """Return the number of common first words; every path keeps at least one word."""
    alike = 0
    for words in zip(*(path[:-1] for path in paths), strict=False):
        if len(set(words)) > 1:
            break
        alike += 1
    return alike


def _names_of(tensors: Mapping[str, Entry]) -> dict[str, str]:
    """Return PyTorch's name of each tensor; a layer that has both `weight` and `gamma` keeps its own names."""
    common = [LEAVES.get(leaf, leaf) for leaf in tensors]
    return {leaf: name if common.count(name) == 1 else leaf for leaf, name in zip(tensors, common, strict=True)}


def _axes(leaf: str, entry: Entry, path: tuple[str, ...], tensors: Mapping[str, Entry], format: str) -> Axes | None:
    if leaf in KERNELS:
        return KERNEL_AXES.get(len(entry.shape))
    if format == "paddle" and leaf in ("weight", "w_0") and len(entry.shape) == 2:
        is_table = "emb" in ".".join(path).lower() and not tensors.keys() & {"bias", "b_0"}
        return None if is_table else (1, 0)
    return None


TRIED_AXES: dict[int, tuple[Axes, ...]] = {
    2: ((1, 0),),
    3: ((2, 1, 0),),
    4: ((3, 2, 0, 1), (2, 3, 1, 0), (1, 0, 2, 3)),
    5: ((4, 3, 0, 1, 2), (2, 3, 4, 1, 0)),
}
"""Permutations to try where a shape does not fit, by the number of axes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeFit:
    """How a candidate's shape fits a reference's."""

    axes: Axes | None
    """For `Tensor.permute`; None for no permutation."""
    is_expected: bool
    """Whether it follows from the layouts of the two formats, not only from the shapes."""


def fit(
    reference: tuple[int, ...],
    candidate: tuple[int, ...],
    *,
    reference_axes: Axes | None = None,
    candidate_axes: Axes | None = None,
) -> ShapeFit | None:
    """Return how a candidate's shape fits a reference's, or None; axes of length 1 are ignored.

    `reference_axes` and `candidate_axes` are the permutations of each to PyTorch's layout.

    >>> fit((10, 5), (5, 10), candidate_axes=(1, 0))
    ShapeFit(axes=(1, 0), is_expected=True)
    >>> fit((10, 5), (5, 10))
    ShapeFit(axes=(1, 0), is_expected=False)
    """
    expected = _compose_permutations(candidate_axes, reference_axes)
    if _fits(reference, candidate, expected):
        return ShapeFit(axes=expected, is_expected=True)
    for axes in (None, *TRIED_AXES.get(len(candidate), ())):
        if _fits(reference, candidate, axes):
            return ShapeFit(axes=axes, is_expected=False)
    return None


def _compose_permutations(candidate: Axes | None, reference: Axes | None) -> Axes | None:
    """Return the permutation to PyTorch's layout and from there to the reference's."""
    if reference is None:
        return candidate
    back = tuple(reference.index(axis) for axis in range(len(reference)))
    if candidate is None:
        return back
    if len(candidate) != len(back):
        return candidate
    both = tuple(candidate[axis] for axis in back)
    return None if both == tuple(range(len(both))) else both


def _fits(reference: tuple[int, ...], candidate: tuple[int, ...], axes: Axes | None) -> bool:
    if axes is not None:
        if len(axes) != len(candidate):
            return False
        candidate = tuple(candidate[axis] for axis in axes)
    return reference == candidate or without_ones(reference) == without_ones(candidate)


def without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its dimensions of 1: (1, 3, 1) and (3,) hold the same in the same order."""
    return tuple(size for size in shape if size != 1)

"""Torch functions: their names in recipes, and which are exact, need few bits, or need many."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import get_overridable_functions

Function = Callable[..., Any]

_REFLECTED: Final = {
    f"{letter}{name}": name
    for letter in "ri"
    for name in ("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "matmul")
}
"""`1 - x` and `x -= 1` call other methods than `x - 1`, but are the same op."""
_SYNONYMS: Final = {
    "truediv": "div",
    "divide": "div",
    "true_divide": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "subtract": "sub",
    "multiply": "mul",
    "negative": "neg",
    "absolute": "abs",
    "clip": "clamp",
    "concat": "cat",
    "concatenate": "cat",
}


@functools.cache
def op_name(function: Function) -> str:
    """Return the name of a torch function, the same for the function, method, operator and in-place version.

    >>> op_name(torch.softmax), op_name(torch.Tensor.softmax), op_name(torch.nn.functional.softmax)
    ('softmax', 'softmax', 'softmax')
    >>> op_name(torch.Tensor.__radd__), op_name(torch.Tensor.add_), op_name(torch.Tensor.__matmul__)
    ('add', 'add', 'matmul')

    A computed attribute has its own name (`T`), an op of a library its name there.
    """
    name = getattr(function, "__name__", type(function).__name__)
    if name == "__get__":
        attribute: Any = function.__self__  # type: ignore[attr-defined]
        return str(getattr(attribute, "fget", attribute).__name__)
    return canonical_name(name.partition(".")[0])


def canonical_name(name: str) -> str:
    """Return the name that `op_name` gives to `__add__`, `add_` or `special_softmax`.

    >>> canonical_name("__rtruediv__")
    'div'
    """
    is_operator = name.startswith("__") and name.endswith("__")
    plain = name.strip("_") if is_operator else name.removeprefix("special_").rstrip("_")
    if is_operator:
        plain = _REFLECTED.get(plain, plain)
    return _SYNONYMS.get(plain, plain) or name


@functools.cache
def known_op_names() -> frozenset[str]:
    """Return the names of all torch functions that a mode can see."""
    functions = (function for several in get_overridable_functions().values() for function in several)
    return frozenset(op_name(function) for function in functions)


def is_op_name(name: str) -> bool:
    """Whether torch, or a library of ops loaded into it, has a function of this name."""
    return name in known_op_names() or any(name in dir(getattr(torch.ops, library)) for library in torch.ops)


def _functions_named(names: str, *homes: Any) -> frozenset[Function]:
    """Return the functions with these names in any of the modules or classes `homes`."""
    found = {getattr(home, name, None) for name in names.split() for home in homes}
    return frozenset(function for function in found if function is not None)


_HOMES = (torch, F, Tensor)

PRODUCTS: Final = _functions_named(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc linear matmul mm bmm mv "
    "addmm addmv addbmm baddbmm addr chain_matmul einsum tensordot __matmul__ __rmatmul__ scaled_dot_product_attention "
    "rnn_tanh_cell rnn_relu_cell lstm_cell gru_cell lstm gru rnn_tanh rnn_relu prelu",
    *_HOMES,
)
"""Matrix products and convolutions: most of the arithmetic, and safe in few bits because their sums are wide."""

WIDE: Final = _functions_named(
    "softmax log_softmax softmin gumbel_softmax softplus logsigmoid gelu interpolate grid_sample layer_norm "
    "group_norm rms_norm local_response_norm normalize cosine_similarity cross_entropy nll_loss l1_loss mse_loss "
    "smooth_l1_loss huber_loss kl_div binary_cross_entropy binary_cross_entropy_with_logits poisson_nll_loss "
    "gaussian_nll_loss ctc_loss cosine_embedding_loss hinge_embedding_loss margin_ranking_loss multi_margin_loss "
    "multilabel_margin_loss multilabel_soft_margin_loss soft_margin_loss triplet_margin_loss "
    "triplet_margin_with_distance_loss pdist cdist exp expm1 log log10 log2 log1p pow __pow__ __rpow__ reciprocal "
    "rsqrt acos asin cosh sinh tan erfinv logsumexp sum prod mean cumsum cumprod std var var_mean std_mean norm "
    "renorm dist logcumsumexp",
    *_HOMES,
)
"""Functions that exceed the range or the accuracy of fp16: norms, losses, exponentials, sums.

Batch norm is not included because torch computes it in fp32 whatever the dtype of its input.
"""

EXACT: Final = _functions_named(
    "relu relu_ threshold threshold_ hardtanh relu6 max_pool1d max_pool2d max_pool3d adaptive_max_pool1d "
    "adaptive_max_pool2d adaptive_max_pool3d max_unpool2d pad embedding one_hot unfold pixel_shuffle pixel_unshuffle "
    "channel_shuffle view view_as reshape reshape_as flatten unflatten transpose transpose_ permute movedim moveaxis "
    "swapaxes swapdims t squeeze squeeze_ unsqueeze unsqueeze_ expand expand_as repeat repeat_interleave tile narrow "
    "select chunk split tensor_split hsplit vsplit unbind cat concat concatenate stack hstack vstack dstack roll flip "
    "fliplr flipud rot90 tril triu diagonal diag diag_embed clone contiguous detach detach_ __getitem__ __setitem__ "
    "gather scatter index_select index_copy masked_select masked_fill masked_fill_ where take take_along_dim "
    "neg __neg__ negative abs absolute __abs__ sign sgn max min maximum minimum fmax fmin amax amin aminmax sort "
    "argsort topk kthvalue median mode clamp clamp_ clip clamp_min clamp_max copysign round floor ceil trunc "
    "as_strided broadcast_to broadcast_tensors meshgrid atleast_1d atleast_2d ravel zeros ones zeros_like ones_like "
    "empty empty_like zero_ fill_ new_zeros new_ones new_empty requires_grad_ retain_grad register_hook as_tensor "
    "is_floating_point numel dim size stride data_ptr item tolist backward",
    *_HOMES,
)
"""Functions that only return values of their inputs, perhaps negated: nothing to round."""

WIDEST: Final = _functions_named(
    "addcmul addcdiv atan2 bilinear cat concat stack cross dot vdot index_put index_put_ index_add "
    "scatter_add where lerp",
    *_HOMES,
)
"""Functions that need all operands in one dtype, the widest."""

POOLING: Final = _functions_named("avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d "
"adaptive_avg_pool1d "
    "adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d lp_pool2d",
    *_HOMES,
)  # fmt: skip
SORTING: Final = _functions_named("sort argsort topk msort", *_HOMES)

PROFILES: Final = {"ascend-fp16": PRODUCTS | POOLING | SORTING}
"""The functions that each device profile computes in fp16 only."""

_COMPOSITES: Final = _functions_named("multi_head_attention_forward", F)
_CHECKS: Final = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


@functools.cache
def open_composite(function: Function) -> Function | None:
    """Return a copy of a composite function whose inner calls a mode can see, or None if it is not composite.

    Attention in torch.nn is Python code; once a mode has intercepted it as a whole, its inner calls are hidden. The
    copy is the same code without the checks that offer it for interception.
    """
    if function not in _COMPOSITES or not isinstance(function, types.FunctionType):
        return None
    names = {**function.__globals__, **dict.fromkeys(_CHECKS, lambda *_: False)}
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy

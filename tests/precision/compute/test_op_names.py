"""One name for one op, however it is called."""

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from roundoff.precision.compute.torch_ops import PRODUCTS, is_op_name, known_op_names, op_name


class Names(TorchFunctionMode):
    """Notes the names of what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(op_name(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: torch.softmax(x, -1), "softmax"),
        (lambda x: F.softmax(x, -1), "softmax"),
        (lambda x: x.softmax(-1), "softmax"),
        (lambda x: torch.special.softmax(x, -1), "softmax"),
        (lambda x: x @ x, "matmul"),
        (lambda x: torch.matmul(x, x), "matmul"),
        (lambda x: x + 1, "add"),
        (lambda x: 1 + x, "add"),
        (lambda x: x.clone().detach().__iadd__(1), "add"),
        (lambda x: torch.add(x, x), "add"),
        (lambda x: 1 - x, "sub"),
        (lambda x: 2 / x, "div"),
        (lambda x: x / 2, "div"),
        (lambda x: 2**x, "pow"),
        (lambda x: -x, "neg"),
        (lambda x: torch.concat([x, x]), "cat"),
        (lambda x: F.max_pool2d(x[None, None], 2), "max_pool2d"),
        (lambda x: F.relu(x.clone(), inplace=True), "relu"),
        (lambda x: x.T, "T"),
        (lambda x: torch.ops.aten.sigmoid(x), "sigmoid"),
        (lambda x: torch.ops.aten.add.Tensor(x, x), "add"),
    ],
)
def test_an_op_has_one_name_however_it_is_called(call, name: str):
    with Names() as seen:
        call(torch.rand(4, 4, requires_grad=True))
    assert seen.names[-1] == name


def test_every_function_of_the_lists_has_a_name_that_is_known():
    assert {op_name(function) for function in PRODUCTS} <= known_op_names()


@pytest.mark.parametrize("name", ["softmax", "linear", "add", "div", "scaled_dot_product_attention", "lstm", "T"])
def test_names_of_torch_are_known(name: str):
    assert is_op_name(name)


@pytest.mark.parametrize("name", ["sofmax", "__add__", ""])
def test_what_torch_does_not_have_is_not_a_name(name: str):
    assert not is_op_name(name)


def test_an_op_of_another_library_is_known_by_the_name_it_has_there():
    library = torch.library.Library("test_op_names", "DEF")
    library.define("doubled(Tensor x) -> Tensor")
    library.impl("doubled", lambda x: x * 2, "CompositeImplicitAutograd")
    x = torch.ones(2)
    with Names() as seen:
        torch.ops.test_op_names.doubled(x)
        torch.ops.test_op_names.doubled.default(x)
    assert seen.names == ["doubled", "doubled"]
    assert is_op_name("doubled")

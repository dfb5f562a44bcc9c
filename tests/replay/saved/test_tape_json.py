import pytest
import torch
import torch.nn.functional as F

from roundoff.replay.saved.tape_json import function_named, name_of_function


@pytest.mark.parametrize(
    "function",
    [
        torch.Tensor.mul, torch.Tensor.__rsub__, torch.Tensor.grad.__get__, torch.Tensor.grad.__set__, torch.randn,
        torch.stack, F.cross_entropy, F.scaled_dot_product_attention, torch.einsum, torch.Tensor.__setitem__,
        torch.autograd.grad,
    ],
)  # fmt: skip
def test_a_function_is_found_again_under_its_name(function):
    assert function_named(name_of_function(function)) == function


def test_what_is_not_torchs_has_no_name():
    assert name_of_function(print) is None


@pytest.mark.parametrize("name", ["torch.load", "torch.hub.load", "os.system", "torch.Tensor", "builtins.eval", ""])
def test_a_name_from_a_file_reaches_nothing_that_does_not_compute(name: str):
    assert function_named(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "__setstate__", "__reduce_ex__", "__deepcopy__", "__array__", "__dlpack__", "apply_", "map_", "map2_", "set_",
        "resize_", "data_ptr", "untyped_storage", "share_memory_", "register_hook", "module_load", "numpy",
        "_grad_fn.__get__", "__cuda_array_interface__.__get__",
    ],
)  # fmt: skip
def test_a_name_from_a_file_reaches_no_method_that_gets_at_memory_or_calls_back(name: str):
    assert function_named(f"torch.Tensor.{name}") is None

"""Tries every private name of torch that roundoff uses, for `roundoff doctor`: a new torch may lack one."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from roundoff import torch_private

PRIVATE_NAMES: dict[str, str] = {
    "torch._C._autograd._get_sequence_nr": "the site of each backward op",
    "torch._C._current_autograd_node": "the site of each backward op",
    "torch.autograd._engine_run_backward": "seeing backward() begin and end",
    "torch.autograd.grad_mode._unsafe_preserve_version_counter": "swapping tensors without autograd noticing",
    "torch.nn.utils.clip_grad._clip_grads_with_norm_": "seeing clipping",
    "torch.nn.modules.module._has_any_global_hook": "compiled models",
    "torch.nn.modules.module._global_backward_pre_hooks": "compiled models",
    "torch.nn.modules.module._global_backward_hooks": "compiled models",
    "torch.nn.modules.module._global_forward_pre_hooks": "compiled models",
    "torch.nn.modules.module._global_forward_hooks": "compiled models",
    "torch._C.DispatchKey": "recording compiled models",
    "torch._C._dispatch_has_kernel_for_dispatch_key": "ops made of other ops",
    "torch._C._dispatch_tls_is_dispatch_key_included": "recording compiled models",
    "torch._C._dispatch_tls_set_dispatch_key_included": "recording compiled models",
    "torch._C._len_torch_dispatch_stack": "seeing every op",
    "torch._C._is_tracing": "leaving torch.jit.trace alone",
    "torch._C._len_torch_function_stack": "seeing the loop's own functions",
    "torch._C._pop_torch_function_stack": "seeing the loop's own functions",
    "torch._C._push_on_torch_function_stack": "seeing the loop's own functions",
    "torch._C._DisableFuncTorch": "hiding our own ops",
    "torch._C.DisableTorchFunction": "hiding our own ops",
    "torch._C._is_torch_function_all_disabled": "hiding our own ops at little cost",
    "torch._C._EnableTorchFunction": "replaying steps as the training computes them",
    "torch._C._functorch.maybe_current_level": "transforms of torch.func",
    "torch._C._functorch.is_functorch_wrapped_tensor": "transforms of torch.func",
    "torch._C._dynamo.eval_frame.set_code_exec_strategy": "compiled training steps",
    "torch._C._dynamo.eval_frame._FrameExecStrategy": "compiled training steps",
    "torch._C._dynamo.eval_frame._FrameAction": "compiled training steps",
    "torch._C._dynamo.guards.set_is_in_mode_without_ignore_compile_internals": "compiled training steps",
    "torch._dynamo.convert_frame.FRAME_COUNTER": "cheaper module hooks where nothing is compiled",
    "torch.utils._python_dispatch.TorchDispatchMode": "seeing every op",
    "torch.utils._python_dispatch._get_current_dispatch_mode_stack": "seeing every op",
    "torch.utils._python_dispatch._pop_mode": "seeing every op",
    "torch.utils._python_dispatch._push_mode": "seeing every op",
    "torch.utils._python_dispatch._disable_current_modes": "hiding our own ops",
    "torch.utils._python_dispatch._is_in_torch_dispatch_mode": "seeing every op",
    "torch.utils._python_dispatch._is_in_non_infra_torch_dispatch_mode": "seeing every op",
    "torch.utils._python_dispatch._is_in_any_mode_without_ignore_compile_internals": "compiled training steps",
    "torch.utils._pytree.tree_flatten": "switching random numbers",
    "torch.utils._pytree.tree_map": "switching random numbers",
    "torch.utils._pytree.tree_leaves": "comparing two models",
    "torch.utils._pytree.tree_map_only": "comparing two models",
    "torch.ops.OpOverload._op_dk": "running ops on lists one by one",
    "torch._decomp.decomposition_table": "ops made of other ops",
    "torch._weight_norm": "replaying weight norms",
    "torch.distributed.distributed_c10d._get_default_store": "replaying a step on several ranks",
    "torch.distributed.distributed_c10d._resolve_process_group": "replaying a step on several ranks",
    "torch._C._distributed_c10d._create_work_from_future": "replaying a step on several ranks",
    "torch.optim.optimizer._global_optimizer_post_hooks": "replaying a step that has just ended",
    "torch.optim.Optimizer._opt_called": "silence of schedulers after a skipped step",
    "torch.optim.Optimizer.profile_hook_step": "calls that an exception has interrupted",
    "torch.optim.lr_scheduler.LRScheduler._is_initial": "telling a scheduler's first step from its construction",
    "torch.nn.Module._call_impl": "batches given as keyword arguments, calls that an exception has interrupted",
    "torch.nn.RNNBase._flat_weights": "fixed point in RNNs",
    "torch.nn.modules.loss._Loss": "fixed point without the losses",
    "torch.nn.modules.batchnorm._BatchNorm": "batch norm over ranks in `roundoff train`",
    "torch.nn.parallel.DistributedDataParallel._active_ddp_module": "fixed point on several ranks",
    "torch.nn.parallel.DistributedDataParallel._join_config": "fixed point on several ranks",
    "torch.amp.GradScaler._scale": "the loss scale of a GradScaler",
    "torch.amp.GradScaler._device": "saving a step with a GradScaler",
    "torch.autograd.Node._sequence_nr": "the site of each backward op",
    "torch.autograd.function.BackwardCFunction._forward_cls": "playing a step in fp64",
    "torch.distributed.tensor.DTensor._local_tensor": "sharded weights",
    "torch.distributed._local_tensor.LocalTensor._local_tensors": "ranks that one process simulates",
    "torch.UntypedStorage._cdata": "tied weights",
    "torch.Tensor._values": "sparse gradients",
    "torch.Tensor._is_zerotensor": "forward-mode differentiation",
    "torch._foreach_norm": "speed with many weights",
    "torch._foreach_copy_": "speed with many weights",
    "torch._foreach_mul_": "speed with many weights",
    "torch.ops.aten._foreach_mul.Scalar": "the errors of copies by optimizers",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default": "other attention on the CPU",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default": "other attention on the CPU",
    "torch._dynamo": "compiled models",
    "torch.Tensor._version": "seeing what was written to",
    "torch.Tensor._base": "views",
    "torch.Tensor._is_view": "views",
    "torch.nn.Module._parameters": "names of parameters",
    "torch.nn.Module._buffers": "names of buffers",
    "torch.nn.Module._modules": "names of modules",
    "torch.nn.Module._non_persistent_buffers_set": "what a checkpoint holds",
    "torch.ops.OpOverload._schema": "what an op takes and returns",
}
"""Every private name that roundoff uses, with what is off or slower without it; `tests` hold the list to the source."""

ESSENTIAL = frozenset(
    {
        "torch.autograd._engine_run_backward",
        "torch.utils._python_dispatch.TorchDispatchMode",
        "torch.utils._python_dispatch._get_current_dispatch_mode_stack",
        "torch.utils._python_dispatch._pop_mode",
        "torch.utils._python_dispatch._push_mode",
        "torch.Tensor._version",
        "torch.nn.Module._parameters",
        "torch.nn.Module._buffers",
        "torch.nn.Module._modules",
        "torch.ops.OpOverload._schema",
    }
)
"""Those without which nothing can be observed."""

STABLE_ATTRIBUTES = frozenset(
    {"_version", "_base", "_is_view", "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_schema"}
)
"""What other files may read of tensors, modules and operators: torch has had these for years; they are probed, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateCall:
    """One private call of torch, and whether this torch has it."""

    name: str
    present: bool
    used_for: str
    is_essential: bool = False
    """Whether nothing can be observed without it; without any other, only what it is used for is off."""


def probe() -> list[PrivateCall]:
    """Look up every private name, try those whose behaviour matters, and say which of them this torch has."""
    tries = _tries()
    return [
        PrivateCall(
            name=name,
            present=_works(tries.get(name, functools.partial(torch_private.look_up, name))),
            used_for=used_for,
            is_essential=name in ESSENTIAL,
        )
        for name, used_for in PRIVATE_NAMES.items()
    ]


def _tries() -> dict[str, Callable[[], Any]]:
    """Return what to call for a name whose behaviour matters, or that only instances have; it raises if it fails."""
    module, x = nn.Module(), torch.ones(2, requires_grad=True)
    node = (x * 2).grad_fn
    instances: dict[str, Any] = {
        "torch.nn.Module": module,
        "torch.nn.RNNBase": nn.RNN(1, 1),
        "torch.autograd.Node": node,
        "torch.UntypedStorage": x.untyped_storage(),
        "torch.ops.OpOverload": torch.ops.aten.clone.default,
        "torch.amp.GradScaler": torch.amp.GradScaler("cpu"),
        "torch.autograd.function.BackwardCFunction": _OwnFunction.apply(x).grad_fn,  # type: ignore[no-untyped-call]
        "torch.optim.lr_scheduler.LRScheduler": None,
    }
    on_instances = {
        name: functools.partial(getattr, instances[owner], attribute)
        for name in PRIVATE_NAMES
        for owner, _, attribute in [name.rpartition(".")]
        if owner in instances
    }
    distributed = [name for name in PRIVATE_NAMES if "istributed" in name]
    return {
        **on_instances,
        **{name: functools.partial(_try_distributed, name) for name in distributed},
        "torch._C._autograd._get_sequence_nr": _try_sequence_numbers,
        "torch._C._current_autograd_node": _try_sequence_numbers,
        "torch.autograd.Node._sequence_nr": _try_sequence_numbers,
        "torch.utils._python_dispatch.TorchDispatchMode": _try_mode,
        "torch._C._dynamo.eval_frame.set_code_exec_strategy": _try_skipping,
        "torch._decomp.decomposition_table": _try_decompositions,
        "torch.ops.OpOverload._op_dk": _try_decompositions,
        "torch.nn.Module._call_impl": _try_module_frames,
        "torch.optim.Optimizer.profile_hook_step": _try_step_frames,
        "torch.optim.Optimizer._opt_called": _try_schedulers,
        "torch.optim.lr_scheduler.LRScheduler._is_initial": _try_schedulers,
        "torch.amp.GradScaler._scale": _try_scale,
    }


def _works(call: Callable[[], Any]) -> bool:
    try:
        call()
    except Exception:
        return False
    return True


def _expect(found: object, expected: object) -> None:
    if found != expected:
        raise RuntimeError(f"{found} instead of {expected}")


class _OwnFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


def _try_distributed(name: str) -> None:
    """Look up what only a torch that was built with torch.distributed has."""
    if not torch.distributed.is_available():
        return
    if name.endswith("._join_config"):  # only instances have it, and they need several ranks
        join: Any = torch_private.look_up("torch.nn.parallel.DistributedDataParallel")
        _expect("_join_config" in join.forward.__globals__ or "_join_config" in _names_in(join), True)
    elif name.endswith("._local_tensor"):
        _expect("_local_tensor" in torch_private.look_up("torch.distributed.tensor.DTensor").__annotations__, True)
    else:
        torch_private.look_up(name)


def _names_in(cls: type) -> set[str]:
    """Return the attributes that the methods of a class use."""
    return {name for method in vars(cls).values() if (code := torch_private.code_of(method)) for name in code.co_names}


def _try_scale() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    scale = torch_private.scale_of(scaler)
    _expect(None if scale is None else float(scale), 8.0)


def _try_sequence_numbers() -> None:
    class Look(_OwnFunction):
        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            seen.append(torch_private.sequence_number_of(torch_private.autograd_node()()))
            return grads[0]

    seen: list[int] = []
    x = torch.ones(1, requires_grad=True)
    number = torch_private.next_sequence_number()()
    Look.apply(x).backward()  # type: ignore[no-untyped-call]
    _expect(seen, [number])


def _try_skipping() -> None:
    _expect(torch_private.skip_by_compiler() is None, False)
    torch_private.never_compiled(lambda: None)


def _try_module_frames() -> None:
    class Inner(nn.Module):
        def forward(self, *, x: int) -> int:
            seen.append(
                (torch_private.num_running_modules(), [type(module) for module in torch_private.calls_of_modules()])
            )
            return x

    class Outer(nn.Module):
        def forward(self, inner: Inner) -> None:
            inner(x=1)

    seen: list[Any] = []
    outer, inner = Outer(), Inner()
    hooks = [outer.register_forward_pre_hook(lambda module, args: None)]
    hooks.append(inner.register_forward_pre_hook(lambda module, args: seen.append(torch_private.keyword_arguments())))
    try:
        outer(inner)
    finally:
        for hook in hooks:
            hook.remove()
    _expect(seen, [{"x": 1}, (2, [Inner, Outer])])


def _try_step_frames() -> None:
    def closure() -> torch.Tensor:
        seen.append(torch_private.num_running_steps())
        return torch.zeros(())

    seen: list[int] = []
    torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1).step(closure)
    _expect((seen, torch_private.num_running_steps()), ([1], 0))


def _try_schedulers() -> None:
    class Scheduler(torch.optim.lr_scheduler.LRScheduler):
        def get_lr(self) -> list[float | torch.Tensor]:
            return [0.1]

        def step(self, epoch: int | None = None) -> None:
            seen.append(torch_private.is_initial_step(self))
            super().step()

    seen: list[bool] = []
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    scheduler = Scheduler(optimizer)
    torch_private.mark_as_stepped(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()
    _expect(seen, [True, False])


def _try_decompositions() -> None:
    x = torch.ones(2)
    gelu = torch_private.decomposition_of(torch.ops.aten.gelu.default)
    _expect(gelu is not None and torch.allclose(gelu(x), torch.nn.functional.gelu(x)), True)
    add = torch_private.aten_op("_foreach_add_.Scalar")
    _expect(torch_private.one_by_one(add) is add, False)
    torch_private.one_by_one(add)([x], 1.0)
    _expect(x.tolist(), [2.0, 2.0])


def _try_mode() -> None:
    class Counting(torch_private.DispatchMode):
        num_ops = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.num_ops += 1
            return func(*args, **(kwargs or {}))

    mode = Counting()
    torch_private.push_mode(mode)
    try:
        torch.zeros(1)
    finally:
        torch_private.remove_mode(mode)
    _expect(mode.num_ops, 1)

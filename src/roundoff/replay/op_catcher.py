"""Catches one op of a replayed step with its real inputs and runs it in fp64: did it leave the range, or its domain?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from roundoff.record.reference import IntroducedError
from roundoff.record.reference.exact_rerun import run_in_fp64
from roundoff.record.reference.op_call import OpCall, Signature, list_tensors
from roundoff.record.tensor_bytes import bytes_of, file_dtype
from roundoff.runs import Event, JsonValue, Origin, RunWriter, TensorWriter
from roundoff.torch_private import OpOverload


class OpCatcher:
    """Takes the place of a recording's reference: it sees each op before and after, and writes down the one it awaits.

    Args:
        bad: the event of the bad result, from an earlier replay of the same step.
        writer: of the folder of the replayed step.
    """

    def __init__(self, bad: Event, *, writer: RunWriter) -> None:
        self.not_judged: dict[str, str] = {}
        self.num_rows: Callable[[], int] = lambda: -1
        """Returns how many rows the recording has so far, which is the op's position in the step."""
        self._bad = bad
        self._writer = writer
        self._is_done = False

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpCall | None:
        """Keep the arguments; those that the op writes into are copied."""
        if self._is_done or not isinstance(func, OpOverload):
            return None
        call = OpCall(signature=Signature.of(func), args=tuple(args), kwargs=dict(kwargs))
        written = call.signature.written
        return call.change(lambda name, value: _copy_tensors(value) if name in written else value)

    def after(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Sequence[Tensor]
    ) -> list[IntroducedError | None] | None:
        """Write the op down if it is the awaited one."""
        first = self.num_rows()
        if first <= self._bad.order < first + len(found) and not self._is_done:
            self._is_done = True
            self._write(call, list(found), found[self._bad.order - first])
        return None

    def _write(self, call: OpCall, results: list[Tensor], bad: Tensor) -> None:
        exact = _in_fp64(call)
        with self._writer.origin_tensors() as file:
            arguments = {name: save_argument(file, name, value) for name, value in call.items()}
            for number, x in enumerate(results):
                save_tensor(file, f"output{number}", x)
            for number, x in enumerate(exact or ()):
                save_tensor(file, f"fp64_output{number}", x)
        event = self._bad
        nonfinite = (~torch.isfinite(bad)).nonzero()
        self._writer.write(
            Origin(
                step=event.step,
                phase=event.phase,
                site=event.site,
                op=event.op_name,
                overload=overload_name(call.signature.op),
                microbatch=event.microbatch,
                parameter=event.parameter,
                source=event.source,
                arguments=arguments,
                num_outputs=len(results),
                is_finite_in_fp64=None if exact is None else all(bool(torch.isfinite(x).all()) for x in exact),
                fp64_absmax=None if exact is None else _absmax(exact),
                dtype=event.dtype,
                bad_index=tuple(nonfinite[0].tolist()) if len(nonfinite) else None,
            )
        )


def _copy_tensors(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return [_copy_tensors(item) for item in value] if isinstance(value, (list, tuple)) else value


def _in_fp64(call: OpCall) -> list[Tensor] | None:
    try:
        return [x for x in run_in_fp64(call) if x.is_floating_point()]
    except Exception:  # the op has no fp64 version, so the question stays open
        return None


def _absmax(results: Sequence[Tensor]) -> float:
    finite = [x[torch.isfinite(x)].abs() for x in results]
    return max((float(x.max()) for x in finite if x.numel()), default=0.0)


def save_argument(file: TensorWriter, name: str, value: Any) -> JsonValue:
    """Write the tensors of an argument into a file, and return the argument with their names in their place."""
    if isinstance(value, Tensor):
        save_tensor(file, name, value)
        return {"tensor": name} if value.is_contiguous() else {"tensor": name, "stride": list(value.stride())}
    if isinstance(value, (list, tuple)) and list_tensors(value):
        return [save_argument(file, f"{name}.{number}", item) for number, item in enumerate(value)]
    if isinstance(value, (list, tuple)):
        return [save_argument(file, name, item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return {"repr": repr(value)}


def save_tensor(file: TensorWriter, key: str, x: Tensor) -> None:
    """Write a tensor into a file, if files have a name for its dtype."""
    dtype = file_dtype(x)
    if dtype is not None:
        file.add(key, bytes_of(x), dtype=dtype, shape=tuple(x.shape))


def overload_name(op: Any) -> str:
    """Return the name of an operator with that of its overload, `aten::bmm.default`; torch leaves out the default."""
    name = str(op.name())
    return name if "." in name.partition("::")[2] else f"{name}.default"

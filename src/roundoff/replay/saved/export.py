"""Exports the bad op of a saved step as a small script: its real inputs, its output, and the output in fp64."""

from __future__ import annotations

import base64
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from roundoff.errors import ReplayError
from roundoff.runs import JsonValue, Origin, Run, TensorFile, TensorWriter

_EMBEDDED_BYTES = 16 * 2**10
"""Tensors up to this size are embedded in the script itself."""
_PLAIN_NAMES = re.compile(r"torch\.[a-z][a-z0-9_]*")
_DEVICES = re.compile(r"device\(type='([a-z]+)'(?:, index=(\d+))?\)")


def export_repro(replayed: Run, *, to: Path, rank: int = 0) -> list[Path]:
    """Write the script, and next to it a file with the tensors if they are large; return the paths.

    The script needs only torch. It runs the op on its saved inputs, prints the output next to the saved one, and exits
    with 1 if values are not finite again.

    Raises:
        ReplayError: no op was caught, it is not one of torch's own, or it has arguments that a script cannot hold.
    """
    origin = replayed.origin(rank=rank)
    if origin is None:
        raise ReplayError.explain(
            "There is no op to export.",
            why="in this step no single op made a bad value from good ones.",
            fix="roundoff diagnose RUN shows where it came from.",
        )
    _check_exportable(origin)
    if to.exists():
        raise ReplayError.explain(f"'{to}' already exists.", fix="choose another file, or remove this one.")
    if not to.parent.is_dir():
        raise ReplayError.explain(f"'{to}' cannot be written.", why=f"there is no folder '{to.parent}'.")
    tensors = replayed.origin_tensors(rank=rank)
    arguments = {name: _source_of(name, value, tensors) for name, value in origin.arguments.items()}
    tensors_path = to.with_suffix(".safetensors")
    _write_tensors(tensors, tensors_path)
    written = [to, tensors_path]
    data: bytes | None = None
    if tensors_path.stat().st_size <= _EMBEDDED_BYTES:
        data = tensors_path.read_bytes()
        tensors_path.unlink()
        written = [to]
    try:
        to.write_text(_script(origin, arguments, replayed.info.packages, data, tensors_path.name))
    except OSError as error:
        raise _unwritable_error(to, error) from error
    return written


def is_exportable(origin: Origin) -> bool:
    """Say whether an op is one of torch's own."""
    return origin.overload.partition("::")[0] in ("aten", "prims")


def _check_exportable(origin: Origin) -> None:
    namespace, _, name = origin.overload.partition("::")
    packet, _, overload = name.partition(".")
    if not is_exportable(origin):
        raise ReplayError.explain(
            f"'{origin.op}' cannot be exported.",
            why=f"it is an op of '{namespace}', not of torch, and the script needs only torch.",
            fix="run the whole step again: roundoff replay RUN --builder FILE.py:function",
        )
    if not hasattr(getattr(getattr(torch.ops, namespace), packet, None), overload):
        raise ReplayError.explain(f"This torch has no op '{origin.overload}'.", why="it was saved by another version.")


def _source_of(name: str, value: JsonValue, tensors: TensorFile) -> str:
    """Return an argument as Python source."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_source_of(name, item, tensors) for item in value)}]"
    if isinstance(value, Mapping) and "tensor" in value:
        if value["tensor"] not in tensors:
            raise _argument_error(name, "its tensor was not saved: its dtype cannot be written to a file")
        key: Any = value["tensor"]
        stride: Any = value.get("stride")
        layout = f", stride={tuple(stride)}" if stride and _has_no_overlap(tensors.entry(key).shape, stride) else ""
        return f"tensor({key!r}{layout})"
    if isinstance(value, Mapping):
        return _source_of_other(name, str(value.get("repr")))
    if isinstance(value, float):
        return f"float({str(value)!r})" if value != value or value in (float("inf"), -float("inf")) else repr(value)
    return repr(value)


def _has_no_overlap(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Say whether no two elements share memory, except along expanded dimensions."""
    kept = [(size, step) for size, step in zip(shape, stride, strict=True) if step]
    return math.prod(size for size, _ in kept) <= 1 + sum((size - 1) * step for size, step in kept)


def _source_of_other(name: str, text: str) -> str:
    if _PLAIN_NAMES.fullmatch(text) and hasattr(torch, text.removeprefix("torch.")):
        return text
    if match := _DEVICES.fullmatch(text):
        return f"torch.device({match[1] + (':' + match[2] if match[2] else '')!r})"
    raise _argument_error(name, f"{text} cannot be written as Python source")


def _write_tensors(tensors: TensorFile, path: Path) -> None:
    try:
        with TensorWriter(path) as file:
            for key in tensors:
                entry = tensors.entry(key)
                file.add(key, tensors[key], dtype=entry.dtype, shape=entry.shape)
    except OSError as error:
        raise _unwritable_error(path, error) from error


def _script(
    origin: Origin, arguments: Mapping[str, str], packages: Mapping[str, Any], data: bytes | None, tensors_name: str
) -> str:
    return _SCRIPT.format(
        overload=origin.overload,
        op=origin.overload.replace("::", "."),
        where=", ".join(part for part in (origin.site, origin.phase, f"step {origin.step}", origin.source) if part)
        + f", with torch {packages.get('torch', 'unknown')}",
        data="".join(_data_lines(data))
        if data is not None
        else f"Path(__file__).with_name({tensors_name!r}).read_bytes()",
        arguments="".join(f"    {name!r}: {source},\n" for name, source in arguments.items()),
        num_outputs=origin.num_outputs,
    )


def _data_lines(data: bytes) -> Iterator[str]:
    yield 'base64.b64decode("""\n'
    for line in textwrap.wrap(base64.b64encode(data).decode(), 116):
        yield line + "\n"
    yield '""")'


def _argument_error(name: str, why: str) -> ReplayError:
    return ReplayError.explain(
        f"The argument '{name}' of the op cannot be written into a script.",
        why=f"{why}.",
        fix="run the whole step again: roundoff replay RUN --builder FILE.py:function",
    )


def _unwritable_error(path: Path, error: OSError) -> ReplayError:
    return ReplayError.explain(f"'{path}' cannot be written.", why=f"{error.strerror}.")


_SCRIPT = '''\
"""{overload} returns values that are not finite from inputs that are.

Needs only torch. Exits with 1 if the values are not finite again.
"""

import base64
import json
import sys
from pathlib import Path

import torch

DATA = {data}
HEADER = json.loads(DATA[8 : 8 + int.from_bytes(DATA[:8], "little")])
START = 8 + int.from_bytes(DATA[:8], "little")
DTYPES = {{
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U64": torch.uint64,
    "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}}


def tensor(key, stride=None):
    """Return a saved tensor, with its strides if it was not contiguous."""
    entry = HEADER[key]
    begin, end = entry["data_offsets"]
    x = torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]])
    if x.numel():
        x = torch.frombuffer(bytearray(DATA[START + begin : START + end]), dtype=x.dtype).reshape(entry["shape"])
    if stride is None:
        return x
    for dim in [dim for dim, step in enumerate(stride) if not step]:
        x = x.narrow(dim, 0, min(1, x.shape[dim]))
    return torch.empty_strided(x.shape, stride, dtype=x.dtype).copy_(x).expand(entry["shape"])


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [x for part in value for x in tensors_in(part)] if isinstance(value, (list, tuple)) else []


def describe(x, places):
    """Say how many values are not finite, and which values are at the places."""
    bad = int((~torch.isfinite(x.double())).sum())
    values = ", ".join(f"{{place}}: {{x[tuple(place)].item()}}" for place in places)
    return f"{{bad}} of {{x.numel()}} not finite" + (f";  {{values}}" if values else "")


arguments = {{
{arguments}}}
op = torch.ops.{op}

print(f"{overload}, torch {{torch.__version__}}")
print("  seen in    ", {where!r})
for name, value in arguments.items():
    for x in tensors_in(value):
        wide = x.double() if x.is_floating_point() else x
        span = f"{{wide.min().item():g}} to {{wide.max().item():g}}" if x.numel() and not x.is_complex() else ""
        print(f"  {{name:<12}}{{str(x.dtype)[6:]:<10}}{{list(x.shape)}}  {{span}}")
    if not tensors_in(value):
        print(f"  {{name:<12}}{{value}}")

written = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
result = op(**arguments)
outputs = tensors_in(result) or [x for name in written for x in tensors_in(arguments.get(name))]
is_bad = False
for number, now in enumerate(outputs[:{num_outputs}]):
    saved = tensor(f"output{{number}}") if f"output{{number}}" in HEADER else None
    exact = tensor(f"fp64_output{{number}}") if f"fp64_output{{number}}" in HEADER else None
    if not now.is_floating_point():
        continue
    places = (~torch.isfinite(now.double())).nonzero()[:3].tolist()
    is_bad |= bool(places)
    print(f"output{{number}}  {{describe(now, places)}}")
    if saved is not None and saved.shape == now.shape:
        same = bool(((now == saved) | (now.isnan() & saved.isnan())).all())
        print(f"  saved   {{describe(saved, places)}}  ({{'the same' if same else 'not the same'}})")
    if exact is not None and exact.shape == now.shape:
        print(f"  fp64    {{describe(exact, places)}}")
sys.exit(1 if is_bad else 0)
'''

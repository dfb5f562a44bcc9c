"""Exports the bad op of a saved step as a small script: its real inputs, its output, and the output in fp64."""

from __future__ import annotations

import base64
import contextlib
import math
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from roundoff.errors import ReplayError
from roundoff.files import read_bytes, write_atomically
from roundoff.record.device_check import MIN_ULPS, CheckedOp
from roundoff.replay.op_catcher import overload_name, save_argument, save_tensor
from roundoff.runs import JsonValue, Origin, Run, TensorFile, TensorWriter
from roundoff.torch_private import OpOverload

_EMBEDDED_BYTES = 16 * 2**10
"""Tensors up to this size are embedded in the script itself."""
_OVERLOADS = re.compile(r"(aten|prims)::([A-Za-z_][A-Za-z0-9_]*)\.([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
_FILE_OPS = frozenset({"from_file", "save"})
_PLAIN_NAMES = re.compile(r"torch\.([a-z][a-z0-9_]*)", re.ASCII)
_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)
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
    _check_free(to)
    tensors = replayed.origin_tensors(rank=rank)
    arguments = {name: _source_of(name, value, tensors) for name, value in origin.arguments.items()}
    where = (origin.site, origin.phase, f"step {origin.step}", origin.source)
    with _writing_tensors(to) as file:
        for key in tensors:
            entry = tensors.entry(key)
            file.add(key, tensors[key], dtype=entry.dtype, shape=entry.shape)
    return _write_script(
        to,
        _SCRIPT,
        overload=origin.overload,
        where=_place_text(where, replayed.info.packages.get("torch", "unknown")),
        arguments=arguments,
        num_outputs=origin.num_outputs,
    )


def export_check(op: CheckedOp, *, to: Path) -> list[Path]:
    """Write a script that runs a checked op on its device, twice, and holds the result against the exact one.

    The script needs only torch. It exits with 1 if the error is large or the two results differ.

    Raises:
        ReplayError: its arguments were too large to keep, or a script cannot hold them.
    """
    if op.call is None:
        raise ReplayError.explain(f"'{op.overload}' cannot be exported.", why="its tensors were too large to keep.")
    _check_free(to)
    with _writing_tensors(to) as file:
        given = {name: save_argument(file, name, value) for name, value in op.call.items()}
        for number, (reference, scale) in enumerate(op.exact()):
            save_tensor(file, f"exact{number}", reference)
            save_tensor(file, f"scale{number}", scale)
    tensors = TensorFile(to.with_suffix(".safetensors"))
    try:
        arguments = {name: _source_of(name, value, tensors) for name, value in given.items()}
    except ReplayError:
        tensors.path.unlink()
        raise
    return _write_script(
        to,
        _CHECK_SCRIPT,
        overload=overload_name(op.call.signature.op),
        where=_place_text((op.place.site, op.place.phase, f"step {op.step}"), torch.__version__),
        arguments=arguments,
        device=op.device,
        max_ulps=MIN_ULPS,
    )


def _check_free(path: Path) -> None:
    if os.path.lexists(path):
        raise ReplayError.explain(f"'{path}' already exists.", fix="choose another file, or remove this one.")
    if not path.parent.is_dir():
        raise ReplayError.explain(f"'{path}' cannot be written.", why=f"there is no folder '{path.parent}'.")


@contextlib.contextmanager
def _writing_tensors(to: Path) -> Iterator[TensorWriter]:
    path = to.with_suffix(".safetensors")
    try:
        with TensorWriter(path) as file:
            yield file
    except OSError as error:
        raise _unwritable_error(path, error) from error


def _write_script(to: Path, template: str, *, overload: str, arguments: Mapping[str, str], **values: Any) -> list[Path]:
    """Write a script for the tensors that lie next to it; small ones move into it."""
    tensors_path = to.with_suffix(".safetensors")
    written = [to, tensors_path]
    data = f"Path(__file__).with_name({tensors_path.name!r}).read_bytes()"
    if tensors_path.stat().st_size <= _EMBEDDED_BYTES:
        data = "".join(_data_lines(read_bytes(tensors_path)))
        tensors_path.unlink()
        written = [to]
    text = template.format(
        overload=overload,
        op=overload.replace("::", "."),
        reading=_READING.format(data=data),
        arguments="".join(f"    {name!r}: {source},\n" for name, source in arguments.items()),
        **values,
    )
    try:
        write_atomically(to, text.encode())
    except OSError as error:
        raise _unwritable_error(to, error) from error
    return written


def _place_text(parts: Sequence[str | None], version: Any) -> str:
    return ", ".join(part for part in parts if part) + f", with torch {version}"


def is_exportable(origin: Origin) -> bool:
    """Return whether an op is one of torch's own."""
    return origin.overload.partition("::")[0] in ("aten", "prims")


def _check_exportable(origin: Origin) -> None:
    namespace = origin.overload.partition("::")[0]
    if not is_exportable(origin):
        raise ReplayError.explain(
            f"'{origin.op}' cannot be exported.",
            why=f"it is an op of '{namespace}', not of torch, and the script needs only torch.",
            fix="run the whole step again: roundoff replay RUN --builder FILE.py:function",
        )
    if _find_overload(origin.overload) is None:
        raise ReplayError.explain(
            f"This torch has no op {origin.overload!r:.100}.", why="it was saved by another version, or is not a name."
        )


def _find_overload(text: str) -> OpOverload | None:
    """Return the op of torch with exactly this name: the text comes from a file and goes into a script."""
    match = _OVERLOADS.fullmatch(text)
    if match is None or match[2] in _FILE_OPS:
        return None
    found = getattr(getattr(getattr(torch.ops, match[1]), match[2], None), match[3], None)
    return found if isinstance(found, OpOverload) else None


def _source_of(name: str, value: JsonValue, tensors: TensorFile) -> str:
    """Return an argument as Python source."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_source_of(name, item, tensors) for item in value)}]"
    if isinstance(value, Mapping) and "tensor" in value:
        key = value["tensor"]
        if not isinstance(key, str) or key not in tensors:
            raise _argument_error(name, "its tensor was not saved: its dtype cannot be written to a file")
        return f"tensor({key!r}{_layout(name, tensors.entry(key).shape, value.get('stride'))})"
    if isinstance(value, Mapping):
        return _source_of_other(name, str(value.get("repr")))
    if isinstance(value, float):
        return f"float({str(value)!r})" if value != value or value in (float("inf"), -float("inf")) else repr(value)
    return repr(value)


def _layout(name: str, shape: Sequence[int], stride: JsonValue) -> str:
    if not stride:
        return ""
    if not isinstance(stride, list) or len(stride) != len(shape) or not all(type(step) is int for step in stride):
        raise _argument_error(name, "its strides are invalid")
    return f", stride={tuple(stride)}" if _has_no_overlap(shape, stride) else ""


def _has_no_overlap(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether no two elements share memory, except along expanded dimensions."""
    kept = [(size, step) for size, step in zip(shape, stride, strict=True) if step]
    return math.prod(size for size, _ in kept) <= 1 + sum((size - 1) * step for size, step in kept)


def _source_of_other(name: str, text: str) -> str:
    if (match := _PLAIN_NAMES.fullmatch(text)) and isinstance(getattr(torch, match[1], None), _CONSTANTS):
        return text
    if match := _DEVICES.fullmatch(text):
        return f"torch.device({match[1] + (':' + match[2] if match[2] else '')!r})"
    raise _argument_error(name, f"{text[:100]!r} cannot be written as Python source")


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


_READING = '''\
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
'''

_SCRIPT = '''\
"""{overload} returns values that are not finite from inputs that are.

Needs only torch. Exits with 1 if the values are not finite again.
"""

{reading}

def describe(x, places):
    """Describe how many values are not finite, and which values are at the places."""
    bad = int((~torch.isfinite(x.double())).sum())
    values = ", ".join(f"{{place}}: {{x[tuple(place)].item()}}" for place in places)
    return f"{{bad}} of {{x.numel()}} not finite" + (f";  {{values}}" if values else "")


arguments = {{
{arguments}}}
op = torch.ops.{op}

print(f"{overload}, torch {{torch.__version__}}")
width = max(map(len, ["seen in", *arguments])) + 2
print(f"  {{'seen in':<{{width}}}}" + {where!r})
for name, value in arguments.items():
    for x in tensors_in(value):
        wide = x.double() if x.is_floating_point() else x
        span = f"{{wide.min().item():g}} to {{wide.max().item():g}}" if x.numel() and not x.is_complex() else ""
        print(f"  {{name:<{{width}}}}{{str(x.dtype)[6:]:<10}}{{list(x.shape)}}  {{span}}")
    if not tensors_in(value):
        print(f"  {{name:<{{width}}}}{{value}}")

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

_CHECK_SCRIPT = '''\
"""{overload} on a device, held against the exact result of the same inputs.

Needs only torch. Takes the device as an argument, by default {device}. Exits with 1 if the error is large, or if two
runs give different bits.
"""

{reading}

def put(value, device):
    if isinstance(value, torch.Tensor):
        return value.to(device, copy=True)
    return [put(part, device) for part in value] if isinstance(value, (list, tuple)) else value


def run(device):
    """Return the tensors that the op computes on a device, on the host."""
    given = {{name: put(value, device) for name, value in arguments.items()}}
    result = op(**given)
    written = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [x.cpu() for x in tensors_in(result) or [x for name in written for x in tensors_in(given.get(name))]]


arguments = {{
{arguments}}}
op = torch.ops.{op}
device = sys.argv[1] if len(sys.argv) > 1 else {device!r}

print(f"{overload}, torch {{torch.__version__}}, on {{device}}")
width = max(map(len, ["seen in", *arguments])) + 2
print(f"  {{'seen in':<{{width}}}}" + {where!r})
for name, value in arguments.items():
    for x in tensors_in(value):
        print(f"  {{name:<{{width}}}}{{str(x.dtype)[6:]:<10}}{{list(x.shape)}}")
    if not tensors_in(value):
        print(f"  {{name:<{{width}}}}{{value}}")

is_bad = False
for number, (first, second) in enumerate(zip(run(device), run(device))):
    same = bool(((first == second) | (first.isnan() & second.isnan())).all())
    is_bad |= not same
    text = "" if same else "; a second run differs"
    if first.is_floating_point() and f"exact{{number}}" in HEADER:
        exact, scale = tensor(f"exact{{number}}").double(), tensor(f"scale{{number}}").double()
        info = torch.finfo(first.dtype)
        agrees = (first == exact) | (first.isnan() & exact.isnan()) | (first.isinf() & (exact.abs() > info.max))
        unit = scale.clamp(min=info.smallest_normal / info.eps) * info.eps
        ulps = (first.double() - exact).abs().masked_fill(agrees, 0) / unit
        worst = float(ulps.max()) if ulps.numel() else 0.0
        is_bad |= not worst <= {max_ulps}
        place = tuple(int(i) for i in torch.unravel_index(ulps.argmax(), ulps.shape)) if ulps.numel() else ()
        found = f"at {{list(place)}}: {{first[place]:.9g}}, exactly {{exact[place]:.9g}}"
        text = f"largest error {{worst:.4g}} ulps, {{found}}{{text}}"
    print(f"output{{number}}  {{text or 'the same twice'}}")
sys.exit(1 if is_bad else 0)
'''

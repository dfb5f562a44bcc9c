"""Saves a tensor of any framework, to be compared with another one's; needs numpy alone."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundoff.errors import CompareError

Array = npt.NDArray[Any]

BFLOAT16 = np.dtype("V2")
"""numpy has no bfloat16: raw two-byte values represent it, as in .npy files of ml_dtypes arrays."""

_MAX_NAME = 120


def save_tensor(name: str, x: object, *, to: Path | str = "tensors") -> Path:
    """Save a tensor as the next file of a folder, `tensors/00012-name.npy`, and return the file.

    Call it at the same places of two programs, then compare the folders: `roundoff compare REF CAND`. `x` is an array
    of numpy, or a tensor of PyTorch, JAX, MindSpore, Paddle or TensorFlow, on any device; bfloat16 stays bfloat16,
    8-bit floats become float32. Characters that are invalid in file names become `_`.
    """
    array = as_array(x, name=name)
    folder = Path(to)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _write(folder, _safe(name), array)
    except OSError as error:
        raise CompareError.explain(
            f"The tensor '{name}' cannot be saved in '{folder}'.", why=f"{error.strerror or error}."
        ) from error


def as_array(x: object, *, name: str = "x") -> Array:
    """Return any framework's tensor as an array of plain numbers, or of two bytes each where it is bfloat16."""
    is_bfloat16 = str(getattr(x, "dtype", "")).lower().endswith("bfloat16")
    array = np.asarray(_on_host(x, is_bfloat16=is_bfloat16))
    if is_bfloat16:
        array = _bfloat16_bits(array)
    elif array.dtype.kind == "V" and array.dtype.names is None and array.dtype.itemsize == 1:  # 8-bit floats
        array = array.astype(np.float32)
    if array.dtype.kind not in "biufc" and array.dtype != BFLOAT16:
        raise CompareError.explain(
            f"The tensor '{name}' cannot be saved.",
            why=f"it is a {type(x).__name__} that gives an array of {array.dtype}.",
            fix="pass an array or a tensor of numbers.",
        )
    return array


def _on_host(x: Any, *, is_bfloat16: bool) -> Any:
    """Fetch a tensor from its device, as float32 if the framework cannot convert its dtype to numpy."""
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "detach"):  # PyTorch and Paddle
        x = x.detach()
    if hasattr(x, "cpu"):
        x = x.cpu()
    if hasattr(x, "resolve_conj"):  # PyTorch's lazy conjugates cannot be converted
        x = x.resolve_conj().resolve_neg()
    is_narrow_torch = hasattr(x, "float") and (is_bfloat16 or "float8" in str(getattr(x, "dtype", "")))
    if is_narrow_torch:
        x = x.float()
    for method in ("asnumpy", "numpy"):  # MindSpore; PyTorch, Paddle, TensorFlow
        if hasattr(x, method):
            return getattr(x, method)()
    return x


def _bfloat16_bits(array: Array) -> Array:
    """Return the upper halves of float32 values, or the bits if the array has two-byte elements."""
    if array.dtype.itemsize == 2:  # Paddle's uint16, and ml_dtypes
        return np.ascontiguousarray(array).view(BFLOAT16)
    return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16)


def _write(folder: Path, name: str, array: Array) -> Path:
    number = _next_number(folder)
    while True:
        path = folder / f"{number:05}-{name}.npy"
        try:
            with path.open("xb") as file:
                np.save(file, array, allow_pickle=False)
            return path
        except FileExistsError:  # another process saved one meanwhile
            number += 1


def _next_number(folder: Path) -> int:
    """Return one more than the largest number.

    A folder may hold tens of thousands: as long as all have five digits, the last name has the largest number.
    """
    names = os.listdir(folder)
    last = re.match(r"([0-9]{5})-", max(names, default=""))
    if last and last[1] != "99999":
        return int(last[1]) + 1
    numbers = (re.match(r"([0-9]+)-", name) for name in names)
    return max((int(number[1]) + 1 for number in numbers if number), default=0)


def _safe(name: str) -> str:
    r"""Make a name of a file of any text.

    >>> _safe("../x"), _safe("<b>"), _safe("blocks.3.mlp/out")
    ('x', 'b', 'blocks.3.mlp_out')
    """
    return re.sub(r"[^\w.\-]+", "_", name).strip("._")[:_MAX_NAME] or "tensor"

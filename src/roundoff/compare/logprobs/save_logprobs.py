"""Saves what an engine computed for its tokens, in one line on either side; needs numpy, and torch for fingerprints."""

from __future__ import annotations

import io
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roundoff.compare.logprobs.fingerprints import fingerprint_weights
from roundoff.compare.logprobs.logprob_files import FACTS_FILE, SUFFIXES
from roundoff.compare.logprobs.logprob_table import WIDE, Array
from roundoff.compare.tensors.save_tensor import BFLOAT16, as_array
from roundoff.errors import CompareError
from roundoff.files import append_text, make_folder, write_atomically, write_output
from roundoff.runs.files.columns import Interned, Rows, Values
from roundoff.runs.files.parquet import to_parquet
from roundoff.runs.files.schema import Column, ColumnType, Table

_MAX_PART_ROWS = 1 << 20
_HEADS = ("lm_head", "head", "embed_out", "output")


def save_logprobs(
    to: Path | str,
    tokens: object,
    logprobs: object,
    *,
    sample: object,
    position: object = None,
    mask: object = None,
    top_tokens: object = None,
    top_logprobs: object = None,
    logits: object = None,
    routing: object = None,
    version: int | None = None,
    padding: object = None,
    batch_size: object = None,
    model: object = None,
    dtype: object = None,
    head_dtype: object = None,
    layers: int | None = None,
    weights: object = None,
) -> Path:
    """Append the log-probabilities of tokens to a table, and return its path.

    Call it in the trainer and in the rollout engine, then `roundoff compare --logprobs TRAINER ROLLOUT`. Arguments may
    be tensors of any framework, dtype and device, arrays or lists.

    Args:
        to: `x.parquet`, a folder to which every call adds a part; `x.jsonl`, to which it adds lines; or `x.npz`, which
            takes one call only.
        tokens: the ids of one sample, or of several: samples by tokens.
        logprobs: of the same shape.
        sample: what names the sample on both sides; one for each sample.
        position: of each token in its sample; by default they are counted from 0, where the mask is set.
        mask: of the same shape as `tokens`: which of them to save.
        top_tokens: for each token, ids of the most probable ones at its place.
        top_logprobs: their log-probabilities. With these, temperature, top-p, top-k and the head's format are provable.
        logits: for each token, the logits of the whole vocabulary, for small ones.
        routing: for each token, the experts that it was sent to: layers by experts.
        version: of the weights that were used.
        padding: how many padding tokens each sample had in its batch.
        batch_size: how many samples each one was computed with, itself included; by default all of these.
        model: the model; tells the format of its layers and of its head, and how many layers it has.
        dtype: the format in which the layers compute, where there is no model to ask.
        head_dtype: the same of the last layer, which makes the logits.
        layers: how many there are.
        weights: the model, or names and tensors, whose fingerprints are saved under `version`; costs a pass over them.
    """
    path = Path(to)
    if path.suffix not in SUFFIXES:
        raise CompareError.explain(f"'{path}' is no table of log-probabilities.", fix=f"end it with {SUFFIXES[0]}.")
    columns = _columns(tokens, logprobs, sample, position=position, mask=mask)
    for name, each in (("version", version), ("padding", padding), ("batch_size", batch_size)):
        if each is not None:
            columns[name] = _for_each_sample(name, each, columns["shape"])
    wide = {"top_tokens": top_tokens, "top_logprobs": top_logprobs, "logits": logits, "routing": routing}
    keep, shape = columns.pop("keep"), columns.pop("shape")
    for name, values in wide.items():
        if values is not None:
            array = _numbers(values, name)
            _check_shape(name, array.shape[: len(shape)], shape)
            if name == "routing" and array.ndim > len(shape) + 1:
                array = np.sort(array, axis=-1)  # the order of a layer's experts does not matter
            columns[name] = array.reshape(math.prod(shape), -1)
    rows = {name: values[keep] for name, values in columns.items()}
    facts = _facts(model, dtype=dtype, head_dtype=head_dtype, layers=layers, weights=weights, version=version)
    try:
        {".parquet": _add_part, ".jsonl": _add_lines, ".npz": _write_npz}[path.suffix](path, rows, facts)
    except OSError as error:
        raise CompareError.explain(f"'{path}' cannot be written.", why=f"{error.strerror or error}.") from error
    return path


def _columns(tokens: object, logprobs: object, sample: object, *, position: object, mask: object) -> dict[str, Any]:
    """Return the columns of every token, saved or not, with the rows to keep and the shape."""
    ids, values = _numbers(tokens, "tokens"), _numbers(logprobs, "logprobs")
    if ids.ndim not in (1, 2):
        raise CompareError.explain(
            f"The tokens have {ids.ndim} dimensions.", fix="pass one sample, or samples by tokens."
        )
    _check_shape("logprobs", values.shape, ids.shape)
    grid = ids.reshape(-1, ids.shape[-1])
    kept = np.ones(grid.shape, dtype=bool) if mask is None else _numbers(mask, "mask").reshape(-1).astype(bool)
    _check_shape("mask", (kept.size,), (grid.size,))
    kept = kept.reshape(grid.shape)
    places = np.cumsum(kept, axis=1) - 1 if position is None else _numbers(position, "position").reshape(grid.shape)
    return {
        "sample": np.repeat(_sample_names(sample, len(grid)), grid.shape[1]),
        "position": places.reshape(-1).astype(np.int32),
        "token": grid.reshape(-1).astype(np.int32),
        "logprob": values.reshape(-1).astype(np.float64 if values.dtype == np.float64 else np.float32),
        "batch_size": np.full(grid.size, len(grid), dtype=np.int32),
        "keep": np.flatnonzero(kept),
        "shape": ids.shape,
    }


def _for_each_sample(name: str, values: object, shape: tuple[int, ...]) -> Array:
    """Repeat a number for each sample, or one for all, for the tokens."""
    numbers, num_samples = np.atleast_1d(_numbers(values, name)), 1 if len(shape) == 1 else shape[0]
    numbers = np.repeat(numbers, num_samples) if numbers.shape == (1,) else numbers
    _check_shape(name, numbers.shape, (num_samples,))
    return np.repeat(numbers.astype(np.int64), shape[-1])


def _sample_names(sample: object, num: int) -> Array:
    """Return one name for each sample: integers, or texts."""
    names = np.atleast_1d(_numbers(sample, "sample") if hasattr(sample, "dtype") else np.asarray(sample))
    _check_shape("sample", names.shape, (num,))
    return names.astype(np.int64) if names.dtype.kind in "iu" else names.astype(str)


def _check_shape(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if tuple(shape) != tuple(wanted):
        raise CompareError.explain(f"'{name}' is of shape {list(shape)}.", why=f"the tokens need {list(wanted)}.")


def _numbers(x: object, name: str) -> Array:
    """Return any tensor, array or list as an array of plain numbers."""
    array = as_array(np.asarray(x) if isinstance(x, Sequence | int) else x, name=name)
    if array.dtype == BFLOAT16:
        array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array


def _facts(model: Any, *, version: int | None, weights: Any, **stated: Any) -> dict[str, Any]:
    """Return what the engine says about itself, as a JSON object; empty if nothing."""
    found = _model_facts(model) if model is not None else {}
    found |= {name: value for name, value in stated.items() if value is not None}
    for name in ("dtype", "head_dtype"):
        if name in found:
            found[name] = str(found[name]).removeprefix("torch.")
    if weights is not None:
        found["weights"] = {"" if version is None else str(version): fingerprint_weights(weights)}
    return found


def _model_facts(model: Any) -> dict[str, Any]:
    """Return the formats of a model's weights, and the length of its longest list of blocks."""
    parameters = dict(model.named_parameters())
    heads = [p for name, p in parameters.items() if name.removesuffix(".weight").rpartition(".")[2] in _HEADS]
    wide = [p for p in parameters.values() if p.ndim >= 2 and all(p is not head for head in heads)]
    lists = [len(list(each.children())) for each in model.modules() if type(each).__name__ == "ModuleList"]
    found: dict[str, Any] = {"layers": max(lists)} if lists else {}
    if wide:
        found |= {"dtype": wide[-1].dtype, "head_dtype": (heads or wide)[-1].dtype}
    return found


def _add_part(path: Path, rows: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
    make_folder(path, parents=True)
    if facts:
        append_text(path / FACTS_FILE, json.dumps(facts) + "\n")
    flat = {**{name: x for name, x in rows.items() if name not in WIDE}, **_number_columns(rows)}
    numbers = itertools.count(sum(1 for file in path.iterdir() if file.suffix == ".parquet"))
    for begin in range(0, len(rows["token"]), _MAX_PART_ROWS):
        part = {name: values[begin : begin + _MAX_PART_ROWS] for name, values in flat.items()}
        file = next(file for n in numbers if not (file := path / f"part-{n:06}.parquet").exists())
        write_atomically(file, _parquet_bytes(part))


def _number_columns(rows: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{name}.{place}": column for name in WIDE if name in rows for place, column in enumerate(rows[name].T)}


def _parquet_bytes(columns: Mapping[str, Array]) -> bytes:
    """Return a part; texts take a dictionary, integers that fit 32 bits, and other numbers float32."""
    types: dict[str, ColumnType] = {}
    values: dict[str, Values | Interned] = {}
    for name, array in columns.items():
        if array.dtype.kind == "U":
            names, codes = np.unique(array, return_inverse=True)
            types[name], values[name] = "string", Interned(codes=codes.astype(np.int32), values=names.tolist())
        elif array.dtype.kind in "iub":
            fits = not len(array) or (array.min() >= -(2**31) and array.max() < 2**31)
            types[name] = "int32" if fits else "int64"
            values[name] = Values(array=array.astype(types[name]))
        else:
            types[name] = "float64" if array.dtype == np.float64 else "float32"
            values[name] = Values(array=array.astype(types[name]))
    table = Table(name="logprobs", columns=tuple(Column(name=n, type=t, meaning="") for n, t in types.items()))
    return to_parquet(Rows(columns=values, num_rows=len(next(iter(columns.values())))), table)


def _add_lines(path: Path, rows: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
    """Add a line for each sample."""
    lines = [json.dumps({"facts": facts})] if facts else []
    samples = rows["sample"]
    begins = np.flatnonzero(np.r_[True, samples[1:] != samples[:-1]]) if len(samples) else np.zeros(0, dtype=int)
    for begin, end in itertools.pairwise([*begins.tolist(), len(samples)]):
        part = {name: values[begin:end].tolist() for name, values in rows.items()}
        one = {name: part[name][0] for name in ("sample", "version", "padding", "batch_size") if name in part}
        lines.append(json.dumps(part | one))
    path.parent.mkdir(parents=True, exist_ok=True)
    append_text(path, "".join(f"{line}\n" for line in lines))


def _write_npz(path: Path, rows: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
    if path.exists():
        raise CompareError.explain(f"'{path}' exists, and cannot grow.", fix="use a .parquet or .jsonl table.")
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {**rows, **({"facts": np.array(json.dumps(facts))} if facts else {})}
    written = io.BytesIO()
    np.savez(written, **arrays)
    write_output(path, written.getvalue())

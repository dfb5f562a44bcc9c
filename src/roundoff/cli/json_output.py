"""What each `--json` prints: a versioned shape for each command, and the one function that prints it.

Shapes are written in short: `"int?"` is an integer or null, `[x]` a list of x, `{"*": x}` an object with any names, a
tuple one of several shapes, and a name that ends in `?` may be missing. After a colon a type has a description.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from roundoff.cli.terminal import echo

if TYPE_CHECKING:
    from roundoff.runs import JsonValue

Shape: TypeAlias = "str | list[Shape] | tuple[Shape, ...] | Mapping[str, Shape]"

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES: Mapping[str, Mapping[str, Any]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "bool": {"type": "boolean"},
    "num": {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]},
    "obj": {"type": "object"},
    "any": {},
    "finding": {"$ref": "#/$defs/finding"},
}

_EDIT: Shape = {
    "file": "str",
    "line": "int: from 1, before any of the edits",
    "action": "str: replace (old by new), insert (new before the line), remove, or change (how is open)",
    "old": "str?",
    "new": "str?",
}
_FINDING: dict[str, Shape] = {
    "id": "str: the code and four digits, the same for the same fault in every run",
    "rule": "str: a code of `roundoff docs my-training-is-wrong`",
    "severity": "str: error, warning or note",
    "confidence": "num: from 0 to 1",
    "step": "int?: from 0",
    "rank": "int?",
    "phase": "str?: forward, backward, optimizer or eval",
    "site": "str?: the module, by its name in the model",
    "op": "str?: the op and its number in the site",
    "parameter": "str?",
    "source": "str?: file:line",
    "title": "str",
    "why": "str",
    "fix": "str",
    "edits": [_EDIT],
    "evidence": ["any"],  # the schema has EVIDENCE_KEYS there
    "related": ["finding"],
}
_ANSWER: Shape = {"checks": "str", "codes": ["str"], "answer": "str", "reason": "str?"}
_PLACE: Shape = {"phase": "str", "site": "str", "op": "str", "microbatch": "int", "source": "str?", "*": "any"}
_LAYOUTS: Shape = {
    "reference": "str", "candidate": "str", "verdict": "str", "differs": "bool", "finding": ("finding", "null"),
    "ranks": ["int"], "mesh": "any", "steps": ["int"], "notes": ["str"], "num_equal": "int", "tensors": ["obj"],
}  # fmt: skip
_WATCHED: Mapping[str, Shape] = {"watched": "str: complete, partial or nothing", "not_watched": ["str"]}
_FORMATS: Shape = {
    **{name: "num" for name in ("num_bits", "largest", "smallest_normal", "smallest_subnormal", "eps")},
    "format": "str",
    "overflow": "str",
}
_ROUNDED: Shape = {"format": "str", "value": "num", "relative_error": "num", "outcome": "str"}
_RECIPE: Shape = {"name": "str", "description": "str", "compute": "str", "overrides": {"*": "str"}, "*": "any"}
_VERIFICATION: Shape = {
    "good": "bool", "losses": ["num?"], "reference_mean": "num", "reference_deviation": "num", "limit": "num",
    "steps": "int?",
}  # fmt: skip
_SPEED: Shape = {
    "launch": {"recipe": "str", "workers": "int", "threads": "int", "procs": "int"},
    "samples_per_second": "num?",
    "first_batch_seconds": "num?",
    "cpu_share": "num?: busy cores",
    "steps": "int",
    "failure": "str?",
}
_UNPAIRED: Shape = {"name": "str", "shape": ["int"], "role": "str", "why": "str", "nearest": "str?", "matters": "bool"}
_TWO: Mapping[str, Shape] = {"reference": "str", "candidate": "str"}
_SITE_OP: Shape = {
    "op": "str", "device": "str", "arguments": "any", "site": "str", "phase": "str", "step": "int", "calls": "int",
    "max_ulps": "num?", "rms_ulps": "num?", "cpu_max_ulps": "num?", "repeatable": "bool?", "wrong": "bool",
    "wrong_channels": ["int"], "channels": "int?",
}  # fmt: skip

SHAPES: Mapping[str, tuple[int, Shape]] = {
    "run": (1, {
        "run": "str", "steps?": "int", "seconds?": "num", "cost?": "num: the share of the time that roundoff took",
        **_WATCHED, "findings": ["finding"],
    }),
    "diagnose": (1, {"run": "str", **_WATCHED, "findings": ["finding"], "checked": ["str"], "answers": [_ANSWER]}),
    "diagnose-finding": (1, {"finding": "finding", "means": "str?", "usual_fix": "str?"}),
    "compare": (1, (
        {**_TWO, "finding": ("finding", "null"), "identical": "bool", "steps": ["int"], "ranks": ["int"],
         "num_tensors": "int", "num_equal": "int", "only_in_one": ["obj"], "rows": ["obj"], "fp64_errors": ["obj"]},
        {"reference_step": "int", "candidate_step": "int", "parameters": ["obj"], "first_growth": "obj?",
         "growths": ["obj"]},
        {"sentence": "str", **_TWO, "formats": ["str"], "differs": "bool", "is_one_training": "bool",
         "pairs": ["obj"], "only_reference": [_UNPAIRED], "only_candidate": [_UNPAIRED]},
        {**_TWO, "verdict": "str", "differs": "bool", "first_divergence": "int?", "num_compared": "int",
         "num_identical": "int", "stretches": ["obj"], "spikes": ["int"],
         "shapes": {"reference": "obj", "candidate": "obj"},
         "end": {"reference": "num?", "candidate": "num?", "noise": "num?"}, "shared_noise": "num?",
         "is_interpolated": "bool"},
        {"sentence": "str", **_TWO, "differs": "bool", "first": "str?", "pairs": ["obj"], "only_reference": ["obj"],
         "only_candidate": ["obj"]},
        {**_TWO, "verdict": "str", "differs": "bool", "cause": "str?", "finding": ("finding", "null"),
         "num_tokens": "int", "num_only_reference": "int", "num_only_candidate": "int", "num_impossible": "int",
         "statistics": "obj", "noise": "obj", "share_flipped": "num?", "versions_behind": "any", "worst": ["obj"]},
        {**_TWO, "verdict": "str", "differs": "bool", "finding": ("finding", "null"),
         "seam": {"step": "int", "found_by": "str"}, "lost": ["str"], "parts": ["obj"], "drift": "obj?"},
        {"references": ["str"], "candidate": "str", "passed": "bool", "gates": [
            {"gate": "str", "passed": "bool", "gap": "num", "limit": "num", "relative": "bool", "noise": "num?",
             "num_references": "int", "num_steps": "int", "step": "int?"}]},
        _LAYOUTS,
    )),
    "layouts": (1, _LAYOUTS),
    "report": (1, {
        "page": "str", "size_bytes": "int", "sections": ["str"], "thinned": ["str"], "findings": ["finding"],
    }),
    "record": (1, {"run": "str", "steps": "int", "events": "int", "complaints": ["str"]}),
    "replay": (1, {
        "run": "str", "step": "int", "rank": "int", "origin": (_PLACE, "null"), "models": ["str"],
        "optimizers": ["str"], "num_numbers": "int", "needs_loss": "str?",
        "batch": [{"name": "str", "dtype": "str", "shape": ["int"], "least": "num?", "largest": "num?",
                   "num_nonfinite": "int"}],
    }),
    "replay-again": (1, {
        "run": "str", "step": "int", "recipe": "str?", "is_bad": "bool", "is_same_place": "bool?", "was_bad": "bool",
        "origin": (_PLACE, "null"), "losses": ["num"], "saved_losses": ["num"], "num_same": "int",
        "num_compared": "int", "has_optimizer": "bool", "loss_scale": "num?",
    }),
    "what-if": (1, {
        "run": "str", "step": "int?", "repeat": "int",
        "played": [{"change": "str", "is_good": "bool", "losses": ["num"]}],
    }),
    "runs": (1, [(
        {"path": "str", "started": "str", "status": "str", "recipe": "str?", "num_steps": "int", "last_loss": "num?",
         "findings": (["finding"], "null")},
        {"path": "str", "problem": "str"},
    )]),
    "runs-show": (1, [{
        "step": "int", "rank": "int", "microbatch": "int", "phase": "str", "site": "str", "op": "str", "nth": "int",
        "output": "str", "dtype": "str", "shape": ["int"], "min": "num", "max": "num", "mean": "num",
        "num_nan": "int", "num_posinf": "int", "num_neginf": "int", "hash": "str: 16 hex digits", "*": "any",
    }]),
    "recipes": (1, [_RECIPE]),
    "recipes-show": (1, _RECIPE),
    "formats": (1, [(_FORMATS, _ROUNDED)]),
    "params": (1, {
        "source": "str", "format": "str", "has_values": "bool", "num_elements": "int", "settings": "obj",
        "tensors": [{"name": "str", "shape": ["int"], "dtype": "str", "kind": "str", "num_bytes": "int",
                     "num_elements": "int", "*": "any"}],
    }),
    "train": (1, {
        "top1": "num?", "top5": "num?", "eval_loss": "num?", "perplexity": "num?", "final_loss": "num?",
        "first_step": "int", "steps": "int", "first_nonfinite_step": "int?", "nonfinite": "int", "skipped": "int",
        "unreadable": "int", "ended_nonfinite": "bool", "seconds": "num", "samples_per_second": "num?",
        "saved_activation_bytes": "int?", "run": "str?", "notes": ["str"],
    }),
    "sweep": (1, [{
        "key": "str", "labels": {"*": "str"}, "top1": "num?", "eval_loss": "num?", "steps": "int",
        "first_nonfinite_step": "int?", "ended_nonfinite": "bool", "skipped": "int", "saved_activation_bytes": "int?",
        "seconds": "num", "failure": "str?", "note": "str", "settings": "obj", "recipe_toml": "str?",
    }]),
    "throughput": (1, {"speeds": [_SPEED], "best": _SPEED, "command": "str"}),
    "bisect": (1, {
        "subject": "str", "good": "str", "bad": "str", "found": ["str"], "modules": ["str"], "is_minimal": "bool",
        "without": {"*": "str"}, "num_runs": "int", "seconds": "num", "folder": "str?", "recipe_file": "str?",
        "next_commands": ["str"], "*": "any",
    }),
    "plan": (1, {
        "subject": "str", "recipe": "str", "folder": "str", "good": "bool", "verification": (_VERIFICATION, "null"),
        "*": "any",
    }),
    "plan-watch": (1, {
        "good": "bool", "failure": "str?", "exit_code": "int", "steps": ["int"], "warnings": ["obj"],
        "margins": ["obj"],
    }),
    "check-device": (1, {
        "steps": "any", "reported": [_SITE_OP], "good": [_SITE_OP], "not_checked": "any", "on_cpu": "int",
        "scripts": ["str"],
    }),
    "invariant": (1, {
        "step": "int", "sample": "int?", "size": "int?",
        "batches": [{"batch": "str", "compared": "int", "why_not": "str?", "varying": [
            {"op": "str", "site": "str", "source": "str?", "result": "any", "difference": "num"}]}],
    }),
    "demo": (1, {
        "folder": "str", "page": "str", "recipe": "str", "finding": "finding", "seconds": "num",
        "trainings": [{"recipe": "str", "accuracy": "num?", "last_loss": "num", "first_nonfinite_step": "int?"}],
        "commands": [{"command": "str", "exit_code": "int", "seconds": "num"}],
    }),
    "serve": (1, {"address": "str", "port": "int", "token": "str?", "folder": "str", "num_runs": "int"}),
    "doctor": (1, {
        "ok": "bool", "problems": [{"what": "str", "fix": "str"}], "versions": {"*": "str?"}, "devices": ["str"],
        "num_threads": "int?", "kernels": "str?", "kernels_fix": "str?", "torch_note": "str?", "private_calls": ["obj"],
        "self_test": ["obj"], "features": [{"name": "str", "missing": ["str"], "fix": "str?"}],
    }),
}  # fmt: skip
"""The version of what each command prints, and its shape; versions change when a field goes or gets another meaning."""


def echo_json(name: str, value: JsonValue, *, indent: int | None = None) -> None:
    """Print the JSON of a command; an object begins with the id of its schema."""
    from roundoff.runs import to_json

    if isinstance(value, Mapping):
        value = {"schema": schema_id(name), **value}
    echo(to_json(value, indent=indent))


def schema_id(name: str) -> str:
    """Return the id of a schema, with its version.

    >>> schema_id("diagnose")
    'roundoff/diagnose/1'
    """
    return f"roundoff/{name}/{SHAPES[name][0]}"


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON schema of what a command prints. It allows more fields: a later version may add some."""
    schema = _schema(SHAPES[name][1])
    for each in [schema, *schema.get("anyOf", [])]:
        if each.get("type") == "object":
            each["properties"] = {"schema": {"const": schema_id(name)}, **each["properties"]}
            each["required"] = ["schema", *each["required"]]
    from roundoff.diagnose.evidence_keys import EVIDENCE_KEYS

    measured: Shape = {f"{name}?": shape for name, shape in EVIDENCE_KEYS.items()}
    finding = _schema({**_FINDING, "evidence": [(measured, "any")]})
    return {"$schema": DIALECT, "$id": schema_id(name), **schema, "$defs": {"finding": finding}}


def _schema(shape: Shape) -> dict[str, Any]:
    if isinstance(shape, str):
        word, _, described = shape.partition(": ")
        found = _null_or(dict(_TYPES[word[:-1]])) if word.endswith("?") else _type(word)
        return {**found, "description": described} if described else found
    if isinstance(shape, list):
        return {"type": "array", "items": _schema(shape[0])}
    if isinstance(shape, tuple):
        return {"anyOf": [_schema(each) for each in shape]}
    fields = {name: each for name, each in shape.items() if name != "*"}
    found = {
        "type": "object",
        "properties": {name.removesuffix("?"): _schema(each) for name, each in fields.items()},
        "required": [name for name in fields if not name.endswith("?")],
    }
    return {**found, "additionalProperties": _schema(shape["*"])} if "*" in shape else found


def _type(word: str) -> dict[str, Any]:
    return {"type": "null"} if word == "null" else dict(_TYPES[word])


def _null_or(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}

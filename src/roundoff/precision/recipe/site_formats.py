"""Finds the format of each site and each parameter of a model under a recipe, and the layers that have a role in it."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import torch
from torch import nn

from roundoff.errors import FormatError, RecipeError
from roundoff.formats import SmallFloat, format_named
from roundoff.precision.recipe.recipe import ROLES, Recipe, Role

_Named = dict[str, nn.Module]

CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


def layers_with_roles(model: nn.Module, roles: Sequence[Role]) -> dict[str, nn.Module]:
    """Return the layers that have one of the roles, by name.

    Raises:
        RecipeError: the model has no layer in a role.
    """
    models = {"": model}
    if isinstance(model, nn.ModuleList):  # several models with one recipe
        models = {f"{place}.": each for place, each in enumerate(model)}
    found: dict[str, nn.Module] = {}
    for role in roles:
        names = [
            prefix + name
            for prefix, each in models.items()
            for name in _FINDERS[role]({name: module for name, module in each.named_modules() if name})
        ]
        if not names:
            raise RecipeError.explain(
                f"No layer of {type(model).__name__} has the role '{role}'.",
                why=_MEANINGS[role],
                fix=f'name the layer instead: overrides={{"blocks.0.gate": "fp32"}}; roles are {", ".join(ROLES)}.',
            )
        found |= {name: model.get_submodule(name) for name in names}
    return found


def _heads(modules: _Named) -> list[str]:
    sizes = {module.num_embeddings for module in modules.values() if isinstance(module, nn.Embedding)}
    layers = {name: module for name, module in modules.items() if isinstance(module, nn.Linear)}
    to_words = [name for name, layer in layers.items() if layer.out_features in sizes]
    return to_words[-1:] or [*layers][-1:]


def _routers(modules: _Named) -> list[str]:
    found = []
    for name, module in modules.items():
        if isinstance(module, nn.Linear):
            parent = modules.get(name.rpartition(".")[0])
            if parent is not None and module.out_features in _numbers_of_experts(parent):
                found.append(name)
    return found


def _numbers_of_experts(parent: nn.Module) -> set[int]:
    """Return how many experts a block seems to have: modules of one class in a list, or matrices in one weight."""
    lists = [child for child in parent.children() if isinstance(child, nn.ModuleList)]
    numbers = {len(experts) for experts in lists if len(experts) > 1 and len({type(each) for each in experts}) == 1}
    owners = [parent, *(child for child in parent.children() if not isinstance(child, CONVOLUTIONS))]
    stacked = [weight for owner in owners for weight in owner.parameters(recurse=False) if weight.dim() == 3]
    return numbers | {weight.shape[0] for weight in stacked if weight.shape[0] > 1}


_FINDERS: Final[dict[Role, Callable[[_Named], list[str]]]] = {"head": _heads, "router": _routers}
_MEANINGS: Final[dict[Role, str]] = {
    "head": "the head is the last nn.Linear with one output for each word of an embedding, or else the last one.",
    "router": "a router is an nn.Linear with one output for each of the experts beside it.",
}

OVERRIDES_VARIABLE = "ROUNDOFF_OVERRIDES"
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)


def site_of(name: str) -> str:
    """Return a module's name without the prefixes of wrappers such as DistributedDataParallel.

    >>> site_of("module.blocks.0._orig_mod.attn")
    'blocks.0.attn'
    """
    for wrapper in _WRAPPERS:
        name = name.removeprefix(wrapper).replace(f".{wrapper}", ".")
    return "" if f"{name}." in _WRAPPERS else name


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm: one of torch's classes, or any class named `...Norm`, such as LlamaRMSNorm."""
    return isinstance(module, _NORMS) or type(module).__name__.endswith("Norm")


def is_torch_norm(module: nn.Module) -> bool:
    """Whether a module is one of torch's norms, which take inputs of any float dtype and sum in fp32."""
    return isinstance(module, _NORMS)


def overrides_in_environment() -> dict[str, str]:
    """Return the overrides in the JSON of `ROUNDOFF_OVERRIDES`, with which a tool changes an unmodified script."""
    text = os.environ.get(OVERRIDES_VARIABLE, "")
    if not text:
        return {}
    try:
        overrides = json.loads(text)
    except json.JSONDecodeError as error:
        raise _bad_variable(text, f"it is not JSON: {error}") from error
    if not isinstance(overrides, dict) or not all(isinstance(fmt, str) for fmt in overrides.values()):
        raise _bad_variable(text, "it must be an object whose values are strings")
    for fmt in overrides.values():
        try:
            format_named(fmt)
        except FormatError as error:
            raise _bad_variable(text, str(error)) from error
    return overrides


def override_sites(model: nn.Module, overrides: Mapping[str, str]) -> dict[nn.Module, str]:
    """Return the modules that patterns match, and all modules below them, with the format of the last match.

    A pattern is a site, with `*`, `?` and `[...]`; `*` also matches dots. Overrides of ops are ignored.

    Raises:
        RecipeError: a pattern matches no site; the message lists some existing ones.
    """
    sites = {site_of(name): module for name, module in model.named_modules() if site_of(name)}
    formats: dict[nn.Module, str] = {}
    for pattern, fmt in overrides.items():
        if names_an_op(pattern):
            continue
        matching = [site for site in sites if fnmatch.fnmatchcase(site, pattern)]
        if not matching:
            raise no_such_site(pattern, fmt, [*sites], model)
        formats.update({module: fmt for site in matching for module in sites[site].modules()})
    return formats


def names_an_op(key: str) -> bool:
    """Whether the key of an override names an op of a site, such as `blocks.1.attn:softmax`."""
    return ":" in key


def no_such_site(key: str, fmt: str, sites: Sequence[str], model: nn.Module) -> RecipeError:
    """Return the error for an override that matches no site."""
    return RecipeError.explain(
        f'The override "{key}" = "{fmt}" matches no site of {type(model).__name__}.',
        why=f"its sites are {', '.join(sites[:12])}{f' and {len(sites) - 12} more' if len(sites) > 12 else ''}.",
        fix="sites are the names of named_modules(); * matches anything: 'blocks.*.attn'.",
    )


class Boundary(NamedTuple):
    """A module whose format differs from the format around it."""

    module: nn.Module
    fmt: str
    around: str


def boundaries(model: nn.Module, recipe: Recipe) -> list[Boundary]:
    """Return the modules whose overridden format differs from that of the module around them.

    A head that is wide because of its role keeps its outputs wide, too: nothing narrow comes after it.
    """
    heads = set(layers_with_roles(model, ("head",)).values()) if "head" in recipe.wide else set()
    formats = override_sites(model, recipe.overrides)
    parents = {child: parent for parent in model.modules() for child in parent.children()}
    found = []
    for module, fmt in formats.items():
        if not _is_called(module):
            continue
        parent = parents[module]
        while not _is_called(parent) and parent in parents:
            parent = parents[parent]
        around = formats.get(parent)
        if around != fmt:
            found.append(Boundary(module, fmt, fmt if module in heads else around or recipe.compute_format))
    return found


def _is_called(module: nn.Module) -> bool:
    """Whether a module has a forward. A list of modules has none, so a format cannot begin there."""
    return type(module).forward is not nn.Module.forward


def norm_boundaries(model: nn.Module, recipe: Recipe) -> list[Boundary]:
    """Return the norms of a cast model whose format is not the model's, except those with an override."""
    if recipe.compute != "cast" or recipe.norms == recipe.compute_format:
        return []
    overridden = override_sites(model, recipe.overrides)
    norms = [module for module in model.modules() if is_norm(module) and module not in overridden]
    return [Boundary(module, recipe.norms, recipe.compute_format) for module in norms]


def formats_of_modules(model: nn.Module, recipe: Recipe) -> dict[nn.Module, str]:
    """Return the format of every module's own parameters and buffers: that of its override, of norms, or of weights."""
    overridden = override_sites(model, recipe.overrides)
    norms = recipe.norms if recipe.compute == "cast" else recipe.weights
    return {
        module: overridden.get(module) or (norms if is_norm(module) else recipe.weights) for module in model.modules()
    }


def formats_of_parameters(model: nn.Module, recipe: Recipe) -> dict[torch.Tensor, str]:
    """Return the format of every parameter; one shared by several modules takes their widest format."""
    formats: dict[torch.Tensor, str] = {}
    for module, fmt in formats_of_modules(model, recipe).items():
        for parameter in module.parameters(recurse=False):
            if parameter not in formats or _bits(fmt) > _bits(formats[parameter]):
                formats[parameter] = fmt
    return formats


def dtype_of(name: str) -> torch.dtype | None:
    """Return the torch dtype that holds exactly the numbers of a format, or None.

    >>> dtype_of("bf16")
    torch.bfloat16
    """
    fmt = format_named(name)
    return fmt.torch_dtype if isinstance(fmt, SmallFloat) else None


def native_dtype(name: str) -> torch.dtype:
    """Return the torch dtype in which a device computes a format.

    Raises:
        RecipeError: there is none.
    """
    dtype = dtype_of(name)
    if dtype is None or dtype.itemsize < 2:
        raise RecipeError.explain(
            f"Format '{name}' cannot be computed natively.",
            why="native arithmetic supports fp32, fp16 and bf16.",
            fix='use arithmetic="emulated".',
        )
    return dtype


def _bits(name: str) -> float:
    return format_named(name).num_bits


def _bad_variable(text: str, why: str) -> RecipeError:
    return RecipeError.explain(
        f"The environment variable {OVERRIDES_VARIABLE} = {text!r} is invalid.",
        why=f"{why}.",
        fix=f"""set it to, for example, {OVERRIDES_VARIABLE}='{{"blocks.*.attn": "fp32"}}', or unset it.""",
    )

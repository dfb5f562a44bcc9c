"""Finds layers by what they do, whatever they are called: the head of a model, and the routers of its experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from torch import nn

from roundoff.errors import RecipeError
from roundoff.precision.recipe.recipe import ROLES, Role

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

"""Names for the modules, tensors and optimizers of a training that are the same in every process that builds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.record.loop.sites import named_places
from roundoff.record.structure import outermost_optimizers, parameters_of


@dataclass(frozen=True, slots=True)
class ModulePlace:
    """The place of a module: the number of its model, and its path in it."""

    model: int
    path: str


class StateNames:
    """Names the parts of a training: `model/fc.weight`, `model1/fc.weight` for the second model, `optimizer/0/exp_avg`.

    Optimizers are in the order of the first parameter of each; parameters that belong to no model are named after their
    place in an optimizer, `optimizer/0/parameter`.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Iterable[Optimizer]) -> None:
        self.models = list(models)
        self._modules: dict[int, ModulePlace] = {}
        self._by_place: dict[ModulePlace, nn.Module] = {}
        self._tensors: dict[str, Tensor] = {}
        self._keys: dict[int, str] = {}
        for number, model in enumerate(self.models):
            self._name_model(number, model)
        order = {id(x): place for place, x in enumerate(self._tensors.values())}
        self.optimizers = sorted(
            outermost_optimizers(optimizers),
            key=lambda optimizer: min((order.get(id(p), len(order)) for p in parameters_of(optimizer)), default=0),
        )
        for number, optimizer in enumerate(self.optimizers):
            for place, parameter in enumerate(parameters_of(optimizer)):
                if id(parameter) not in self._keys:
                    self._name(f"{optimizer_prefix(number)}{place}/parameter", parameter)

    def module_at(self, place: ModulePlace) -> nn.Module | None:
        """Return the module at a place; the outermost one if wrappers share it."""
        return self._by_place.get(place)

    def place_of(self, module: nn.Module) -> ModulePlace | None:
        """Return the place of a module; None if it belongs to no model."""
        return self._modules.get(id(module))

    def tensor(self, key: str) -> Tensor | None:
        """Return the parameter or buffer with that name, or None."""
        return self._tensors.get(key)

    def key_of(self, x: Tensor) -> str | None:
        """Return the name of a parameter or buffer; None if it is neither."""
        return self._keys.get(id(x))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter and buffer once, with its name."""
        yield from self._tensors.items()

    def number_of(self, optimizer: Optimizer) -> int | None:
        """Return the number of an optimizer, or of one that shares its state as a wrapper does; None if unknown."""
        states = [id(known.state) for known in self.optimizers]
        return states.index(id(optimizer.state)) if id(optimizer.state) in states else None

    def _name_model(self, number: int, model: nn.Module) -> None:
        prefix = model_prefix(number)
        for path, module in named_places(model):
            place = ModulePlace(number, path)
            self._modules.setdefault(id(module), place)
            self._by_place.setdefault(place, module)
            for name, x in (*module._parameters.items(), *module._buffers.items()):
                if x is not None:
                    self._name(prefix + (f"{path}.{name}" if path else name), x)

    def _name(self, key: str, x: Tensor) -> None:
        if id(x) not in self._keys and key not in self._tensors:
            self._keys[id(x)] = key
            self._tensors[key] = x


def model_prefix(number: int) -> str:
    """Return the prefix of the names of a model's tensors."""
    return f"model{number or ''}/"


def optimizer_prefix(number: int) -> str:
    """Return the prefix of the names of an optimizer's tensors."""
    return f"optimizer{number or ''}/"

"""The builder that a replay needs: a function of the user that builds the model again, without its values."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.errors import ReplayError, first_line

EXAMPLE = "--builder model.py:build"


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a builder returned: models in the order in which the loop calls them, optimizers in any order, a loss."""

    models: tuple[nn.Module, ...]
    optimizers: tuple[Optimizer, ...] = ()
    loss: Callable[..., Tensor] | None = None
    """`loss(model, *batch)`; without it the saved calls are made again."""


class Builder:
    """A function without arguments, given as `FILE.py:function` or `package.module:function`.

    It returns the model, `(model, optimizer)` or `(model, optimizer, loss)`; several models or optimizers are a list.
    The first call imports the file, with its folder first on the path (for a module, the current folder).
    """

    def __init__(self, text: str) -> None:
        file, colon, name = text.rpartition(":")
        if not colon or not name.isidentifier() or not file:
            raise ReplayError.explain(
                f"Invalid builder '{text}'.",
                why="it is neither FILE.py:function nor package.module:function.",
                fix=f"for example: {EXAMPLE}",
            )
        is_module = all(word.isidentifier() for word in file.split(".")) and not file.endswith(".py")
        if not is_module and not Path(file).is_file():
            raise ReplayError.explain(
                f"There is no builder '{text}'.", why=f"'{file}' is not a file.", fix=f"for example: {EXAMPLE}"
            )
        self.text = text
        self._file = Path(file)
        self._module = file if is_module else None
        self._name = name
        self._function: Callable[[], Any] | None = None

    def __call__(self) -> Built:
        """Call the function and check what it returns."""
        if self._function is None:
            self._function = self._import_function()
        try:
            made = self._function()
        except Exception as error:
            raise self._failure("raised", error) from error
        return self._check_result(made)

    def _import_function(self) -> Callable[[], Any]:
        try:
            module = self._module_in_file() if self._module is None else self._module_by_name(self._module)
        except ReplayError:
            raise
        except Exception as error:
            raise self._failure("could not be imported:", error) from error
        function = getattr(module, self._name, None)
        if not callable(function):
            names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
            raise ReplayError.explain(
                f"'{self._file}' has no function '{self._name}'.",
                why=f"it has {', '.join(names[:8])}." if names else "it has no functions.",
                fix="write a function that returns the model: roundoff docs watch",
            )
        return function  # type: ignore[no-any-return]

    def _module_in_file(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location(self._file.stem, self._file)
        if spec is None or spec.loader is None:
            raise ReplayError.explain(f"'{self._file}' cannot be imported.", why="it is not a Python file.")
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(self._file.resolve().parent))
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    def _module_by_name(self, name: str) -> ModuleType:
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(name)

    def _failure(self, how: str, error: Exception) -> ReplayError:
        frames = traceback.extract_tb(error.__traceback__)
        inside = [frame for frame in frames if Path(frame.filename).resolve() == self._file.resolve()]
        where = f" (line {inside[-1].lineno})" if inside else ""
        return ReplayError.explain(
            f"The builder '{self.text}' {how} {type(error).__name__}.",
            why=f"{first_line(error)}{where}.",
            fix="call it on its own: it must work without arguments.",
        )

    def _check_result(self, made: Any) -> Built:
        parts = made if isinstance(made, tuple) else (made,)
        models, optimizers, loss = (*parts, None, None)[:3]
        built = Built(models=_all_of(models, nn.Module), optimizers=_all_of(optimizers, Optimizer), loss=loss)
        if len(parts) > 3 or not built.models or not (loss is None or callable(loss)) or _is_wrong(optimizers, built):
            kinds = ", ".join(type(part).__name__ for part in parts)
            raise ReplayError.explain(
                f"The builder '{self.text}' does not return a model.",
                why=f"it returned {kinds or 'nothing'}.",
                fix="return model, or (model, optimizer), or (model, optimizer, loss) with loss(model, *batch).",
            )
        return built


def _all_of(value: Any, kind: type[Any]) -> tuple[Any, ...]:
    """Return the value, or the items of a sequence, if all are of the kind; else nothing."""
    found = tuple(value) if isinstance(value, Sequence) else (value,)
    return found if all(isinstance(item, kind) for item in found) else ()


def _is_wrong(optimizers: Any, built: Built) -> bool:
    return not (optimizers is None or optimizers == [] or built.optimizers)

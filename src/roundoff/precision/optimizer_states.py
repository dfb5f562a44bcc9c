"""Optimizer state in few bits: packed between steps, unpacked a piece at a time while torch's own code steps.

`exp_avg` of a parameter becomes `exp_avg_adam8_codes` and `exp_avg_adam8_scales` in the optimizer's state: plain
tensors, which checkpoints and snapshots copy like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from roundoff.errors import RecipeError
from roundoff.kernels.block_codes import CodeMap, code_map, pack_blocks, unpack_blocks
from roundoff.precision.compute.sharded_weights import as_sharded
from roundoff.precision.recipe.recipe import OptimizerState, Recipe

MIN_NUMEL: Final = 4096
"""The state of smaller parameters stays as it is: it takes little memory, and norms and biases are sensitive."""

_CPU_PIECE, _PIECE = 2**17, 2**24
"""Numbers that are unpacked at a time, on the CPU as many as its caches hold; larger parameters are cut."""

_SIGNED: Final = frozenset(("exp_avg", "momentum_buffer"))
_UNSIGNED: Final = frozenset(("exp_avg_sq", "max_exp_avg_sq", "exp_inf"))
_CODES, _SCALES = "_codes", "_scales"

_Maps = tuple[tuple[str, int], tuple[str, int]]
_MAPS: Final[dict[OptimizerState, _Maps]] = {
    "adam8": (("dynamic8", 256), ("dynamic8-unsigned", 256)),
    "adam4": (("dynamic4", 128), ("linear4-unsigned", 128)),
    "adamfp8": (("e4m3", 256), ("e4m3", 256)),
    "muon8": (("linear8", 2048), ("linear8", 2048)),
}
"""The code map and the size of a block, for state with and without a sign."""


def _map_for(name: OptimizerState, key: str) -> CodeMap:
    map_name, block = _MAPS[name][key in _UNSIGNED]
    return code_map(map_name, block=block)


# ---- which optimizer takes which format ------------------------------------------------------------------------------


def _muon() -> tuple[type[Optimizer], ...]:
    muon = getattr(optim, "Muon", None)  # torch has it since 2.9
    return () if muon is None else (muon,)


def state_format_for(optimizer: Optimizer, recipe: Recipe) -> OptimizerState | None:
    """Return the format that a recipe gives to the state of an optimizer; None if it stays as it is."""
    has_momentum = isinstance(optimizer, (optim.SGD, *_muon()))
    is_adam = isinstance(optimizer, (optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax))
    if has_momentum and "muon8" in recipe.optimizer_states:
        return "muon8"
    of_adam: list[OptimizerState] = [name for name in recipe.optimizer_states if name != "muon8"]
    return of_adam[0] if of_adam and (is_adam or has_momentum) else None


def check_optimizer_states(recipe: Recipe, optimizers: Sequence[Optimizer]) -> None:
    """Raise if a format of the recipe applies to none of the optimizers, or their weights are sharded."""
    weights = chain.from_iterable(group["params"] for optimizer in optimizers for group in optimizer.param_groups)
    if recipe.optimizer_states and any(as_sharded(weight) is not None for weight in weights):
        raise RecipeError.explain(
            f"Recipe '{recipe.name}' cannot pack the state of weights sharded by FSDP.",
            why="a checkpoint would contain the packed state of one rank only.",
            fix=f"leave out {' and '.join(recipe.optimizer_states)}: the state of sharded weights is sharded, too.",
        )
    used = {state_format_for(optimizer, recipe) for optimizer in optimizers}
    for name in recipe.optimizer_states:
        if name not in used:
            kinds = ", ".join(sorted({type(optimizer).__name__ for optimizer in optimizers}))
            allowed = "Muon and SGD" if name == "muon8" else "Adam, AdamW, NAdam, RAdam, Adamax, SGD and Muon"
            raise RecipeError.explain(
                f"Recipe '{recipe.name}' cannot pack the state of {kinds}.",
                why=f"{name} is for torch's {allowed}.",
                fix="leave it out of the recipe, or use one of these optimizers.",
            )


# ---- packing and unpacking -------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Piece:
    """The numbers from `start` on of a parameter, which torch steps as `tensor`: a view, or the parameter itself."""

    parameter: Tensor
    tensor: Tensor
    packed: dict[str, Any]
    """The state of the whole parameter, packed."""
    is_new: bool = False
    """Whether torch makes the state in this step; then it makes that of every part."""
    start: int = 0

    @property
    def is_whole(self) -> bool:
        return self.tensor is self.parameter

    @property
    def is_last(self) -> bool:
        return self.is_whole or self.start + self.tensor.numel() == self.parameter.numel()


class PackedStates:
    """Keeps the large state tensors of an optimizer packed between its steps.

    While torch's `step` goes through the parameter groups, it gets them in pieces whose state is unpacked, and which is
    packed again when `step` asks for the next one. So no more than a piece is ever unpacked, and every formula is
    torch's own.
    """

    def __init__(self, optimizer: Optimizer, name: OptimizerState) -> None:
        self.name: OptimizerState = name
        self._optimizer = optimizer
        self._is_elementwise = not isinstance(optimizer, _muon())
        self._groups: list[dict[str, Any]] | None = None
        self._running: Generator[dict[str, Any]] | None = None
        # An instance's own hook is the last before `step`, so that all other hooks see the groups as they are.
        self._hook = optimizer.register_step_pre_hook(self._begin)
        self.pack_all()

    def pack_all(self) -> None:
        """Pack state that is not packed yet, such as that of a plain optimizer's checkpoint."""
        for parameter, state in self._optimizer.state.items():
            if isinstance(parameter, Tensor) and _is_large(parameter):
                piece = _Piece(parameter=parameter, tensor=parameter, packed=state)
                for key in [key for key, value in state.items() if _has_codes(key, value, parameter)]:
                    self._write(piece, key, state.pop(key))

    def take(self, states: Mapping[Tensor, Mapping[str, Tensor]]) -> None:
        """Add loaded state that is packed in this format, and pack the rest."""
        for parameter, state in states.items():
            self._optimizer.state[parameter].update(
                {key: x.to(parameter.device, copy=True) for key, x in state.items()}
            )
        self.pack_all()

    def remove(self) -> None:
        """Unpack everything, and leave the optimizer to torch."""
        self._hook.remove()
        for parameter, state in self._optimizer.state.items():
            self._optimizer.state[parameter] = expand_state(state, parameter)

    def outside(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure for `step` during which the optimizer has its groups."""

        def call() -> Any:
            self._optimizer.param_groups, in_pieces = self._groups or [], self._optimizer.param_groups
            try:
                return closure()
            finally:
                self._optimizer.param_groups = in_pieces

        return call

    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.end()
        self._groups = optimizer.param_groups
        optimizer.param_groups = _GroupsInPieces(self._groups, self)

    def end(self) -> None:
        """End a step, also one that an exception has interrupted: the optimizer has its groups again."""
        if self._running is not None:
            self._running.close()
            self._running = None
        if self._groups is not None:
            self._optimizer.param_groups, self._groups = self._groups, None

    def in_pieces(self) -> Generator[dict[str, Any]]:
        """Yield the parameter groups, in pieces where state is packed; when `step` has all, end it."""
        for group in self._groups or ():
            packed = {id(p): p for p in group["params"] if p.grad is not None and _is_large(p)}
            others = [p for p in group["params"] if id(p) not in packed]
            if others:
                yield {**group, "params": others}
            for pieces in _bundles(piece for p in packed.values() for piece in self._cut(p)):
                try:
                    for piece in pieces:
                        self._unpack(piece)
                    yield {**group, "params": [piece.tensor for piece in pieces]}
                    for piece in pieces:
                        self._pack(piece)
                finally:
                    for piece in pieces:
                        self._restore(piece)
        self._running = None
        self.end()

    def start(self) -> Generator[dict[str, Any]]:
        """Return the groups in pieces for one pass; an earlier pass that was left ends."""
        if self._running is not None:
            self._running.close()
        self._running = self.in_pieces()
        return self._running

    def _cut(self, parameter: Tensor) -> Iterator[_Piece]:
        """Return the pieces of a parameter: parts of equal size if torch's formulas are elementwise, else all of it."""
        packed, grad, size = self._optimizer.state[parameter], parameter.grad, _piece_size(parameter)
        if (
            not self._is_elementwise
            or parameter.numel() <= size
            or not parameter.is_contiguous()
            or grad is None
            or grad.layout is not torch.strided
        ):
            yield _Piece(parameter=parameter, tensor=parameter, packed=packed)
            return
        flat, flat_grad, is_new = parameter.detach().view(-1), grad.detach().reshape(-1), not packed
        for start in range(0, parameter.numel(), size):
            tensor = flat[start : start + size]
            tensor.grad = flat_grad[start : start + size]
            yield _Piece(parameter=parameter, tensor=tensor, packed=packed, is_new=is_new, start=start)

    def _unpack(self, piece: _Piece) -> None:
        state: dict[str, Any] = {}
        suffix = f"_{self.name}{_CODES}"
        for key, value in () if piece.is_new else piece.packed.items():
            if key.endswith(suffix):
                name = key.removesuffix(suffix)
                state[name] = torch.empty_like(piece.tensor)
                _read(state[name], _map_for(self.name, name), *self._place(piece, name))
            elif key.endswith(f"_{self.name}{_SCALES}"):
                continue
            elif isinstance(value, Tensor) and not piece.is_whole:
                is_large = value.shape == piece.parameter.shape
                state[key] = _part_of(value, piece) if is_large else value.clone()
            else:
                state[key] = value
        self._optimizer.state[piece.tensor] = state

    def _pack(self, piece: _Piece) -> None:
        for key, value in self._optimizer.state[piece.tensor].items():
            if _has_codes(key, value, piece.tensor):
                self._write(piece, key, value)
            elif piece.is_last and not (isinstance(value, Tensor) and not piece.is_whole and value.dim()):
                piece.packed[key] = value

    def _restore(self, piece: _Piece) -> None:
        if piece.is_whole:
            self._optimizer.state[piece.parameter] = piece.packed
        else:
            self._optimizer.state.pop(piece.tensor, None)

    def _write(self, piece: _Piece, key: str, value: Tensor) -> None:
        codes_of, numel, device = _map_for(self.name, key), piece.parameter.numel(), value.device
        if f"{key}_{self.name}{_CODES}" not in piece.packed:
            codes = torch.zeros(codes_of.num_code_bytes(numel), dtype=torch.uint8, device=device)
            piece.packed[f"{key}_{self.name}{_CODES}"] = codes
            scales = torch.zeros(codes_of.num_blocks(numel), dtype=torch.float32, device=device)
            piece.packed[f"{key}_{self.name}{_SCALES}"] = scales
        codes, scales = self._place(piece, key)
        pack_blocks(value.detach().float().contiguous().view(-1), codes_of, codes=codes, scales=scales)

    def _place(self, piece: _Piece, key: str) -> tuple[Tensor, Tensor]:
        """Return the codes and scales of a piece."""
        codes = piece.packed[f"{key}_{self.name}{_CODES}"]
        scales = piece.packed[f"{key}_{self.name}{_SCALES}"]
        if piece.is_whole:
            return codes, scales
        codes_of, numel = _map_for(self.name, key), piece.tensor.numel()
        byte, block = piece.start * codes_of.bits // 8, piece.start // codes_of.block
        return (
            codes[byte : byte + codes_of.num_code_bytes(numel)],
            scales[block : block + codes_of.num_blocks(numel)],
        )


class _GroupsInPieces(list[dict[str, Any]]):
    """The parameter groups of an optimizer; a loop over them gets pieces."""

    def __init__(self, groups: list[dict[str, Any]], states: PackedStates) -> None:
        super().__init__(groups)
        self._states = states

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._states.start()


def _is_large(parameter: Tensor) -> bool:
    return parameter.is_floating_point() and parameter.numel() >= MIN_NUMEL


def _has_codes(key: str, value: Any, tensor: Tensor) -> bool:
    return (key in _SIGNED or key in _UNSIGNED) and isinstance(value, Tensor) and value.shape == tensor.shape


def _piece_size(x: Tensor) -> int:
    return _CPU_PIECE if x.device.type == "cpu" else _PIECE


def _part_of(value: Tensor, piece: _Piece) -> Tensor:
    return value.view(-1)[piece.start : piece.start + piece.tensor.numel()]


def _bundles(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Put small pieces together, so that a step of many small parameters costs no more calls than before."""
    bundle: list[_Piece] = []
    numel = 0
    for piece in pieces:
        if bundle and numel + piece.tensor.numel() > _piece_size(piece.tensor):
            yield bundle
            bundle, numel = [], 0
        bundle.append(piece)
        numel += piece.tensor.numel()
    if bundle:
        yield bundle


def _read(out: Tensor, codes_of: CodeMap, codes: Tensor, scales: Tensor) -> None:
    """Unpack into a tensor of any dtype and layout."""
    if out.dtype is torch.float32 and out.is_contiguous():
        unpack_blocks(codes, scales, codes_of, out=out.view(-1))
        return
    flat = torch.empty(out.numel(), dtype=torch.float32, device=out.device)
    unpack_blocks(codes, scales, codes_of, out=flat)
    out.copy_(flat.view(out.shape))


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def _format_of(key: str) -> tuple[str, OptimizerState] | None:
    """Return what a key of codes or scales holds, and in which format; None for other keys."""
    for name in _MAPS:
        for part in (_CODES, _SCALES):
            if key.endswith(f"_{name}{part}"):
                return key.removesuffix(f"_{name}{part}"), name
    return None


def expand_state(state: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Return the state of a parameter as a plain optimizer has it."""
    plain: dict[str, Any] = {}
    for key, value in state.items():
        found = _format_of(key)
        if found is None:
            plain[key] = value
        elif key.endswith(_CODES):
            held, name = found
            scales = state[key.removesuffix(_CODES) + _SCALES]
            plain[held] = torch.empty_like(parameter, device=value.device, requires_grad=False)
            _read(plain[held], _map_for(name, held), value, scales)
    return plain


def expand_state_dict(state_dict: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Return a state dict of the optimizer as a plain one would save it."""
    parameters = _parameters_by_number(state_dict, optimizer)
    states = {
        number: expand_state(state, parameters[number]) if number in parameters else state
        for number, state in state_dict["state"].items()
    }
    return {**state_dict, "state": states}


def split_state_dict(
    state_dict: Mapping[str, Any], optimizer: Optimizer, *, name: OptimizerState | None
) -> tuple[dict[str, Any], dict[Tensor, dict[str, Tensor]]]:
    """Return a state dict for torch, and what it must not convert: state that is packed as `name`, by parameter."""
    parameters = _parameters_by_number(state_dict, optimizer)
    packed: dict[Tensor, dict[str, Tensor]] = {}
    others: dict[Any, Any] = {}
    for number, state in state_dict["state"].items():
        others[number] = state
        if number not in parameters or not isinstance(state, Mapping):
            continue
        here = {key: x for key, x in state.items() if (found := _format_of(key)) is not None and found[1] == name}
        if here:
            packed[parameters[number]] = here
        others[number] = {key: value for key, value in state.items() if key not in here}
    return expand_state_dict({**state_dict, "state": others}, optimizer), packed


def _parameters_by_number(state_dict: Mapping[str, Any], optimizer: Optimizer) -> dict[Any, Tensor]:
    """Return the parameter for every number in a state dict, as torch pairs them: by their order."""
    saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    own = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    return dict(zip(saved, own, strict=False))

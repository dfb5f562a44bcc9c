"""A training in TensorBoard: scalars of every step, and histograms of tensors from time to time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roundoff.errors import UsageError
from roundoff.runs import Metrics

if TYPE_CHECKING:
    from torch import Tensor

_FLUSH_SECONDS = 5
"""How long until TensorBoard sees what was written; the writer's own default is two minutes."""
_SCALARS = ("loss", "eval_loss", "lr", "loss_scale", "grad_norm", "update_norm")


class TensorBoard:
    """Writes a folder that `tensorboard --logdir FOLDER` shows while the training goes on.

    Raises:
        UsageError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self._writer = _writer(folder)

    def metrics(self, metrics: Metrics) -> None:
        """Write the metrics of one step; a loss that is NaN is shown as such."""
        values = {name: getattr(metrics, name) for name in _SCALARS}
        self.scalars(metrics.step, {**values, "skipped": float(metrics.skipped)})

    def scalars(self, step: int, values: Mapping[str, float | None]) -> None:
        """Write numbers by name; None is left out."""
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, step)

    def histograms(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Write how the finite values of tensors are distributed; one without any is left out."""
        for name, x in tensors.items():
            values = x.detach().float().flatten()
            finite = values[values.isfinite()]
            if len(finite):
                self._writer.add_histogram(name, finite.cpu().numpy(), step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


def weights_and_gradients(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return what histograms are drawn of parameters, by name; of sharded ones, the part of this rank."""
    found = {}
    for name, parameter in named:
        found[f"weights/{name}"] = _own_part(parameter)
        if parameter.grad is not None:
            found[f"gradients/{name}"] = _own_part(parameter.grad)
    return found


def _own_part(x: Tensor) -> Tensor:
    # Recognized by its method: importing DTensor would cost every training half a second.
    own: Tensor = x.to_local() if hasattr(x, "to_local") else x
    return own


def _writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError.explain(
            "TensorBoard is not installed.", why=f"{error}.", fix="pip install 'roundoff[tensorboard]'"
        ) from error
    return SummaryWriter(str(folder), flush_secs=_FLUSH_SECONDS)

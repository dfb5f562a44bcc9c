"""Watches a training by the Hugging Face Trainer through a callback."""

from __future__ import annotations

from typing import Any

from roundoff.watch.framework import FrameworkCallback, missing_library

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise missing_library("Hugging Face transformers", extra="hf") from error


class WatchCallback(FrameworkCallback, TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Watches a training from start to end and prints the verdict on stderr.

    ```python
    trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[WatchCallback()])
    trainer.train()
    ```

    The Trainer does not report exceptions to callbacks: then the verdict is printed when Python exits, or by `close`.

    The arguments are those of `FrameworkCallback`.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start watching."""
        model, optimizer = kwargs.get("model"), kwargs.get("optimizer")
        self._framework.begin([] if model is None else [model], [] if optimizer is None else [optimizer])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop watching and print the verdict."""
        self._framework.end()

    def close(self, error: BaseException | None = None) -> None:
        """Stop watching a training that raised, and print the verdict."""
        self._framework.end(error)

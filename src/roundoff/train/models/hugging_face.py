"""Any architecture of Hugging Face's transformers, built from its configuration without a download."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from roundoff.errors import TrainError, first_line
from roundoff.train.data import Data


class LogitsOf(nn.Module):
    """Turns a transformers model into one that takes a tensor and returns logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of images, or of tokens."""
        logits: Tensor = self.model(inputs).logits
        return logits


def build_hugging_face(name: str, data: Data, *, context: int) -> nn.Module:
    """Build a model from a type such as 'gpt2' (with its default configuration) or from the path of a config.json."""
    try:
        import transformers
    except ImportError as error:
        raise TrainError.explain(
            f"The model 'hf:{name}' needs Hugging Face's transformers.",
            why=f"{error}.",
            fix="pip install 'roundoff[hf]'",
        ) from error
    settings = _settings(name)
    kind = str(settings.pop("model_type"))
    if kind not in transformers.CONFIG_MAPPING:
        raise TrainError.explain(
            f"transformers has no model type '{kind}'.",
            why="hf:CONFIG is a model type such as gpt2, llama or vit, or the path of a config.json.",
        )
    if data.image_size:
        settings.update(num_labels=data.num_classes, num_channels=data.channels, image_size=data.image_size)
    make: Any = transformers.AutoModelForImageClassification if data.image_size else transformers.AutoModelForCausalLM
    if transformers.CONFIG_MAPPING[kind] not in make._model_mapping:  # the only list of what it can make
        raise TrainError.explain(
            f"The model 'hf:{name}' cannot be trained on this data.",
            why=f"transformers has no {'image classifier' if data.image_size else 'text model'} of type {kind}.",
            fix="for example: hf:vit for images, hf:gpt2 for text.",
        )
    try:
        config = transformers.AutoConfig.for_model(kind, **settings)
        model = make.from_config(config)
    except (ValueError, TypeError, AttributeError) as error:
        raise TrainError.explain(
            f"The model 'hf:{name}' cannot be built for this data.", why=first_line(error)
        ) from error
    _check_text_fits(name, model.config, data, context)
    return LogitsOf(model)


def _settings(name: str) -> dict[str, Any]:
    path = Path(name)
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        return {"model_type": name}
    try:
        settings = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise TrainError.explain(f"'{path}' cannot be read.", why=f"{error}.") from error
    if not isinstance(settings, dict) or "model_type" not in settings:
        raise TrainError.explain(f"'{path}' is not a model configuration.", why="model_type is missing.")
    return settings


def _check_text_fits(name: str, config: Any, data: Data, context: int) -> None:
    if data.image_size:
        return
    vocabulary = getattr(config, "vocab_size", data.num_classes)
    if vocabulary < data.num_classes:
        raise TrainError.explain(
            f"The model 'hf:{name}' has only {vocabulary} tokens.",
            why=f"text is read as bytes, which need {data.num_classes} tokens.",
            fix=f"set vocab_size to at least {data.num_classes}.",
        )
    longest = getattr(config, "max_position_embeddings", context)
    if isinstance(longest, int) and longest < context:
        raise TrainError.explain(
            f"The model 'hf:{name}' supports at most {longest} tokens.", why=f"--context is {context}."
        )

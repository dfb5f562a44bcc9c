"""The models that `--model` can name."""

from __future__ import annotations

from torch import nn

from roundoff.train.config import TEXT_MODELS, TrainConfig
from roundoff.train.data import Data
from roundoff.train.models.gpt import GPT
from roundoff.train.models.hugging_face import build_hugging_face
from roundoff.train.models.resnet import resnet18, resnet20, resnet50, resnet_small

__all__ = ["GPT", "build_model", "resnet18", "resnet20", "resnet50", "resnet_small"]

_NUM_EXPERTS = 4


def build_model(config: TrainConfig, data: Data) -> nn.Module:
    """Build the configured model, with random weights from torch's generator.

    It takes images, or bytes as integers, and returns one row of logits per image or byte.
    """
    if config.model == "resnet-small":
        return resnet_small(num_classes=data.num_classes, channels=data.channels, width=config.width or 16)
    if config.model == "resnet20":
        return resnet20(num_classes=data.num_classes, channels=data.channels, width=config.width or 16)
    if config.model == "resnet18":
        return resnet18(num_classes=data.num_classes, channels=data.channels)
    if config.model == "resnet50":
        return resnet50(num_classes=data.num_classes, channels=data.channels)
    if config.model in TEXT_MODELS:
        experts = _NUM_EXPERTS if config.model == "moe-small" else 0
        width = config.width or 128
        return GPT(vocabulary=data.num_classes, context=config.context, width=width, num_experts=experts)
    return build_hugging_face(config.model.removeprefix("hf:"), data, context=config.context)

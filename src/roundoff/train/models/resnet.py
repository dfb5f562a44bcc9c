"""Residual networks: two for small images, and the 18 and 50 layers of He et al. (2015)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a residual connection."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.shortcut = _shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of `width` channels."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        result: Tensor = self.relu(out + self.shortcut(x))
        return result


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1, with a residual connection; the 3x3 convolution has the stride."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * self.expansion
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.shortcut = _shortcut(channels, out, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of four times `width` channels."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        result: Tensor = self.relu(out + self.shortcut(x))
        return result


class ResNet(nn.Module):
    """A stem, stages of blocks with half the resolution and twice the channels of the one before, and a linear head."""

    def __init__(
        self,
        stem: nn.Module,
        block: type[BasicBlock] | type[Bottleneck],
        *,
        num_blocks: Sequence[int],
        width: int,
        num_classes: int,
    ) -> None:
        super().__init__()
        self.stem = stem
        channels = width
        stages = []
        for stage, count in enumerate(num_blocks):
            blocks = []
            for nth in range(count):
                stride = 2 if stage > 0 and nth == 0 else 1
                blocks.append(block(channels, width * 2**stage, stride))
                channels = width * 2**stage * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, num_classes)
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return one row of logits per image."""
        features = self.pool(self.stages(self.stem(images)))
        logits: Tensor = self.head(features.flatten(1))
        return logits


def resnet_small(*, num_classes: int, channels: int, width: int) -> ResNet:
    """Return 3 stages of one block each for images of 7 to 64 pixels: 78 thousand parameters at width 16."""
    stem = _stem(channels, width, kernel=3, stride=1)
    return ResNet(stem, BasicBlock, num_blocks=(1, 1, 1), width=width, num_classes=num_classes)


def resnet20(*, num_classes: int, channels: int, width: int) -> ResNet:
    """Return the 20-layer network for small images, 3 stages of three blocks: 0.27 million parameters at width 16."""
    stem = _stem(channels, width, kernel=3, stride=1)
    return ResNet(stem, BasicBlock, num_blocks=(3, 3, 3), width=width, num_classes=num_classes)


def resnet18(*, num_classes: int, channels: int) -> ResNet:
    """Return the 18-layer network: 11.7 million parameters for 1000 classes of colour images."""
    return ResNet(_large_stem(channels), BasicBlock, num_blocks=(2, 2, 2, 2), width=64, num_classes=num_classes)


def resnet50(*, num_classes: int, channels: int) -> ResNet:
    """Return the 50-layer network: 25.6 million parameters for 1000 classes of colour images."""
    return ResNet(_large_stem(channels), Bottleneck, num_blocks=(3, 4, 6, 3), width=64, num_classes=num_classes)


def _large_stem(channels: int) -> nn.Sequential:
    return nn.Sequential(_stem(channels, 64, kernel=7, stride=2), nn.MaxPool2d(3, 2, padding=1))


def _stem(channels: int, width: int, *, kernel: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU())


def _shortcut(channels: int, out: int, stride: int) -> nn.Module:
    if stride == 1 and channels == out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))


def _initialise(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

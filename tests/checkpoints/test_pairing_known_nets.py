"""Nets that everybody ports, under the names that different libraries give them: each tensor has one right partner."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest

from roundoff.checkpoints.checkpoint import Entry, Role
from roundoff.checkpoints.pair.pairing import pair_checkpoints

Shapes = Mapping[str, tuple[int, ...]]
BATCH_NORM = ("weight", "bias", "running_mean", "running_var")
GAMMA = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
WIDTH = 16


def entries(shapes: Shapes) -> dict[str, Entry]:
    return {
        name: Entry(
            name=name,
            shape=shape,
            dtype="float32",
            role=Role.BUFFER if "mean" in name or "var" in name else Role.PARAMETER,
        )
        for name, shape in shapes.items()
    }


def resnet_50() -> dict[str, tuple[int, ...]]:
    """Return the tensors of a ResNet-50 as PyTorch has them, in the order of the modules."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7), **batch_norm("bn1", 64)}
    width = 64
    for stage, (planes, num_blocks) in enumerate(zip((64, 128, 256, 512), (3, 4, 6, 3), strict=True), 1):
        for block in range(num_blocks):
            name = f"layer{stage}.{block}"
            sizes = [(planes, width, 1), (planes, planes, 3), (4 * planes, planes, 1)]
            for number, (outputs, inputs, window) in enumerate(sizes, 1):
                shapes[f"{name}.conv{number}.weight"] = (outputs, inputs, window, window)
                shapes |= batch_norm(f"{name}.bn{number}", outputs)
            if block == 0:
                shapes[f"{name}.downsample.0.weight"] = (4 * planes, width, 1, 1)
                shapes |= batch_norm(f"{name}.downsample.1", 4 * planes)
            width = 4 * planes
    return shapes | {"fc.weight": (1000, width), "fc.bias": (1000,)}


def batch_norm(name: str, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.{leaf}": (size,) for leaf in BATCH_NORM}


def resnet_of_keras(name: str) -> str:
    if name.startswith("fc."):
        return name.replace("fc.weight", "predictions.kernel").replace("fc.bias", "predictions.bias")
    *path, leaf = name.split(".")
    is_norm = path[-1].startswith("bn") or path[-2:] == ["downsample", "1"]
    word = GAMMA[leaf] if is_norm else "kernel"
    kind = "bn" if is_norm else "conv"
    if not name.startswith("layer"):
        return f"conv1_{kind}.{word}"
    number = "0" if path[2] == "downsample" else path[2][-1]
    return f"conv{int(path[0][-1]) + 1}_block{int(path[1]) + 1}_{number}_{kind}.{word}"


def resnet_of_mindspore(name: str) -> str:
    path, _, leaf = name.rpartition(".")
    is_norm = ".bn" in f".{path}" or path.endswith("downsample.1")
    path = path.replace("downsample", "down_sample_layer").replace("fc", "end_point")
    return f"{path}.{GAMMA[leaf] if is_norm else leaf}"


def keras_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if name.endswith("kernel"):
        return shape[::-1] if len(shape) == 2 else (shape[2], shape[3], shape[1], shape[0])
    return shape


def bert(num_layers: int = 12) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a small BERT as Hugging Face has them."""
    shapes: dict[str, tuple[int, ...]] = {
        "bert.embeddings.word_embeddings.weight": (50, WIDTH),
        "bert.embeddings.position_embeddings.weight": (32, WIDTH),
        **linear("bert.embeddings.LayerNorm"),
    }
    for number in range(num_layers):
        layer = f"bert.encoder.layer.{number}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= linear(f"{layer}.attention.{name}", WIDTH, WIDTH)
        shapes |= linear(f"{layer}.attention.output.LayerNorm")
        shapes |= linear(f"{layer}.intermediate.dense", 4 * WIDTH, WIDTH)
        shapes |= linear(f"{layer}.output.dense", WIDTH, 4 * WIDTH)
        shapes |= linear(f"{layer}.output.LayerNorm")
    return shapes | linear("bert.pooler.dense", WIDTH, WIDTH)


def linear(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape or (WIDTH,), f"{name}.bias": shape[:1] or (WIDTH,)}


OF_PADDLE = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "linear1",
    "output.dense": "linear2",
    "output.LayerNorm": "norm2",
}


def bert_of_paddle(name: str) -> str:
    found = re.fullmatch(r"bert\.encoder\.layer\.(\d+)\.(.+)\.(weight|bias)", name)
    if found:
        return f"encoder.layers.{found[1]}.{OF_PADDLE[found[2]]}.{found[3]}"
    return name.removeprefix("bert.").replace("LayerNorm", "layer_norm")


def llama(num_layers: int = 12) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a small Llama as Hugging Face has them."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (50, WIDTH)}
    for number in range(num_layers):
        layer = f"model.layers.{number}"
        shapes |= {f"{layer}.self_attn.{name}_proj.weight": (WIDTH, WIDTH) for name in "qkvo"}
        shapes |= {f"{layer}.mlp.{name}_proj.weight": (4 * WIDTH, WIDTH) for name in ("gate", "up")}
        shapes[f"{layer}.mlp.down_proj.weight"] = (WIDTH, 4 * WIDTH)
        shapes |= {f"{layer}.{name}_layernorm.weight": (WIDTH,) for name in ("input", "post_attention")}
    return shapes | {"model.norm.weight": (WIDTH,), "lm_head.weight": (50, WIDTH)}


OF_META = {
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "tok_embeddings",
    "lm_head": "output",
}


def llama_of_meta(name: str) -> str:
    for reference, candidate in OF_META.items():
        name = name.replace(reference, candidate)
    return name.removeprefix("model.")


def paddle_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[::-1] if "embed" not in name else shape


def same_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape


NETS = [
    pytest.param(resnet_50, resnet_of_keras, keras_shape, "keras", id="resnet-keras"),
    pytest.param(resnet_50, resnet_of_mindspore, same_shape, "mindspore", id="resnet-mindspore"),
    pytest.param(bert, bert_of_paddle, paddle_shape, "paddle", id="bert-paddle"),
    pytest.param(llama, llama_of_meta, same_shape, "torch-zip", id="llama-meta"),
]


@pytest.mark.parametrize("is_sorted", [False, True], ids=["in order", "sorted as text"])
@pytest.mark.parametrize("is_reference", [True, False], ids=["", "turned round"])
@pytest.mark.parametrize(("net", "rename", "reshape", "format"), NETS)
def test_every_tensor_finds_its_partner(
    net: Callable[[], Shapes],
    rename: Callable[[str], str],
    reshape: Callable[[str, tuple[int, ...]], tuple[int, ...]],
    format: str,
    is_reference: bool,
    is_sorted: bool,
):
    shapes = net()
    candidate = {rename(name): reshape(rename(name), shape) for name, shape in shapes.items()}
    if is_sorted:
        candidate = dict(sorted(candidate.items()))
    if is_reference:
        found = pair_checkpoints(
            entries(shapes), entries(candidate), reference_format="torch-zip", candidate_format=format
        )
        paired = {each.reference: each.candidate for each in found.pairs}
    else:
        found = pair_checkpoints(
            entries(candidate), entries(shapes), reference_format=format, candidate_format="torch-zip"
        )
        paired = {each.candidate: each.reference for each in found.pairs}
    assert paired == {name: rename(name) for name in shapes}
    assert all(each.is_expected for each in found.pairs)


@pytest.mark.parametrize("net", [resnet_50, bert, llama])
def test_a_net_finds_itself_whatever_the_order(net: Callable[[], Shapes]):
    found = pair_checkpoints(entries(net()), entries(dict(sorted(net().items(), reverse=True))))
    assert {each.reference: each.candidate for each in found.pairs} == {name: name for name in net()}

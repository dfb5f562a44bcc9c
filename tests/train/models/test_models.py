import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.errors import TrainError
from roundoff.train import TrainConfig, train
from roundoff.train.data import load_data
from roundoff.train.models import GPT, build_model, resnet18, resnet20, resnet50, resnet_small


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_big_networks_have_the_sizes_of_the_paper():
    with torch.device("meta"):
        assert num_parameters(resnet18(num_classes=1000, channels=3)) == 11_689_512
        assert num_parameters(resnet50(num_classes=1000, channels=3)) == 25_557_032


def test_the_twenty_layers_have_the_size_of_the_paper_besides_shortcuts_that_are_learned():
    model = resnet20(num_classes=10, channels=3, width=16)
    shortcuts = sum(num_parameters(stage[0].shortcut) for stage in model.stages)
    assert num_parameters(model) - shortcuts == 269_722
    assert len([each for each in model.modules() if isinstance(each, nn.Conv2d)]) - 2 + 1 == 20  # and the head


@pytest.mark.parametrize("size", [7, 8, 28, 32])
def test_the_small_network_takes_small_images(size: int):
    model = resnet_small(num_classes=10, channels=1, width=4)
    assert model(torch.rand(2, 1, size, size)).shape == (2, 10)


def test_a_wider_network_has_more_channels():
    assert num_parameters(resnet_small(num_classes=10, channels=1, width=16)) == 77_754


def test_a_place_of_text_is_answered_without_what_follows_it():
    torch.manual_seed(0)
    model = GPT(vocabulary=256, context=8, width=32).eval()
    tokens = torch.randint(0, 256, (1, 8))
    changed = tokens.clone()
    changed[0, 5:] = 0
    assert torch.allclose(model(tokens)[0, :5], model(changed)[0, :5], atol=1e-6)
    assert not torch.allclose(model(tokens)[0, 5:], model(changed)[0, 5:], atol=1e-3)


def test_every_position_is_the_weighted_sum_of_the_two_experts_that_its_router_prefers():
    torch.manual_seed(0)
    mixture = GPT(vocabulary=256, context=8, width=32, num_experts=4).blocks[0].mlp
    x = torch.randn(2, 3, 32)
    logits, chosen = mixture.router(x).topk(2)
    for place in [(0, 0), (0, 2), (1, 1)]:
        weights = logits[place].softmax(0)
        experts = [mixture.experts[number](x[place]) for number in chosen[place].tolist()]
        assert torch.allclose(mixture(x)[place], weights[0] * experts[0] + weights[1] * experts[1], atol=1e-6)


def test_a_small_mixture_of_experts_trains_in_low_precision_with_its_routers_wide(tmp_path: Path):
    config = replace(text_config(tmp_path, "moe-small"), width=32, epochs=8, batch_size=16, optimizer="adamw", lr=0.02)
    config = replace(config, lr_scaling=False)
    plain = train(replace(config, runs=None))
    narrow = train(replace(config, runs=None, recipe="fp8-block", wide=("router",)))
    assert plain.losses[-1] < plain.losses[0] / 2
    assert narrow.losses[-1] < narrow.losses[0] / 2


def test_a_text_shorter_than_the_context_is_taken():
    assert GPT(vocabulary=256, context=8, width=32)(torch.zeros(2, 3, dtype=torch.int64)).shape == (2, 3, 256)


def text_config(tmp_path: Path, model: str) -> TrainConfig:
    (tmp_path / "a.txt").write_bytes(b"hello world " * 30)
    return TrainConfig(data=f"text:{tmp_path / 'a.txt'}", model=model, context=8)


def test_a_hugging_face_model_is_built_from_a_configuration_file(tmp_path: Path):
    pytest.importorskip("transformers")
    settings = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 256, "n_positions": 16}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    config = text_config(tmp_path, f"hf:{tmp_path}")
    model = build_model(config, load_data(config))
    assert model(torch.zeros(2, 8, dtype=torch.int64)).shape == (2, 8, 256)


def test_an_unknown_model_type_is_named(tmp_path: Path):
    pytest.importorskip("transformers")
    config = text_config(tmp_path, "hf:gpt22")
    with pytest.raises(TrainError) as caught:
        build_model(config, load_data(config))
    assert str(caught.value) == (
        "transformers has no model type 'gpt22'.\n"
        "  why: hf:CONFIG is a model type such as gpt2, llama or vit, or the path of a config.json."
    )


def test_a_configuration_without_a_type_or_with_too_few_tokens_is_refused(tmp_path: Path):
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    config = text_config(tmp_path, f"hf:{path}")
    data = load_data(config)
    path.write_text("{}")
    with pytest.raises(TrainError, match="model_type is missing"):
        build_model(config, data)
    path.write_text(json.dumps({"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 4, "vocab_size": 10}))
    with pytest.raises(TrainError, match="has only 10 tokens"):
        build_model(config, data)


def test_without_transformers_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    config = text_config(tmp_path, "hf:gpt2")
    with pytest.raises(TrainError, match=r"fix: pip install 'roundoff\[hf\]'"):
        build_model(config, load_data(config))


def test_a_hugging_face_model_without_a_head_for_the_data_is_refused(tmp_path: Path):
    pytest.importorskip("transformers")
    config = TrainConfig(model="hf:gpt2")
    with pytest.raises(TrainError) as caught:
        build_model(config, load_data(config))
    assert str(caught.value) == (
        "The model 'hf:gpt2' cannot be trained on this data.\n"
        "  why: transformers has no image classifier of type gpt2.\n"
        "  fix: for example: hf:vit for images, hf:gpt2 for text."
    )


@pytest.mark.parametrize("recipe", ["fp32", "O1", "amp-bf16", "bf16"])
def test_a_hugging_face_model_trains(recipe: str, tmp_path: Path):
    pytest.importorskip("transformers")
    settings = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 256, "n_positions": 16}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "fox.txt").write_bytes(b"the quick brown fox jumps over the lazy dog. " * 40)
    config = TrainConfig(
        data=f"text:{tmp_path / 'fox.txt'}",
        model=f"hf:{tmp_path}",
        context=16,
        recipe=recipe,
        optimizer="adamw",
        lr=1e-2,
        lr_scaling=False,
        batch_size=16,
        epochs=2,
        threads=1,
        runs=None,
    )
    result = train(config)
    assert result.losses[-1] < 0.8 * result.losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["O2", "fixed"])
@pytest.mark.parametrize("model", ["resnet18", "resnet50"])
def test_a_big_network_takes_a_step(model: str, recipe: str):
    config = TrainConfig(
        model=model, recipe=recipe, loss_scale=1.0, limit=8, batch_size=8, steps=2, threads=1, runs=None
    )
    result = train(config)
    assert result.num_skipped == 0
    assert not result.num_nonfinite
    assert result.losses[1] != result.losses[0]  # of the same eight images

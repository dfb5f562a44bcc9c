"""Formats of single ops of a site: which calls they reach, and which are invalid."""

import json
import math
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from roundoff.errors import RecipeError
from roundoff.formats import round_to
from roundoff.precision import Recipe, apply_recipe, find_recipe, to_toml
from tests.precision.small_trainings import sgd


class Attention(nn.Module):
    """Attention whose logits leave fp16's range if `factor` is large; a softmax brings them back."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q * self.factor) @ k.transpose(-1, -2)
        return self.out(torch.softmax(scores / (self.factor * math.sqrt(8)), -1) @ v)


class Block(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attn = Attention(factor)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(self.norm(x))


class Net(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(factor)])
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def net(factor: float = 1.0) -> Net:
    torch.manual_seed(0)
    return Net(factor)


def batch() -> Tensor:
    return torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))


def under(recipe: object, overrides: dict[str, str], *, factor: float = 1.0, **settings: object):
    model = net(factor)
    return apply_recipe(model, sgd(model), recipe, overrides=overrides, **settings)


def output_of(recipe: object, overrides: dict[str, str], *, factor: float = 1.0) -> Tensor:
    return under(recipe, overrides, factor=factor)[0](batch()).detach()


@pytest.mark.parametrize("recipe", ["half", "O1", "O2"])
def test_one_op_in_fp32_saves_an_attention_whose_logits_overflow(recipe: str):
    assert not output_of(recipe, {}, factor=1e6).isfinite().all()
    saved = {"blocks.1.attn:matmul": "fp32", "blocks.1.attn:mul": "fp32"}
    assert output_of(recipe, saved, factor=1e6).isfinite().all()
    assert (
        not output_of(recipe, {key.replace("1", "0"): fmt for key, fmt in saved.items()}, factor=1e6).isfinite().all()
    )


def test_what_is_called_in_the_site_itself_is_reached_and_what_its_children_call_is_not():
    plain = output_of("half", {})
    with pytest.warns(UserWarning, match="has no effect"):
        assert torch.equal(output_of("half", {"blocks.1.attn:linear": "fp32"}), plain)
    assert not torch.equal(output_of("half", {"blocks.1.attn.qkv:linear": "e4m3"}), plain)


def test_all_ops_of_all_sites_in_fp32_are_an_fp32_forward_with_narrow_weights():
    wide = output_of("half", {"*:*": "fp32"})
    model = net()
    for parameter in model.parameters():
        parameter.data = round_to(parameter.data, "fp16")
    for name in ("blocks.0.norm", "blocks.1.norm"):
        model.get_submodule(name).load_state_dict(net().get_submodule(name).state_dict())
    assert not torch.equal(output_of("half", {}), wide)
    difference = (wide - model(round_to(batch(), "fp16"))).abs().max()
    # What goes from site to site is narrow all the same.
    assert difference < 5e-3


def test_a_wide_result_is_narrow_again_after_its_site():
    model, _ = under("half", {"blocks.0:add": "fp32", "blocks.1:add": "fp32"})
    seen = {}
    for name in ("blocks.0", "blocks.1", "blocks.1.norm"):
        module = model.get_submodule(name)
        module.register_forward_hook(lambda module, args, output, name=name: seen.update({name: output.detach()}))
    model(batch())
    for name, value in seen.items():
        assert torch.equal(value, round_to(value, "fp16")), name


def test_what_the_code_itself_widened_stays_wide_after_the_site():
    class Widening(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.exp((x * 2.0).float())

    model = nn.Sequential(Widening(), nn.Identity())
    model, _ = apply_recipe(model, sgd(nn.Linear(1, 1)), "half", overrides={"0:mul": "fp32"})
    seen = []
    model[1].register_forward_hook(lambda module, args, output: seen.append(output))
    model(torch.rand(64))
    assert not torch.equal(seen[0], round_to(seen[0], "fp16"))


def test_an_op_in_a_narrow_format_in_a_wide_site():
    model, optimizer = under("fp32", {"blocks.1.attn:softmax": "e4m3"})
    seen = {}

    def note(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        seen["out"] = args[0].detach()

    model.blocks[1].attn.out.register_forward_hook(note)
    loss = model(batch()).square().mean()
    optimizer.backward(loss)
    assert optimizer.arithmetic == "emulated"
    expected = net()
    attention = expected.blocks[1].attn
    block_input = expected.blocks[1].norm(expected.blocks[0](batch()))
    q, k, v = attention.qkv(block_input).chunk(3, -1)
    scores = round_to(q @ k.transpose(-1, -2) / math.sqrt(8), "e4m3")
    weights = round_to(torch.softmax(scores, -1), "e4m3")
    assert torch.allclose(seen["out"], weights @ v, atol=1e-6)


def test_an_op_narrower_than_its_site_goes_on_in_the_format_of_the_site():
    model, _ = under("half", {"blocks.1.attn:softmax": "e4m3"})
    output = model(batch())
    output.sum().backward()
    assert output.isfinite().all()
    assert not torch.equal(output.detach(), output_of("half", {}))


@pytest.mark.parametrize("recipe", ["fp8", "mxfp8", "fp8-delayed"])
def test_a_product_of_an_operand_recipe_is_left_alone(recipe: str):
    plain, overridden = output_of(recipe, {}), output_of(recipe, {"head:linear": "fp32"})
    assert not torch.equal(plain, overridden)
    assert torch.equal(overridden, output_of(recipe, {"head": "fp32"}))
    assert torch.equal(plain, output_of(recipe, {"blocks.1.attn:softmax": "fp32"}))


def test_an_operand_recipe_rounds_products_only():
    with pytest.raises(RecipeError) as caught:
        under("fp8", {"blocks.1.attn:softmax": "bf16"})
    assert 'Recipe \'fp8\' cannot have the override "blocks.1.attn:softmax" = "bf16".' in str(caught.value)


@pytest.mark.parametrize("spelling", ["add", "__add__", "__radd__", "add_", "a?d", "*d[d]"])
def test_an_op_may_be_spelt_as_the_code_calls_it_or_as_a_pattern(spelling: str):
    expected = output_of("half", {"blocks.*:add": "bf16"})
    assert torch.equal(output_of("half", {f"blocks.*:{spelling}": "bf16"}), expected)
    assert not torch.equal(output_of("half", {}), expected)


def test_the_last_override_of_an_op_wins_and_wins_over_its_site():
    expected = output_of("half", {"blocks.1.attn": "bf16", "blocks.1.attn:softmax": "e4m3"})
    both = {"*:softmax": "bf16", "blocks.1.attn:softmax": "e4m3", "blocks.1.attn": "bf16"}
    with_both = output_of("half", {**both, "blocks.0.attn:softmax": "fp16"})
    assert torch.equal(with_both, expected)


def test_the_code_of_the_model_itself_is_a_site_too():
    assert not torch.equal(output_of("half", {"<model>:mean": "e4m3"}), output_of("half", {}))


def test_functions_that_only_move_values_are_not_meant_by_a_pattern():
    # Rounded in place, a view of a weight would round the weight.
    class Transposing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.t()

    model = Transposing()
    before = model.weight.detach().clone()
    apply_recipe(model, sgd(model), "fp32", overrides={"<model>:*": "e4m3"})
    model(torch.rand(2, 4))
    assert torch.equal(model.weight, before)


def test_an_op_that_writes_into_its_operand_writes_into_it():
    class Writing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 1.0
            y.add_(0.001)
            return y

    model = nn.Sequential(Writing())
    model, _ = apply_recipe(model, sgd(nn.Linear(1, 1)), "fp32", overrides={"0:add": "e4m3"})
    x = torch.rand(32)
    assert torch.equal(model(x), round_to(x + round_to(torch.tensor(0.001), "fp32"), "e4m3"))


def test_gradients_of_an_op_are_rounded_to_its_format():
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.exp(x) * 1.0001

    gradients = []
    for overrides in ({"0:exp": "e4m3"}, {"0:exp": "bf16"}):
        model = nn.Sequential(Twice())
        model, _ = apply_recipe(model, sgd(nn.Linear(1, 1)), "fp32", overrides=overrides)
        x = torch.zeros(1, requires_grad=True)
        model(x).backward()
        gradients.append(x.grad.item())
    assert gradients == [1.0, 1.0]  # 1.0001 is on neither grid


def test_attention_of_torch_is_reached_op_by_op():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x)[0]

    results = []
    for overrides in ({}, {"attention:softmax": "e4m3"}):
        torch.manual_seed(0)
        model = Outer()
        model, _ = apply_recipe(model, sgd(model), "fp32", overrides=overrides)
        results.append(model(batch()).detach())
    assert not torch.equal(*results)


def test_recomputed_parts_compute_their_ops_as_before():
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Net):
        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return self.head(x.mean(1))

    gradients = []
    for cls in (Net, Checkpointed):
        torch.manual_seed(0)
        model = cls()
        model, optimizer = apply_recipe(model, sgd(model), "half", overrides={"blocks.*.attn:softmax": "e4m3"})
        optimizer.backward(model(batch()).sum())
        gradients.append(model.blocks[0].attn.qkv.weight.grad)
    assert torch.equal(*gradients)


def test_an_op_that_the_site_never_calls_is_reported_once_after_the_first_forward():
    model, _ = under("half", {"blocks.1.attn:sigmoid": "fp32"})
    with pytest.warns(UserWarning, match="no such call") as reported:
        model(batch())
    assert [str(warning.message) for warning in reported] == [
        'The override "blocks.1.attn:sigmoid" = "fp32" has no effect: the first forward made no such call. '
        "blocks.1.attn calls: div, matmul, mul, softmax."
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(batch())


def test_a_site_that_does_not_exist_is_an_error():
    for key in ("blocks.7.attn:softmax", "blocks.7.attn:sofmax", "hed:linear"):
        with pytest.raises(RecipeError, match="matches no site of Net"):
            under("half", {key: "fp32"})


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("Critic:head", '"head" in the overrides of apply_recipe for Critic.'),
        ("Critic:", "the names of its modules in the overrides of apply_recipe for Critic."),
        ("Net:norm", '"norm" in the overrides of apply_recipe for Net.'),
    ],
)
def test_a_site_as_a_recording_names_it_in_a_further_model_is_distinguished_from_an_op(key: str, fix: str):
    with pytest.raises(RecipeError) as caught:
        under("half", {key: "fp32"})
    what, why, what_to_do = str(caught.value).splitlines()
    assert what == f'The override "{key}" = "fp32" matches neither a site of Net nor an op of one.'
    assert f"'{key}' is what a recording calls a site of another model, {key.partition(':')[0]}." in why
    assert what_to_do == f"  fix: a recipe applies to one model: use {fix}"


@pytest.mark.parametrize("op", ["sofmax", "", "sofm*"])
def test_an_op_that_torch_does_not_have_is_an_error_and_leaves_the_model_alone(op: str):
    model = net()
    with pytest.raises(RecipeError) as caught:
        apply_recipe(model, sgd(model), "half", overrides={f"blocks.1.attn:{op}": "fp32"})
    assert str(caught.value) == (
        f'The override "blocks.1.attn:{op}" = "fp32" names an unknown op.\n'
        f"  why: torch has no function '{op}'.\n"
        "  fix: name a function that the site's code calls: 'blocks.1.attn:softmax', 'head:linear', 'blocks.1:add'."
    )
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("recipe", "settings", "why"),
    [
        ("amp-bf16", {}, "torch.autocast chooses the format of each op itself."),
        ("fixed", {}, "fixed point quantizes the parameters and outputs of modules, not the ops inside them."),
        ("half", {"arithmetic": "native"}, "overrides of single ops are only available in emulation."),
        ("O1", {"arithmetic": "native"}, "overrides of single ops are only available in emulation."),
    ],
)
def test_where_ops_cannot_be_overridden_it_is_said(recipe: str, settings: dict[str, str], why: str):
    with pytest.raises(RecipeError) as caught:
        under(recipe, {"blocks.1.attn:softmax": "fp32"}, **settings)
    assert str(caught.value).splitlines()[:2] == [
        f'Recipe \'{recipe}\' cannot have the override "blocks.1.attn:softmax" = "fp32" of an op.',
        f"  why: {why}",
    ]


def test_files_and_the_environment_take_them_too(tmp_path: Path, monkeypatch):
    overrides = {"blocks.1.attn:softmax": "e4m3"}
    expected = output_of("half", overrides)
    path = tmp_path / "mine.toml"
    path.write_text('base = "half"\n\n[overrides]\n"blocks.1.attn:softmax" = "e4m3"\n')
    assert torch.equal(output_of(path, {}), expected)
    recipe = find_recipe(path)
    assert isinstance(recipe, Recipe)
    path.write_text(to_toml(recipe))
    assert find_recipe(path) == recipe
    monkeypatch.setenv("ROUNDOFF_OVERRIDES", json.dumps(overrides))
    assert torch.equal(output_of("half", {}), expected)


def test_a_net_trains_with_overridden_ops():
    model, optimizer = under("O2", {"*:softmax": "fp32", "blocks.*:add": "bf16"})
    target = torch.tensor([0, 1])
    losses = []
    for _ in range(30):
        loss = F.cross_entropy(model(batch()), target)
        optimizer.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2

"""Optimizer state in few bits: adam8, adam4, adamfp8, muon8."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.optim import Optimizer

from roundoff.errors import RecipeError
from roundoff.kernels.block_codes import code_map
from roundoff.precision import RecipeOptimizer, apply_recipe, optimizer_states, recipe_named
from roundoff.precision.optimizer_states import expand_state
from roundoff.train.models.gpt import GPT
from roundoff.watch.watching import watching
from tests.precision.small_trainings import IMAGES, LABELS

FORMATS = ["adam8", "adam4", "adamfp8", "muon8"]
ADAMS = ["adam8", "adam4", "adamfp8"]
BYTES = {"adam8": 1 + 4 / 256, "adamfp8": 1 + 4 / 256, "adam4": 0.5 + 4 / 128, "muon8": 1 + 4 / 2048}
"""Of one number of state."""
every_format = pytest.mark.parametrize("name", FORMATS)
every_adam = pytest.mark.parametrize("name", ADAMS)


def net(*, seed: int = 0, width: int = 128) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 10),
    )  # fmt: skip


def adamw(model: nn.Module, lr: float = 2e-3) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr)


def optimizer_for(name: str, model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) if name == "muon8" else adamw(model)


def prepared(name: str, *, seed: int = 0, base: str = "fp32", **settings) -> tuple[nn.Module, RecipeOptimizer]:
    model = net(seed=seed)
    return apply_recipe(model, optimizer_for(name, model), f"{base}+{name}", **settings)


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    chosen = torch.randint(0, 1500, (64,), generator=torch.Generator().manual_seed(step))
    return IMAGES[chosen], LABELS[chosen]


def train(model: nn.Module, optimizer: RecipeOptimizer, steps: range, *, factor: float = 1.0) -> list[float]:
    losses = []
    for step in steps:
        x, y = batch_of(step)
        loss = F.cross_entropy(model(x), y) * factor
        optimizer.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def state_of(optimizer: Optimizer) -> list[dict[str, object]]:
    """The state of each parameter, copied, in the order of the groups."""
    return [copy.deepcopy(optimizer.state.get(p, {})) for group in optimizer.param_groups for p in group["params"]]


def same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype is b.dtype and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().float().flatten() for p in model.parameters()])


# ---- what is packed --------------------------------------------------------------------------------------------------


@every_format
def test_large_tensors_are_packed_between_steps_and_small_ones_are_not(name: str):
    model, optimizer = prepared(name)
    train(model, optimizer, range(2))
    keys = ["momentum_buffer"] if name == "muon8" else ["exp_avg", "exp_avg_sq"]
    for parameter, state in optimizer.state.items():
        if parameter.numel() < 4096:
            assert all(state[key].dtype is torch.float32 and state[key].shape == parameter.shape for key in keys)
            continue
        assert {key for key in state if key != "step"} == {
            f"{k}_{name}_{part}" for k in keys for part in ("codes", "scales")
        }
        held = sum(x.numel() * x.element_size() for key, x in state.items() if key != "step")
        assert held == pytest.approx(len(keys) * parameter.numel() * BYTES[name])


def test_adam8_takes_at_most_27_percent_of_fp32_adam():
    model = net(width=512)
    model, optimizer = apply_recipe(model, adamw(model), "adam8")
    train(model, optimizer, range(1))
    held = sum(x.numel() * x.element_size() for state in optimizer.state.values() for x in state.values())
    assert held <= 0.27 * 8 * sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "NAdam", "RAdam", "Adamax", "SGD", "Muon"])
@every_adam
def test_a_step_is_torchs_own_on_the_unpacked_state(name: str, kind: str):
    """Step by step: torch's optimizer, given the unpacked state, makes the same weights and what is packed next."""
    if not hasattr(torch.optim, kind):
        pytest.skip(f"this torch has no {kind}")
    model = nn.Linear(96, 80, bias=False)
    settings = {"momentum": 0.9} if kind == "SGD" else {"amsgrad": True} if kind in ("Adam", "AdamW") else {}
    plain = copy.deepcopy(model)
    reference = getattr(torch.optim, kind)(plain.parameters(), lr=0.01, weight_decay=0.1, **settings)
    inner = getattr(torch.optim, kind)(model.parameters(), lr=0.01, weight_decay=0.1, **settings)
    model, optimizer = apply_recipe(model, inner, name)
    for step in range(4):
        gradient = torch.randn(80, 96, generator=torch.Generator().manual_seed(step))
        plain.weight.grad, model.weight.grad = gradient.clone(), gradient.clone()
        reference.step()
        optimizer.step()
        assert torch.equal(plain.weight, model.weight)
        packed = optimizer.state[model.weight]
        assert any(key.endswith(f"_{name}_codes") for key in packed)
        reference.state[plain.weight] = expand_state(copy.deepcopy(packed), plain.weight)


@pytest.mark.parametrize("kind", ["Adam", "NAdam", "RAdam", "Adamax", "SGD"])
def test_a_large_parameter_is_stepped_in_parts_with_the_same_result(kind: str, monkeypatch):
    results = []
    for size in (2**20, 2048):
        monkeypatch.setattr(optimizer_states, "_CPU_PIECE", size)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(100, 90), nn.Linear(90, 60), nn.Linear(60, 7))
        settings = {"momentum": 0.9} if kind == "SGD" else {}
        model, optimizer = apply_recipe(model, getattr(torch.optim, kind)(model.parameters(), **settings), "adam8")
        for step in range(4):
            x = torch.randn(16, 100, generator=torch.Generator().manual_seed(step))
            optimizer.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        results.append((weights_of(model), state_of(optimizer)))
    assert torch.equal(results[0][0], results[1][0])
    assert same(results[0][1], results[1][1])


def test_no_more_than_a_piece_is_unpacked_at_a_time(monkeypatch):
    monkeypatch.setattr(optimizer_states, "_CPU_PIECE", 8192)
    model = net(width=256)
    model, optimizer = apply_recipe(model, adamw(model), "adam8")
    train(model, optimizer, range(1))
    most = 0

    def note(x, *args, **kwargs):
        nonlocal most
        most = max(most, x.numel())
        return original(x, *args, **kwargs)

    original = torch.Tensor.lerp_
    monkeypatch.setattr(torch.Tensor, "lerp_", note)
    train(model, optimizer, range(1, 2))
    assert 4096 < most <= 8192


# ---- trainings -------------------------------------------------------------------------------------------------------


def text_loss(recipe: str, optimizer_of: Callable[[nn.Module], Optimizer]) -> float:
    """Train a small GPT on words of a Markov chain; return its loss over the last of 120 steps."""
    generator = torch.Generator().manual_seed(0)
    chain = torch.randn(64, 64, generator=generator).mul(2).softmax(1)
    torch.manual_seed(0)
    model: nn.Module = GPT(vocabulary=64, context=24, width=64)
    model, optimizer = apply_recipe(model, optimizer_of(model), recipe)
    losses = []
    for _ in range(120):
        words = [torch.randint(0, 64, (16,), generator=generator)]
        for _ in range(24):
            words.append(torch.multinomial(chain[words[-1]], 1, generator=generator)[:, 0])
        ids = torch.stack(words, 1)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert sum(losses[-20:]) / 20 < 0.8 * losses[0]
    return sum(losses[-20:]) / 20


@pytest.mark.slow
def test_a_small_gpt_reaches_the_loss_of_fp32_within_half_a_percent():
    for optimizer_of, names in (
        (adamw, ADAMS),
        (lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), ["muon8"]),
    ):
        wanted = text_loss("fp32", optimizer_of)
        for name in names:
            assert abs(text_loss(name, optimizer_of) / wanted - 1) < 0.005, name


@pytest.mark.parametrize(
    "base", ["O1", "O2", "amp-bf16", "bf16", "bf16-kahan", "bf16-stochastic", "half", "fp8", "act4"]
)
def test_combines_with_other_recipes(base: str):
    model = net()
    model, optimizer = apply_recipe(model, torch.optim.AdamW(model.parameters(), lr=2e-3, eps=1e-4), f"{base}+adam8")
    losses = train(model, optimizer, range(20))
    assert sum(losses[-3:]) < 0.7 * sum(losses[:3])
    assert any(key.endswith("_adam8_codes") for state in optimizer.state.values() for key in state)


@every_format
def test_a_training_is_deterministic_and_a_resumed_one_goes_on_exactly(name: str):
    model, optimizer = prepared(name, base="O2")
    train(model, optimizer, range(3))
    checkpoint = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    wanted = train(model, optimizer, range(3, 6))
    resumed, resumed_optimizer = prepared(name, seed=1, base="O2")
    resumed.load_state_dict(checkpoint[0])
    resumed_optimizer.load_state_dict(checkpoint[1])
    assert train(resumed, resumed_optimizer, range(3, 6)) == wanted
    assert torch.equal(weights_of(resumed), weights_of(model))
    assert same(state_of(resumed_optimizer), state_of(optimizer))


def test_loading_a_checkpoint_does_not_share_its_memory():
    model, optimizer = prepared("adam8")
    train(model, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    untouched = copy.deepcopy(saved)
    optimizer.load_state_dict(saved)
    train(model, optimizer, range(2, 4))
    codes = [[x for key, x in s.items() if key.endswith("_codes")] for s in (saved["state"][0], untouched["state"][0])]
    assert codes[0]
    assert same(codes[0], codes[1])


@every_format
def test_plain_optimizers_exchange_state_with_it(name: str):
    model, optimizer = prepared(name)
    train(model, optimizer, range(3))
    plain = net(seed=1)
    bare = optimizer_for(name, plain)
    bare.load_state_dict(optimizer.plain_state_dict())
    states = zip(state_of(bare), state_of(optimizer), model.parameters(), strict=True)
    assert all(same(held, expand_state(packed, p)) for held, packed, p in states)

    other, other_optimizer = prepared(name, seed=2)
    other_optimizer.load_state_dict(bare.state_dict())
    assert any(key.endswith(f"_{name}_codes") for state in other_optimizer.state.values() for key in state)
    assert not any(key in ("exp_avg", "momentum_buffer") and x.numel() >= 4096
                   for state in other_optimizer.state.values() for key, x in state.items())  # fmt: skip
    train(other, other_optimizer, range(2))


@pytest.mark.parametrize("after", ["fp32", "O2", "fp32+adam4", "O2+adamfp8"])
def test_resumes_a_checkpoint_of_another_recipe(after: str):
    model, optimizer = prepared("adam8")
    losses = train(model, optimizer, range(15))
    resumed = net(seed=1)
    resumed, resumed_optimizer = apply_recipe(resumed, adamw(resumed), after)
    resumed.load_state_dict(model.state_dict())
    resumed_optimizer.load_state_dict(optimizer.state_dict())
    assert not any("adam8" in key for state in resumed_optimizer.state.values() for key in state)
    assert train(resumed, resumed_optimizer, range(15, 20))[0] < 0.8 * losses[0]


def test_state_from_before_the_recipe_is_packed():
    model = net()
    optimizer = adamw(model)
    F.cross_entropy(model(batch_of(0)[0]), batch_of(0)[1]).backward()
    optimizer.step()
    model, wrapped = apply_recipe(model, optimizer, "O2+adam8")
    assert any(key.endswith("_adam8_codes") for state in wrapped.state.values() for key in state)
    train(model, wrapped, range(2))


def test_remove_gives_the_optimizer_back_to_torch():
    model, optimizer = prepared("adam8")
    train(model, optimizer, range(2))
    wanted = [expand_state(state, p) for state, p in zip(state_of(optimizer), model.parameters(), strict=True)]
    optimizer.remove()
    assert same(state_of(optimizer.inner), wanted)
    F.cross_entropy(model(batch_of(0)[0]), batch_of(0)[1]).backward()
    optimizer.inner.step()


# ---- loops -----------------------------------------------------------------------------------------------------------


@every_format
def test_a_skipped_step_leaves_the_state_untouched(name: str):
    model, optimizer = prepared(name, base="O2")
    train(model, optimizer, range(2))
    before, weights = state_of(optimizer), weights_of(model)
    train(model, optimizer, range(2, 3), factor=float("inf"))
    assert optimizer.last_overflow is not None
    assert same(state_of(optimizer), before)
    assert torch.equal(weights_of(model), weights)


@every_format
def test_steps_with_a_closure_and_undoes_one_that_overflows(name: str):
    model, optimizer = prepared(name, base="O2")
    reference, plain = prepared(name, base="O2")
    factor = 1.0

    def closure() -> Tensor:
        optimizer.zero_grad()
        assert len(list(optimizer.param_groups)) == 1
        assert len(optimizer.param_groups[0]["params"]) == len(list(model.parameters()))
        loss = F.cross_entropy(model(batch_of(0)[0]), batch_of(0)[1]) * factor
        optimizer.backward(loss)
        return loss

    optimizer.step(closure)
    train(reference, plain, range(1))
    assert torch.equal(weights_of(model), weights_of(reference))
    before, factor = state_of(optimizer), float("inf")
    optimizer.step(closure)
    assert same(state_of(optimizer), before)
    assert isinstance(optimizer.param_groups, list)


def test_groups_frozen_parameters_and_parameters_without_gradients():
    model = net()
    model[1].weight.requires_grad_(False)
    groups = [{"params": model[1].parameters()}, {"params": model[4].parameters(), "lr": 0.0}]
    model, optimizer = apply_recipe(model, torch.optim.AdamW(groups, lr=1e-3), "adam8")
    before = model[4].weight.detach().clone()
    train(model, optimizer, range(2))
    assert torch.equal(model[4].weight * 1.0, before)  # its group has lr 0
    assert not optimizer.state.get(model[1].weight)
    optimizer.add_param_group({"params": model[6].parameters(), "lr": 1e-2})
    model[6].weight.grad = None
    train(model, optimizer, range(2, 4))
    held = state_of(optimizer)
    model.requires_grad_(False)
    optimizer.step()
    assert same(state_of(optimizer), held)
    assert len(optimizer.param_groups) == 3


def test_hooks_of_the_optimizer_run_once_per_step_and_see_its_groups():
    model = net()
    inner = adamw(model)
    seen = []
    inner.register_step_pre_hook(lambda o, *_: seen.append(len(list(o.param_groups))))
    inner.register_step_post_hook(lambda o, *_: seen.append(len(list(o.param_groups))))
    model, optimizer = apply_recipe(model, inner, "adam8")
    inner.register_step_post_hook(lambda o, *_: seen.append(len(list(o.param_groups))))
    train(model, optimizer, range(1))
    assert seen == [1, 1, 1]


def test_a_step_that_raises_leaves_groups_and_state_as_they_were():
    model, optimizer = prepared("adam8")
    train(model, optimizer, range(1))
    before = state_of(optimizer)
    optimizer.param_groups[0]["betas"] = None
    x, y = batch_of(1)
    optimizer.backward(F.cross_entropy(model(x), y))
    with pytest.raises(TypeError):
        optimizer.step()
    assert type(optimizer.param_groups) is list
    assert same(state_of(optimizer), before)
    optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    optimizer.zero_grad()
    train(model, optimizer, range(1, 3))


def test_a_bad_gradient_without_loss_scaling_shows_in_the_weights():
    model, optimizer = prepared("adam8", base="bf16")
    train(model, optimizer, range(1))
    train(model, optimizer, range(1, 2), factor=float("nan"))
    train(model, optimizer, range(2, 3))
    assert weights_of(model).isnan().any()


@pytest.mark.parametrize("layout", ["channels last", "foreach", "fused"])
def test_other_memory_layouts_and_ways_of_stepping(layout: str):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(1152, 10)
    )
    if layout == "channels last":
        model = model.to(memory_format=torch.channels_last)
    options = {} if layout == "channels last" else {layout: True}
    model, optimizer = apply_recipe(model, torch.optim.AdamW(model.parameters(), lr=4e-3, **options), "adam8")
    losses = train(model, optimizer, range(15))
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("recipe", ["adam8", "O2+adam4", "O2+muon8"])
def test_a_watched_training_is_the_same_bit_for_bit(recipe: str, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(optimizer_states, "_CPU_PIECE", 8192)
    results = []
    for is_watched in (False, True):
        model = net()
        model, optimizer = apply_recipe(model, optimizer_for(recipe.rpartition("+")[2], model), recipe)
        if is_watched:
            with watching(to=tmp_path / "run"):
                losses = train(model, optimizer, range(25))
        else:
            losses = train(model, optimizer, range(25))
        results.append((losses, weights_of(model), state_of(optimizer)))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert same(results[0][2], results[1][2])


# ---- recipes ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_for_matrices_and_adam_for_the_rest():
    model = net()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    inner = [torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(others, lr=1e-3)]
    model, (muon, adam) = apply_recipe(model, inner, "fp32+muon8")
    for step in range(10):
        x, y = batch_of(step)
        loss = F.cross_entropy(model(x), y)
        muon.backward(loss)
        for optimizer in (muon, adam):
            optimizer.step()
            optimizer.zero_grad()
    assert sorted(muon.state[matrices[0]]) == ["momentum_buffer_muon8_codes", "momentum_buffer_muon8_scales"]
    assert muon.state[matrices[0]]["momentum_buffer_muon8_scales"].numel() == matrices[0].numel() // 2048


def test_a_format_for_each_of_two_optimizers():
    model = net()
    parameters = list(model.parameters())
    inner = [torch.optim.SGD(parameters[:1], lr=0.01, momentum=0.9), torch.optim.AdamW(parameters[1:], lr=1e-3)]
    _, optimizers = apply_recipe(model, inner, "fp32+adam4+muon8")
    assert recipe_named("fp32+adam4+muon8").optimizer_states == ("adam4", "muon8")
    assert [optimizer._packed.name for optimizer in optimizers] == ["muon8", "adam4"]


def test_an_optimizer_that_a_format_is_not_for_is_an_error():
    model = net()
    with pytest.raises(RecipeError, match="cannot pack the state of LBFGS"):
        apply_recipe(model, torch.optim.LBFGS(model.parameters()), "O2+adam8")
    with pytest.raises(RecipeError, match="muon8 is for torch's Muon and SGD"):
        apply_recipe(model, adamw(model), "muon8")
    assert not model._forward_hooks


def test_the_formats_are_those_of_the_field():
    blocks = {name: [code_map(*each[:1], block=each[1]) for each in optimizer_states._MAPS[name]] for name in FORMATS}
    found = {name: [(m.name, m.bits, m.block) for m in maps] for name, maps in blocks.items()}
    assert found == {
        "adam8": [("dynamic8", 8, 256), ("dynamic8-unsigned", 8, 256)],
        "adam4": [("dynamic4", 4, 128), ("linear4-unsigned", 4, 128)],
        "adamfp8": [("e4m3", 8, 256), ("e4m3", 8, 256)],
        "muon8": [("linear8", 8, 2048), ("linear8", 8, 2048)],
    }


def test_the_report_names_the_format():
    _, optimizer = prepared("adam8", base="O2")
    assert "optimizer   state in adam8" in optimizer.report().splitlines()


def test_weights_sharded_by_fsdp_are_refused_before_anything_changes(tmp_path: Path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.Linear(64, 64)
        fully_shard(model)
        inner = torch.optim.AdamW(model.parameters())
        with pytest.raises(RecipeError, match="cannot pack the state of weights sharded by FSDP"):
            apply_recipe(model, inner, "O2+adam8")
        apply_recipe(model, inner, "O2")
    finally:
        torch.distributed.destroy_process_group()

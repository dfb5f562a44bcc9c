"""The optimizer that a recipe gives back, with everything a loop may do to it."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from roundoff.errors import LossScaleError, RecipeError
from roundoff.precision import ScaledStep, ScaleSettings, apply_recipe
from tests.precision.small_trainings import IMAGES, batch_of, prepared, sgd, small_net, train, weights_of

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.02),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.05),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.003),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.001),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.05),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.03),
}


@pytest.mark.parametrize("arithmetic", ["emulated", "native"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_works_with_every_optimizer_of_torch(make, arithmetic: str):
    model = small_net()
    model, optimizer = apply_recipe(model, make(model.parameters()), "O2", arithmetic=arithmetic)
    losses = train(model, optimizer, range(12), batch=lambda step: batch_of(0))
    assert math.isfinite(sum(losses))
    assert min(losses[-3:]) < losses[0]


@pytest.mark.parametrize("arithmetic", ["emulated", "native"])
@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_works_with_lbfgs(line_search: str | None, arithmetic: str):
    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    inner = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=6, line_search_fn=line_search)
    model, optimizer = apply_recipe(model, inner, "O2", loss_scale=128, arithmetic=arithmetic)
    x, y = batch_of(0)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.flatten(1)), y)
        optimizer.backward(loss)
        return loss

    losses = [optimizer.step(closure).item() for _ in range(3)]
    assert losses[-1] < 0.5 * losses[0]


def test_a_closure_that_overflows_leaves_weights_and_state_as_they_were():
    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    model, optimizer = apply_recipe(model, torch.optim.LBFGS(model.parameters(), max_iter=4), "O2", loss_scale=8)
    x, y = batch_of(0)
    num_calls = 0

    def closure():
        nonlocal num_calls
        num_calls += 1
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.flatten(1)), y) * (math.inf if num_calls == 3 else 1.0)
        optimizer.backward(loss)
        return loss

    before = weights_of(model)
    optimizer.step(closure)
    assert num_calls == 3
    assert optimizer.last_overflow is not None
    assert torch.equal(weights_of(model), before)
    assert not any(optimizer.state.values())


def test_sparse_gradients_stay_sparse():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Flatten(), nn.Linear(32, 4))
    for recipe in ("fp32", "O1", "O2", "amp-fp16"):
        net = copy.deepcopy(model)
        net, optimizer = apply_recipe(net, torch.optim.SGD(net.parameters(), lr=0.5), recipe, loss_scale="dynamic")
        words, labels = torch.randint(0, 20, (16, 4)), torch.randint(0, 4, (16,))
        losses = []
        for _ in range(5):
            loss = F.cross_entropy(net(words), labels)
            optimizer.backward(loss)
            assert net[0].weight.grad.is_sparse
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[-1] < losses[0]


def bad_batch(step: int):
    x, y = batch_of(step)
    return (x * 1e38 if step == 3 else x), y


@pytest.mark.parametrize("recipe", ["O1", "O2", "amp-fp16"])
def test_a_skipped_step_never_happened(recipe: str):
    model, optimizer = prepared(recipe)
    train(model, optimizer, range(3))
    before = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(optimizer.state_dict()["state"])
    scale = optimizer.scale
    train(model, optimizer, range(3, 4), batch=bad_batch)
    assert optimizer.last_overflow in dict(model.named_parameters())
    assert optimizer.scale == scale / 2
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    after = optimizer.state_dict()["state"]
    assert all(torch.equal(after[i]["momentum_buffer"], state[i]["momentum_buffer"]) for i in state)
    assert math.isfinite(train(model, optimizer, range(4, 5))[0])


def test_every_microbatch_of_a_skipped_step_is_rolled_back():
    model, optimizer = prepared("O2")
    before = copy.deepcopy(model.state_dict())
    for factor in (1.0, 1e38, 1.0):
        x, y = batch_of(0)
        optimizer.backward(F.cross_entropy(model(x * factor), y))
    optimizer.step()
    assert optimizer.last_overflow is not None
    assert model.state_dict()["1.num_batches_tracked"] == 0
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_buffers_loaded_between_steps_are_kept():
    model, optimizer = prepared("O2")
    train(model, optimizer, range(2))
    model[1].running_mean.fill_(3.0)
    train(model, optimizer, range(3, 4), batch=bad_batch)
    assert (model[1].running_mean == 3.0).all()


def test_names_the_first_gradient_in_the_order_of_the_backward_pass():
    model, optimizer = prepared("O2")
    x, y = batch_of(0)
    optimizer.backward(F.cross_entropy(model(x), y))
    model[4].weight.grad[0, 0, 0, 0] = math.inf
    model[0].weight.grad[0, 0, 0, 0] = math.nan
    optimizer.step()
    assert optimizer.last_overflow == "4.weight"


def test_large_but_finite_gradients_are_no_overflow():
    model, optimizer = prepared("fp32", loss_scale=2)
    x, y = batch_of(0)
    optimizer.backward(F.cross_entropy(model(x), y))
    model[4].weight.grad.fill_(3e38)
    optimizer.step()
    assert optimizer.last_overflow is None


def test_too_many_skips_are_an_error_that_names_the_gradient():
    model, optimizer = prepared("O2", loss_scale=ScaleSettings(kind="dynamic", initial=4.0, max_skips=2))
    with pytest.raises(LossScaleError, match=r"2 steps in a row overflowed.*\n.*'9\.bias'"):
        train(model, optimizer, range(5), batch=lambda step: bad_batch(3))


def test_a_static_scale_that_is_not_checked_lets_bad_gradients_through():
    model, optimizer = prepared("O2", loss_scale="static:128")
    train(model, optimizer, range(3, 4), batch=bad_batch)
    assert not torch.isfinite(weights_of(model)).all()


def test_tells_a_function_step_loss_overflow_and_scale():
    seen: list[ScaledStep] = []
    model, optimizer = prepared("O2", log=seen.append)
    losses = train(model, optimizer, range(2, 5), batch=bad_batch)
    assert [s.step for s in seen] == [0, 1, 2]
    assert [s.loss for s in seen] == pytest.approx(losses, nan_ok=True)
    assert [s.overflow is None for s in seen] == [True, False, True]
    assert [s.scale for s in seen] == [65536.0, 65536.0, 32768.0]


def test_a_plain_backward_under_a_loss_scale_is_an_error():
    model, optimizer = prepared("O2")
    x, y = batch_of(0)
    F.cross_entropy(model(x), y).backward()
    with pytest.raises(RecipeError, match=r"optimizer\.backward\(loss\)"):
        optimizer.step()


def test_a_backward_after_unscaling_is_an_error():
    model, optimizer = prepared("O2")
    x, y = batch_of(0)
    loss = F.cross_entropy(model(x), y)
    optimizer.backward(loss, retain_graph=True)
    optimizer.unscale_()
    with pytest.raises(RecipeError, match="mix scaled and unscaled"):
        optimizer.backward(loss)


def test_several_losses_add_their_gradients():
    model, optimizer = prepared("O2")
    reference = small_net()
    x, y = batch_of(0)
    for net, backward in ((reference, lambda loss, **kw: loss.backward(**kw)), (model, optimizer.backward)):
        output = net(x)
        backward(F.cross_entropy(output, y), retain_graph=True)
        backward(output.square().mean())
    optimizer.unscale_()
    wanted = torch.cat([p.grad.flatten() for p in reference.parameters()])
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.allclose(found, wanted, rtol=0.1, atol=0.02 * wanted.abs().max().item())


def test_several_optimizers_share_one_scale():
    model = small_net()
    body, head = list(model[:8].parameters()), list(model[9].parameters())
    inner = [torch.optim.SGD(body, lr=0.05), torch.optim.Adam(head, lr=0.01)]
    model, (first, second) = apply_recipe(model, inner, "O2", loss_scale=ScaleSettings(kind="dynamic", initial=64.0))
    losses = []
    for step in range(8):
        x, y = bad_batch(step)
        loss = F.cross_entropy(model(x), y)
        first.backward(loss)
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    assert first.scale == second.scale == 32.0
    assert first.num_skips == 1
    assert losses[-1] < losses[0]


def test_two_models_with_a_recipe_each_train_against_each_other():
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 8), nn.Linear(8, 1)
    maker, maker_optimizer = apply_recipe(maker, torch.optim.Adam(maker.parameters(), lr=0.01), "O2")
    judge, judge_optimizer = apply_recipe(judge, torch.optim.Adam(judge.parameters(), lr=0.01), "O1")
    for _ in range(5):
        made = maker(torch.randn(16, 4))
        judge_optimizer.zero_grad()
        judge_optimizer.backward((judge(made.detach()) - judge(torch.ones(16, 8))).mean())
        judge_optimizer.step()
        maker_optimizer.zero_grad()
        maker_optimizer.backward(-judge(made).mean())
        maker_optimizer.step()
    assert torch.isfinite(weights_of(maker)).all()


def test_the_checkpoint_of_o2_is_fp32_and_holds_the_master_weights():
    for arithmetic in ("emulated", "native"):
        model, optimizer = prepared("O2", arithmetic=arithmetic)
        train(model, optimizer, range(3))
        saved = model.state_dict()
        masters = [p for group in optimizer.param_groups for p in group["params"]]
        floats = [value for value in saved.values() if value.is_floating_point()]
        assert {value.dtype for value in floats} == {torch.float32}
        assert torch.equal(saved["9.weight"], masters[-2])
        assert not torch.equal(saved["9.weight"], saved["9.weight"].half().float())
        assert torch.equal(model[9].weight.float(), saved["9.weight"].half().float())


def test_a_weight_that_the_loop_writes_is_not_undone_by_its_master():
    model, optimizer = prepared("O2")
    train(model, optimizer, range(2))
    with torch.no_grad():
        model[9].weight.zero_()
    before = optimizer.param_groups[0]["lr"]
    optimizer.param_groups[0]["lr"] = 0.0
    train(model, optimizer, range(2, 3))
    optimizer.param_groups[0]["lr"] = before
    assert not model[9].weight.any()
    assert not model.state_dict()["9.weight"].any()


def test_a_group_added_later_gets_master_weights():
    model = small_net()
    inner = torch.optim.SGD(model[:8].parameters(), lr=0.1)
    model, optimizer = apply_recipe(model, inner, "O2")
    optimizer.add_param_group({"params": list(model[9].parameters()), "lr": 0.2})
    before = model[9].weight.detach().clone()
    train(model, optimizer, range(1))
    assert len(optimizer.param_groups) == 2
    assert not torch.equal(model[9].weight, before)


def test_state_from_before_the_recipe_moves_along():
    model = small_net()
    inner = sgd(model)
    F.cross_entropy(model(IMAGES[:8]), torch.zeros(8, dtype=torch.long)).backward()
    inner.step()
    momentum = inner.state[model[0].weight]["momentum_buffer"].clone()
    _, optimizer = apply_recipe(model, inner, "O2")
    assert torch.equal(optimizer.state_dict()["state"][0]["momentum_buffer"], momentum)


def test_a_scheduler_made_before_the_recipe_goes_on_without_a_warning():
    model = small_net()
    inner = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
    model, optimizer = apply_recipe(model, inner, "O2")
    train(model, optimizer, range(3, 4), batch=bad_batch)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_a_recipe_is_applied_once():
    model, optimizer = prepared("O2")
    with pytest.raises(RecipeError, match="already applied"):
        apply_recipe(model, optimizer, "O1")


def test_a_model_in_half_already_is_an_error():
    model = small_net().half()
    with pytest.raises(RecipeError, match=r"already holds torch\.float16"):
        apply_recipe(model, sgd(model), "O2")


def test_what_is_no_optimizer_is_an_error():
    model = small_net()
    with pytest.raises(RecipeError, match=r"is not a torch\.optim\.Optimizer"):
        apply_recipe(model, [model], "O2")


@pytest.mark.parametrize("recipe", ["half", "O3"])
def test_warns_that_adams_eps_is_zero_in_fp16(recipe: str):
    model = small_net()
    with pytest.warns(UserWarning, match=r"Adam's eps 1e-08 is 0 in fp16.*set eps to 1e-4"):
        apply_recipe(model, torch.optim.Adam(model.parameters()), recipe)


def test_does_not_warn_where_eps_survives():
    for recipe, eps in (("O2", 1e-8), ("half", 1e-4), ("bf16", 1e-8), ("bf16-kahan", 1e-8)):
        model = small_net()
        apply_recipe(model, torch.optim.Adam(model.parameters(), eps=eps), recipe)


@pytest.mark.parametrize("arithmetic", ["emulated", "native"])
@pytest.mark.parametrize("recipe", ["half", "O3"])
def test_a_learning_rate_beyond_the_format_of_the_weights_is_an_error(recipe: str, arithmetic: str):
    model = small_net()
    model, optimizer = apply_recipe(model, torch.optim.SGD(model.parameters(), lr=1e6), recipe, arithmetic=arithmetic)
    with pytest.raises(RecipeError) as caught:
        train(model, optimizer, range(1))
    assert str(caught.value) == (
        f"lr = 1e+06 is too large for the weights of recipe '{recipe}'.\n"
        "  why: they are float16, whose largest number is 65504.\n"
        "  fix: use a smaller lr, or a recipe with fp32 master weights, such as O2 or bf16-master."
    )


def test_an_error_of_the_inner_optimizer_itself_is_passed_on():
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("of its own")

    model = small_net()
    model, optimizer = apply_recipe(model, Failing(model.parameters(), lr=0.1), "half")
    with pytest.raises(RuntimeError, match="of its own"):
        train(model, optimizer, range(1))


def test_something_else_than_a_model_is_an_error():
    model = small_net()
    with pytest.raises(RecipeError, match=r"an nn\.Module or a list of them, not to a dict"):
        apply_recipe({"model": model}, sgd(model), "O2")

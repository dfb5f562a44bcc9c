"""Recipes under activation checkpointing, parts called by themselves, DistributedDataParallel and FSDP."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from roundoff.formats import round_to
from roundoff.precision import apply_recipe
from roundoff.torch_private import keep_process_group
from tests.precision.small_trainings import IMAGES, prepared, sgd, small_net, train

WAYS = [
    ("O1", "native"),
    ("O1", "emulated"),
    ("O2", "native"),
    ("O2", "emulated"),
    ("fp8", "auto"),
    ("amp-fp16", "auto"),
]
every_way = pytest.mark.parametrize(("name", "arithmetic"), WAYS, ids=lambda value: value)


class Checkpointed(nn.Module):
    def __init__(self, *, enabled: bool) -> None:
        super().__init__()
        self.net = small_net()
        self.enabled = enabled

    def forward(self, x):
        first = self.net[:5]
        x = checkpoint(first, x, use_reentrant=False) if self.enabled else first(x)
        return self.net[5:](x)


@every_way
def test_activation_checkpointing_changes_nothing(name: str, arithmetic: str):
    losses = []
    for enabled in (True, False):
        model = Checkpointed(enabled=enabled)
        model, optimizer = apply_recipe(model, sgd(model), name, arithmetic=arithmetic)
        losses.append(train(model, optimizer, range(4)))
    assert losses[0] == losses[1]


def test_a_part_called_by_itself_is_narrow_too():
    for name in ("O1", "O2"):
        model, _ = prepared(name, arithmetic="emulated")
        output = model[0](IMAGES[:8]).detach()
        assert torch.equal(output, round_to(output, "fp16"))
        assert not torch.overrides._get_current_function_mode_stack()


def test_a_crash_in_a_part_called_by_itself_leaves_no_mode_behind():
    model, _ = prepared("O2")
    with pytest.raises(RuntimeError):
        model[0](torch.zeros(2, 3, 8, 8))
    assert not torch.overrides._get_current_function_mode_stack()
    assert torch.isfinite(model(IMAGES[:4])).all()


def test_threads_do_not_disturb_each_other():
    models = [prepared(name)[0].eval() for name in ("O2", "bf16", "fp32")]
    with torch.no_grad():
        wanted = [model(IMAGES[:64]) for model in models]
    found: list[list[torch.Tensor]] = [[] for _ in models]

    def evaluate(place: int) -> None:
        with torch.no_grad():
            for _ in range(5):
                found[place].append(models[place](IMAGES[:64]))

    threads = [threading.Thread(target=evaluate, args=(place,)) for place in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert all(torch.equal(output, wanted[place]) for place in range(3) for output in found[place])


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    keep_process_group(dist.group.WORLD)  # freeing it could wait for ever
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("name", "arithmetic"),
    [*WAYS, ("half", "native"), ("bf16-stochastic", "native"), ("bf16-kahan", "emulated"), ("O2+act4", "auto")],
)
def test_trains_under_distributed_data_parallel(name: str, arithmetic: str):
    model, optimizer = prepared(name, arithmetic=arithmetic)
    wrapped = nn.parallel.DistributedDataParallel(model)
    losses = train(wrapped, optimizer, range(12))
    assert losses[-1] < losses[0]
    assert all(key.startswith("module.") for key in wrapped.state_dict())
    wrapped.load_state_dict(wrapped.state_dict())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("name", ["fp32", "O1", "O2", "amp-fp16", "fp8", "bf16"])
def test_trains_under_fsdp(name: str):
    model = small_net()
    fully_shard(model)
    model, optimizer = apply_recipe(model, sgd(model), name)
    losses = train(model, optimizer, range(12))
    assert losses[-1] < losses[0]

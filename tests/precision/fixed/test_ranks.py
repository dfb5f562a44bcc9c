"""Scales under several replicas and several ranks."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from roundoff.precision.fixed import FixedPointModel, FixedPointSettings, convert_to_fixed_point
from roundoff.torch_private import keep_process_group


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def replica_of(module: nn.Module) -> nn.Module:
    """Replicate as DataParallel does on its first device: parameters as attributes, buffers in the same memory."""
    replica = module._replicate_for_data_parallel()
    for name, child in module._modules.items():
        replica._modules[name] = replica_of(child)
    for name, value in module._parameters.items():
        replica.__dict__[name] = None if value is None else value.view_as(value)
    for name, value in module._buffers.items():
        replica._buffers[name] = value.detach()
    return replica


def test_what_a_replica_measures_is_in_the_model_afterwards():
    model, alone = net(), net()
    for one in (model, alone):
        convert_to_fixed_point(one, FixedPointSettings.uniform(bits=6), norms="quantized")
    for step in range(3):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step)) * 3
        replica = replica_of(model)
        replica(x).square().mean().backward()
        alone(x).square().mean().backward()
        assert not any(name in module.__dict__ for module in model.modules() for name in ("weight", "running_mean"))
    assert FixedPointModel.of(model).rows() == FixedPointModel.of(alone).rows()
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)
    x = torch.randn(5, 6)
    assert torch.equal(model.eval()(x), alone.eval()(x))
    assert model(x).unique().numel() > 3  # not collapsed


def train_on_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    keep_process_group(torch.distributed.group.WORLD)  # freeing it could wait for ever
    model = net()
    handle = convert_to_fixed_point(model, FixedPointSettings.uniform(bits=6), norms="quantized")
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(4):
        generator = torch.Generator().manual_seed(10 * step + rank)
        x = torch.randn(8, 6, generator=generator) * (1 + 20 * rank)  # ranks see other ranges
        optimizer.zero_grad()
        F.cross_entropy(ddp(x), torch.randint(0, 3, (8,), generator=generator)).backward()
        optimizer.step()
    after_training = {name: value.clone() for name, value in model.state_dict().items() if "scale" in name}
    handle.synchronize()
    ddp.eval()
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(99))
    with torch.no_grad():
        out = ddp(x)  # broadcasts the statistics of the norm
        alone = model(x)
    losses = (sharded_losses(is_sharded=True), sharded_losses(is_sharded=False))
    torch.save((after_training, model.state_dict(), out, alone, losses), f"{folder}/rank{rank}.pt")
    torch.distributed.destroy_process_group()


def sharded_losses(*, is_sharded: bool) -> list[float]:
    """Train on the same data on each rank, with every parameter split over them or whole on each."""
    model = net()
    convert_to_fixed_point(model, FixedPointSettings.uniform(bits=6))
    if is_sharded:
        mesh = init_device_mesh("cpu", (2,))
        for module in (model[0], model[3], model):
            fully_shard(module, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_evaluation_is_equal_on_one_and_two_ranks(tmp_path):
    ranks = mp.spawn(train_on_rank, args=(str(tmp_path),), nprocs=2, join=False, daemon=True)  # type: ignore[attr-defined]
    deadline = time.monotonic() + 300
    while not ranks.join(timeout=5):
        assert time.monotonic() < deadline
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    forward_scales = [name for name in first[0] if "error" not in name and "gradient" not in name]
    assert len(forward_scales) >= 8
    for name in forward_scales:  # equal before synchronize() was called
        assert torch.equal(first[0][name], second[0][name]), name
    assert first[0]["0.fixed_scale_activation"] >= 16  # the larger range, which only rank 1 saw
    for name, value in first[1].items():
        assert torch.equal(value, second[1][name]), name
    for out in (first[3], second[2], second[3]):
        assert torch.equal(out, first[2])
    for sharded, whole in (first[4], second[4]):
        assert sharded == whole
    model = net()
    convert_to_fixed_point(model, FixedPointSettings.uniform(bits=6), norms="quantized")
    model.load_state_dict(second[1])
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(99))
    assert torch.equal(model.eval()(x), first[2])


def test_one_process_needs_no_synchronisation():
    model = net()
    handle = convert_to_fixed_point(model)
    before = handle.rows()
    handle.synchronize()
    assert handle.rows() == before


def test_replicas_in_several_threads_do_not_see_each_other():
    model = net().eval()
    convert_to_fixed_point(model, FixedPointSettings.uniform(bits=6))
    batches = [torch.randn(64, 6) * (1 + step) for step in range(40)]
    model(batches[0])
    expected = [model(x).detach() for x in batches]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: replica_of(model)(x).detach(), batches))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert model[0].weight is model[0]._parameters["weight"]

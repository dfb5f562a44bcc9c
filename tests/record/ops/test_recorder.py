"""Every op's output becomes an event with the numbers of the real tensor; whole tensors are the real ones."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from roundoff.kernels import row, summarize
from roundoff.record import recording
from roundoff.record.ops.op_table import OpKind, describe_op, written_arguments
from roundoff.record.reference.op_call import list_tensors
from roundoff.runs import Event, Run
from roundoff.torch_private import DispatchMode

X, Y = torch.randn(4, 3), torch.randn(4, 2)


def hash_of(x: Tensor) -> int:
    return int(summarize(x.detach())[row.HASH : row.HASH + 1].view(np.uint64)[0])


def only(events: Any) -> Event:
    (event,) = events
    return event


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    F.mse_loss(model(X), Y).backward()
    optimizer.step()


class Keeping(DispatchMode):
    """Keeps a copy of everything that ops compute, by the simplest means."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[tuple[str, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        info = describe_op(func)
        if info.kind is OpKind.RETURNED:
            results = result if isinstance(result, (list, tuple)) else [result]
            own = [x for place, x in enumerate(results) if place not in info.views]
            self.outputs += [(info.name, x.detach().clone()) for x in list_tensors(own)]
        elif info.kind is OpKind.MUTATED:
            written = written_arguments(func, info, args, kwargs or {})
            self.outputs += [(info.name, x.detach().clone()) for x in written]
        return result


class Conv(nn.Module):
    """A bit of everything: convolution, norm, in-place ops, views, an LSTM, attention, half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.lstm = nn.LSTM(16, 8, batch_first=True)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu_(self.norm(self.conv(x))) * 2
        x += 1
        x = x.flatten(2)[:, :, ::2].transpose(1, 2).contiguous().view(2, -1, 16)
        x, _ = self.lstm(x)
        x, _ = self.attend(x, x, x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.head(x.mean(1)).float()


def mid_size_training() -> None:
    torch.manual_seed(0)
    model, x = Conv(), torch.randn(2, 3, 8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.zero_grad()
    model(x).square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def test_no_op_output_is_missing_and_each_has_the_hash_of_the_real_tensor(record):
    with Keeping() as kept:
        mid_size_training()
    events = [e for e in record(mid_size_training).iter_events() if "." in e.op]
    assert [(e.op, e.hash) for e in events] == [(op, hash_of(x)) for op, x in kept.outputs]


def test_the_numbers_of_each_event_are_those_of_the_tensor(record):
    with Keeping() as kept:
        mid_size_training()
    events = [e for e in record(mid_size_training).iter_events() if "." in e.op]
    for event, (_, x) in zip(events, kept.outputs, strict=True):
        values = x.double()
        assert (event.dtype, event.shape, event.device) == (str(x.dtype)[6:], tuple(x.shape), "cpu")
        assert event.num_elements == x.numel()
        if x.numel() and values.isfinite().all():
            assert (event.min, event.max) == (values.min().item(), values.max().item())
            assert event.mean == pytest.approx(values.mean().item(), rel=1e-9, abs=1e-12)
            assert event.l2 == pytest.approx(values.norm().item(), rel=1e-9)
            assert event.num_zero == (x == 0).sum().item()


# -- whole tensors -----------------------------------------------------------------------------------------------------


def test_whole_tensors_are_those_that_ops_computed_and_stock_safetensors_reads_them(record, tmp_path):
    with Keeping() as kept:
        mid_size_training()
    run = record(mid_size_training, level="tensors")
    file = run.tensor_file(0)
    stored = load_file(file.path)
    events = [e for e in run.iter_events() if "." in e.op]
    for event, (_, x) in zip(events, kept.outputs, strict=True):
        key = f"{event.phase}/{event.microbatch}/{event.site}/{event.op_name}:{event.output}"
        found = stored[file.aliases.get(key, key)]
        assert found.dtype == x.dtype
        assert found.shape == x.shape
        assert found.equal(x) or hash_of(found) == hash_of(x)
    assert {str(x.dtype) for _, x in kept.outputs} >= {"torch.float32", "torch.bfloat16"}


def test_every_event_has_its_tensor_and_every_tensor_its_event(record):
    run = record(mid_size_training, level="tensors")
    file = run.tensor_file(0)
    keys = [f"{e.phase}/{e.microbatch}/{e.site}/{e.op_name}:{e.output}" for e in run.iter_events()]
    assert sorted(file) == sorted(keys)
    for event, key in zip(run.iter_events(), keys, strict=True):
        x = file.torch(key)
        assert hash_of(x) == event.hash
        assert tuple(x.shape) == event.shape


def test_whole_tensors_take_no_more_room_than_what_was_computed(record):
    with Keeping() as kept:
        mid_size_training()
    computed = sum(x.nbytes for _, x in kept.outputs)
    model = Conv()
    held = 2 * sum(p.nbytes for p in model.parameters()) + 2 * 3 * 8 * 8 * 4  # parameters, gradients, the batch
    path = record(mid_size_training, level="tensors").tensor_file(0).path
    num_header_bytes = int.from_bytes(path.read_bytes()[:8], "little")
    assert path.stat().st_size - num_header_bytes - 8 <= computed + held


def test_each_step_has_its_file(record):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = record(lambda: [step(model, optimizer) for _ in range(4)], level="tensors", steps=[1, 3])
    assert run.tensor_steps == [(0, 1), (0, 3)]


def test_an_in_place_result_is_stored_as_it_was_then(record):
    def training():
        x = torch.ones(3)
        x.add_(1)
        x.mul_(10)
        F.mse_loss(nn.Linear(3, 2)(X), Y).backward()

    file = record(training, level="tensors").tensor_file(0)
    assert file["forward/0/<loop>/aten.add_#0:output0"].tolist() == [2, 2, 2]
    assert file["forward/0/<loop>/aten.mul_#0:output0"].tolist() == [20, 20, 20]


def test_writing_into_a_list_of_tensors_counts_as_a_new_version_of_each(record):
    xs = [torch.ones(2), torch.ones(3)]

    def write() -> None:
        nn.Linear(3, 2)(X).sum().backward()
        torch._foreach_mul_(xs, 2.0)
        torch._foreach_add_(xs, xs)

    record(write)
    recorded = [x._version for x in xs]
    write()
    assert recorded == [2, 2] == [x._version - 2 for x in xs]


def test_a_view_is_not_stored(record):
    model = nn.Linear(3, 2)

    def training():
        y = model(X)
        views = y.t(), y[0], y.view(-1), y.detach(), y.unsqueeze(0), y.expand(2, 4, 2), *y.split(2), *y.unsafe_chunk(2)
        F.mse_loss(y, Y).backward()
        del views

    run = record(training, phases="forward")
    assert [e.op for e in run.iter_events(site="<loop>") if e.op != "aten.ones_like"] == ["aten.mse_loss"]


def test_a_transposed_result_is_stored_in_row_major_order(record):
    x = torch.arange(6.0).view(2, 3)

    def training():
        (x.t() + 1).sum()
        nn.Linear(3, 2)(X).sum().backward()

    run = record(training, level="tensors")
    assert run.tensor_file(0)["forward/0/<loop>/aten.add#0:output0"].tolist() == (x.t() + 1).tolist()


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16, torch.uint32,
    torch.uint64, torch.complex64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_that_a_file_can_hold_is_stored(record, dtype):
    x = torch.tensor([0.0, 1.0, 2.0])

    def training():
        x.to(dtype, copy=True)
        nn.Linear(3, 2)(X).sum().backward()

    run = record(training, level="tensors")
    event = only(run.iter_events(op="aten._to_copy"))
    assert event.dtype == str(dtype)[6:]
    assert run.tensor_file(0).torch("forward/0/<loop>/aten._to_copy#0:output0").equal(x.to(dtype))


def test_a_dtype_that_a_file_cannot_hold_has_its_numbers_and_is_reported(tmp_path, capsys):
    z, model = torch.ones(2, dtype=torch.complex128), nn.Linear(3, 2)

    def training() -> None:
        (z * 2).add_(1)
        model(X).sum().backward()

    with recording(to=tmp_path / "run", level="tensors"):
        training()
    message = "2 tensors are not in the files of whole tensors, which cannot hold complex128."
    assert message in capsys.readouterr().err
    assert only(Run.open(tmp_path / "run").iter_events(op="aten.mul")).max == 2.0


# -- inputs ------------------------------------------------------------------------------------------------------------


def inputs_of(run: Run, op: str) -> dict[str, Event]:
    return {e.output: e for e in run.iter_events(op=op) if e.output.startswith("input")}


def test_inputs_of_an_op_are_recorded_before_it_changes_them(record):
    def training():
        x = torch.ones(3)
        x.add_(torch.full((3,), 5.0))
        nn.Linear(3, 2)(X).sum().backward()

    run = record(training, inputs=True)
    found = inputs_of(run, "aten.add_")
    assert (found["input0"].max, found["input1"].max) == (1.0, 5.0)
    assert only(e for e in run.iter_events(op="aten.add_") if e.output == "output0").max == 6.0


def test_running_statistics_are_recorded_before_the_norm_changes_them(record):
    norm = nn.BatchNorm1d(3)
    run = record(lambda: norm(X + 100).sum().backward(), inputs=True)
    found = inputs_of(run, "aten.native_batch_norm")
    assert [found[f"input{i}"].max for i in (1, 2, 3, 4)] == [1.0, 0.0, 0.0, 1.0]  # weight, bias, mean, variance
    assert norm.running_mean.max() > 1


def test_inputs_of_a_matmul_are_its_operands(record):
    model = nn.Linear(3, 2)
    run = record(lambda: F.mse_loss(model(X), Y).backward(), inputs=True)
    found = inputs_of(run, "aten.addmm")
    assert [found[f"input{i}"].hash for i in range(3)] == [hash_of(model.bias), hash_of(X), hash_of(model.weight.t())]


def test_inputs_given_by_name_are_recorded_too(record):
    def training():
        torch.ops.aten.addmm(torch.zeros(2), mat1=X, mat2=torch.ones(3, 2))
        torch.add(X, X, out=torch.empty(4, 3))
        nn.Linear(3, 2)(X).sum().backward()

    run = record(training, inputs=True)
    found = {e.output: e.hash for e in run.iter_events(op="aten.addmm#0", site="<loop>")}
    assert found["input1"] == hash_of(X)
    assert [e.output for e in run.iter_events(op="aten.add")] == [
        "input0",
        "input1",
        "output0",
    ]  # not what it overwrites


# -- tensors that no op computes ---------------------------------------------------------------------------------------


def test_parameters_and_gradients_have_the_hash_of_the_real_tensors(record):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[dict[str, dict[str, int]]] = []

    def training():
        for _ in range(2):
            parameters = {name: hash_of(p) for name, p in model.named_parameters()}
            optimizer.zero_grad()
            F.mse_loss(model(X), Y).backward()
            seen.append(
                {"parameter": parameters, "gradient": {n: hash_of(p.grad) for n, p in model.named_parameters()}}
            )
            optimizer.step()

    run = record(training)
    for number, expected in enumerate(seen):
        for kind in ("parameter", "gradient"):
            assert {e.parameter: e.hash for e in run.iter_events(op=kind, step=number)} == expected[kind]
        rows = run.hashes(step=number).to_list()
        assert {r["name"]: r["hash"] for r in rows if r["kind"] == "parameter"} == expected["parameter"]
        assert {r["name"]: r["hash"] for r in rows if r["kind"] == "gradient"} == expected["gradient"]


def test_gradients_are_taken_as_the_optimizer_sees_them(record):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hashes = {}

    def training():
        F.mse_loss(model(X), Y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        hashes.update({name: hash_of(p.grad) for name, p in model.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()

    run = record(training)
    assert {e.parameter: e.hash for e in run.iter_events(op="gradient")} == hashes
    assert run.metrics()[0].grad_norm == pytest.approx(1e-3, rel=1e-3)


def test_gradients_of_a_loop_without_optimizer_are_taken_when_the_step_closes(record):
    model = nn.Linear(3, 2)
    run = record(lambda: F.mse_loss(model(X), Y).backward())
    assert {e.parameter: e.hash for e in run.iter_events(op="gradient")} == {
        name: hash_of(p.grad) for name, p in model.named_parameters()
    }


def test_gradients_of_tensors_without_a_model_are_recorded_under_different_names(record):
    weights = [torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]
    optimizer = torch.optim.SGD(weights, lr=0.1)

    def training():
        sum(weight.square().sum() for weight in weights).backward()
        optimizer.step()

    run = record(training)
    assert [(e.site, e.op_name, e.shape) for e in run.iter_events(op="gradient")] == [
        ("<loop>", "gradient#0", (2,)), ("<loop>", "gradient#1", (3,)),
    ]  # fmt: skip
    names = run.hashes().to_list()
    assert len({r["name"] for r in names}) == len(names)


class Batch(dict):
    pass


def batches() -> dict[str, Callable[[nn.Module], Tensor]]:
    from collections import UserDict, namedtuple
    from dataclasses import dataclass

    from transformers import BatchEncoding

    @dataclass
    class Pair:
        x: Tensor
        name: str
        y: Tensor

    Tuple = namedtuple("Tuple", "x y")
    return {
        "arguments": lambda model: model(X, Y),
        "keywords": lambda model: model(x=X, y=Y),
        "one of each": lambda model: model(X, y=Y),
        "a list": lambda model: model([X, [Y]]),
        "a dict": lambda model: model({"x": X, "more": {"y": Y}, "name": "a"}),
        "a subclass of dict": lambda model: model(Batch(x=X, y=Y)),
        "a UserDict": lambda model: model(UserDict(x=X, y=Y)),
        "a BatchEncoding": lambda model: model(BatchEncoding({"x": X, "y": Y})),
        "a namedtuple": lambda model: model(Tuple(X, Y)),
        "a dataclass": lambda model: model(Pair(X, "a", Y)),
        "a dataclass by keyword": lambda model: model(batch=Pair(X, "a", Y)),
    }


class Anything(nn.Linear):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(X)


@pytest.mark.parametrize("kind", batches().keys())
def test_the_batch_is_recorded_however_it_is_given(record, kind):
    model = Anything(3, 2)
    run = record(lambda: batches()[kind](model).sum().backward())
    inputs = [e for e in run.iter_events(op="input")]
    assert [(e.site, e.op_name, e.output, e.hash) for e in inputs] == [
        ("<model>", "input#0", "output0", hash_of(X)), ("<model>", "input#0", "output1", hash_of(Y)),
    ]  # fmt: skip
    rows = [r for r in run.hashes().to_list() if r["kind"] == "input"]
    assert [(r["name"], r["hash"]) for r in rows] == [("<model>[0]", hash_of(X)), ("<model>[1]", hash_of(Y))]


def test_the_inputs_of_two_calls_have_different_names(record):
    model = nn.Linear(3, 2)
    run = record(lambda: (model(X) + model(X * 2)).sum().backward())
    assert [(e.op_name, e.output) for e in run.iter_events(op="input")] == [
        ("input#0", "output0"), ("input#1", "output0"),
    ]  # fmt: skip
    names = [r["name"] for r in run.hashes().to_list() if r["kind"] == "input"]
    assert names == ["<model>[0]", "<model>#1[0]"]


# -- tensors and trainings of every kind -------------------------------------------------------------------------------


def special_forward(model: nn.Module) -> None:
    """Scalars, empty tensors, complex numbers, conjugates, negative views, huge ranges."""
    model(X).sum().backward()
    torch.tensor(3.0) * 2
    torch.ones(0, 5) + 1
    z = torch.fft.fft(X)
    (z.conj() * 2).imag.neg()
    torch.complex(X, X).conj().clone()
    torch.tensor([torch.nan, torch.inf, -torch.inf, 1e-45]).mul(1)


def test_scalars_empty_complex_and_nonfinite_tensors_are_recorded(record):
    model = nn.Linear(3, 2)
    run = record(lambda: special_forward(model), level="tensors", inputs=True)
    empty = only(e for e in run.iter_events(op="aten.add") if e.output == "output0")
    assert (empty.shape, empty.num_elements) == ((0, 5), 0)
    assert np.isnan(empty.min)
    odd = only(e for e in run.iter_events(op="aten.mul") if e.shape == (4,) and e.output == "output0")
    assert (odd.num_nan, odd.num_posinf, odd.num_neginf, odd.num_subnormal) == (1, 1, 1, 1)
    transformed = only(e for e in run.iter_events(op="aten._fft_r2c") if e.output == "output0")
    assert transformed.hash == hash_of(torch.fft.fft(X))


def test_a_conjugate_that_is_given_as_a_batch_is_read_as_what_it_means(record):
    z = torch.complex(X, X).conj()

    class Real(nn.Linear):
        def forward(self, z: Tensor) -> Tensor:
            return super().forward(z.real)

    model = Real(3, 2)
    run = record(lambda: model(z).sum().backward(), level="tensors")
    assert run.tensor_file(0).torch("forward/0/<model>/input#0:output0").equal(z.resolve_conj())


def test_sparse_gradients_are_recorded(record):
    model = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())

    def training():
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.tensor([1, 1, 4])).sum().backward()
            optimizer.step()

    run = record(training, level="tensors", inputs=True)
    assert {(e.step, e.parameter) for e in run.iter_events(op="gradient")} == {(0, "weight"), (1, "weight")}


def plain_and_recorded(training: Callable[[], Any], folder: Path, **options: Any) -> Run:
    """Run it with and without a recording, and demand the same bits."""
    torch.manual_seed(0)
    plain = training()
    torch.manual_seed(0)
    with recording(to=folder, **options):
        recorded = training()
    assert [hash_of(x) for x in plain] == [hash_of(x) for x in recorded]
    return Run.open(folder)


def per_sample_gradients() -> list[Tensor]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(torch.func.functional_call(model, weights, (x,)), y)

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, X, Y)
    return list(gradients.values())


def functional_training() -> list[Tensor]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    loss = torch.func.grad_and_value(lambda w: F.mse_loss(torch.func.functional_call(model, w, (X,)), Y))
    for _ in range(3):
        gradients, _ = loss(weights)
        weights = {name: weights[name] - 0.1 * gradients[name] for name in weights}
    return list(weights.values())


def jacobian() -> list[Tensor]:
    model = nn.Linear(3, 2)
    return [
        torch.func.jacrev(model)(X[0]),
        torch.func.jacfwd(model)(X[0]),
        torch.func.hessian(lambda x: model(x).sum())(X[0]),
    ]


def forward_mode() -> list[Tensor]:
    model = nn.Linear(3, 2)
    out, tangent = torch.func.jvp(model, (X,), (torch.ones_like(X),))
    return [out.detach(), tangent.detach()]


def gradient_penalty() -> list[Tensor]:
    critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(critic.parameters())
    for _ in range(3):
        x = torch.randn(4, 3, requires_grad=True)
        out = critic(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        optimizer.zero_grad()
        (out.mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
        optimizer.step()
    return [p.detach() for p in critic.parameters()]


def higher_order() -> list[Tensor]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    model(X).sum().backward(create_graph=True, inputs=list(model.parameters()))
    gradients = [p.grad for p in model.parameters()]
    found = [x.detach() for x in torch.autograd.grad(sum(g.square().sum() for g in gradients), list(model.parameters()),
                                                     allow_unused=True) if x is not None]  # fmt: skip
    for parameter in model.parameters():
        parameter.grad = None  # with create_graph they hold each other
    return found


def transformer_evaluation() -> list[Tensor]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)
    x = torch.randn(2, 5, 8)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x, src_key_padding_mask=mask).sum().backward()
    optimizer.step()
    model.eval()
    with torch.inference_mode():
        out = model(x, src_key_padding_mask=mask)
    return [out.clone(), *(p.detach() for p in model.parameters())]


def inference_only_then_training() -> list[Tensor]:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(144, 2)
    )
    x = torch.randn(2, 3, 8, 8)
    with torch.inference_mode():
        outs = [model(x).clone()]
    model(x).sum().backward()
    return outs + [p.detach() for p in model.parameters()]


def autocast_and_checkpoint() -> list[Tensor]:
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = torch.utils.checkpoint.checkpoint_sequential(
                model, 2, X.clone().requires_grad_(), use_reentrant=False
            )
        F.mse_loss(out.float(), Y).backward()
    return [p.grad for p in model.parameters()]


def saved_tensor_hooks() -> list[Tensor]:
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: x.numpy().copy() if not x.requires_grad else x.detach().numpy(), torch.from_numpy
    ):
        loss = F.mse_loss(model(X), Y)
    loss.backward()
    return [p.grad for p in model.parameters()]


def deep_copy_in_the_loop() -> list[Tensor]:
    import copy

    model = nn.Linear(3, 2)
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        step(model, optimizer)
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.lerp_(p, 0.5)
    best = copy.deepcopy(model.state_dict())
    return [*best.values(), *(p.detach() for p in average.parameters())]


def averaged_model() -> list[Tensor]:
    model = nn.Linear(3, 2)
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        step(model, optimizer)
        average.update_parameters(model)
    return [average(X).detach(), *(p.detach() for p in model.parameters())]


def parameter_views() -> list[Tensor]:
    flat = torch.zeros(8)
    model = nn.Linear(3, 2)
    flat[:6] = model.weight.detach().view(-1)
    model.weight = nn.Parameter(flat[:6].view(2, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    return [flat]


def triple(parameter: Tensor) -> None:
    parameter.grad.mul_(3)


def hooks_on_tensors() -> list[Tensor]:
    model = nn.Linear(3, 2)
    model.weight.register_hook(lambda gradient: gradient * 2)
    model.bias.register_post_accumulate_grad_hook(triple)
    F.mse_loss(model(X), Y).backward()
    return [p.grad for p in model.parameters()]


def quantized_and_odd() -> list[Tensor]:
    model = nn.Linear(3, 2)
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    out = (nested * 2).to_padded_tensor(0.0)
    csr = torch.eye(3).to_sparse()
    model(X @ csr.to_dense()).sum().backward()
    return [out, model.weight.grad]


KINDS = [
    per_sample_gradients, functional_training, jacobian, forward_mode, gradient_penalty, higher_order,
    transformer_evaluation, inference_only_then_training, autocast_and_checkpoint, saved_tensor_hooks,
    deep_copy_in_the_loop, averaged_model, parameter_views, hooks_on_tensors, quantized_and_odd,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*PyTorch API of nested tensors is in prototype")
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.filterwarnings("ignore:.*is being updated to use the torch.nested")
@pytest.mark.parametrize("training", KINDS)
@pytest.mark.parametrize("options", [{}, {"level": "tensors", "inputs": True, "stacks": True}], ids=["plain", "all"])
def test_recording_survives_and_changes_nothing_in(tmp_path, training, options):
    run = plain_and_recorded(training, tmp_path / "run", **options)
    assert run.info.status == "finished"
    assert not any("stopped" in note for note in run.info.notes)
    assert run.steps


def test_a_loop_over_transformed_functions_has_steps(tmp_path):
    run = plain_and_recorded(functional_training, tmp_path / "run")
    assert [m.step for m in run.metrics()] == [0, 1, 2]
    assert {e.site for e in run.iter_events(op="aten.addmm")} == {"0", "2"}


def test_tensors_that_cannot_be_read_are_counted_and_reported(tmp_path, capsys):
    from torch._subclasses import FakeTensorMode

    model = nn.Linear(3, 2)

    def training() -> None:
        with FakeTensorMode():
            torch.ones(3)
        model(X).sum().backward()

    with recording(to=tmp_path / "run"):
        training()
    assert "1 tensor could not be read (meta, fake, nested, or of a foreign subclass)" in capsys.readouterr().err


def test_a_huge_number_of_ops_is_recorded(record):
    model = nn.Linear(3, 2)

    def training():
        x = model(X)
        for _ in range(3000):
            x = x + 1
        x.sum().backward()

    run = record(training)
    assert [e.nth for e in run.iter_events(op="aten.add", phase="forward")] == list(range(3000))


def test_many_microbatches_are_recorded(record):
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def training():
        for _ in range(300):
            (weight * 2).backward()
        optimizer.step()

    assert max(e.microbatch for e in record(training).iter_events()) == 299


def test_threads_of_the_user_compute_as_they_like(record):
    model = nn.Linear(3, 2)
    results: list[Tensor] = []

    def training():
        threads = [threading.Thread(target=lambda: results.append(torch.ones(3) * 2)) for _ in range(8)]
        for thread in threads:
            thread.start()
        model(X).sum().backward()
        for thread in threads:
            thread.join(timeout=300)

    run = record(training)
    assert len(results) == 8
    assert [e.op for e in run.iter_events(op="aten.mul")] == []


class Slow(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        x = torch.full((3,), float(index))
        for _ in range(300):
            x = x + 1
        return x - 300


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.slow
def test_workers_of_a_loader_are_left_alone(record, context):
    model = nn.Linear(3, 2)
    loader = DataLoader(Slow(), 4, num_workers=2, multiprocessing_context=context)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    got = []

    def training():
        for x in loader:
            got.append(x[:, 0].tolist())
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

    run = record(training)
    assert got == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [m.step for m in run.metrics()] == [0, 1]
    assert not list(run.iter_events(op="aten.add", site="<loop>", phase="forward"))


def test_a_child_of_the_script_writes_nothing(record, tmp_path):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def training():
        step(model, optimizer)
        child = os.fork()
        if child == 0:
            try:
                for _ in range(3):
                    step(model, optimizer)
                for _ in range(3000):
                    torch.ones(1)
                (tmp_path / "child").write_text("done")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        step(model, optimizer)

    run = record(training, level="tensors")
    assert (tmp_path / "child").exists()
    assert [m.step for m in run.metrics()] == [0, 1]
    assert run.info.status == "finished"


def test_a_dataset_of_tensors_is_drawn_in_the_loop(record):
    model = nn.Linear(3, 2)
    loader = DataLoader(TensorDataset(X, Y), 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def training():
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()

    run = record(training)
    assert [e.hash for e in run.iter_events(op="input")] == [hash_of(X[:2]), hash_of(X[2:])]


def test_leaving_the_graph_is_an_event_where_the_users_code_does_it(record):
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.body(x)).detach())  # autograd detaches the result of relu, too

    def training() -> None:
        model = Cut()
        step(model, torch.optim.SGD(model.parameters(), lr=0.1))

    assert [e.site for e in record(training, stacks=True).iter_events(op="aten.detach")] == ["<model>"]

"""Two runs that differ in one thing: which one it is, and silence where there is none."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from roundoff.compare.runs.run_comparison import RunComparison, compare_runs
from roundoff.errors import CompareError
from roundoff.record import recording
from roundoff.runs import Run
from tests.compare.variants import Variant, picture_training, transformer_training

Training = Callable[[Variant], Callable[[], None]]


def record(folder: Path, training: Training, variant: Variant, *, inputs: bool = True) -> Run:
    train = training(variant)
    with recording(to=folder, steps=range(2), inputs=inputs, stacks=inputs):
        train()
    return Run.open(folder)


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return record(tmp_path_factory.mktemp("transformer") / "reference", transformer_training, Variant())


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return record(tmp_path_factory.mktemp("pictures") / "reference", picture_training, Variant())


def compared(reference: Run, folder: Path, training: Training, variant: Variant) -> RunComparison:
    return compare_runs(reference, record(folder / "candidate", training, variant))


DIFFERENCES = {
    "LayerNorm eps": (Variant(norm_eps=1e-3), "forward", "blocks.1.ln1", "aten.native_layer_norm#0"),
    "attention scale": (Variant(attention_scale=1.001), "forward", "blocks.1.attn", "aten.mul#0"),
    "tanh GELU": (Variant(gelu="tanh"), "forward", "blocks.1", "aten.gelu#0"),
    "dropout seed": (Variant(seed=5), "randomness", "blocks.0.attn.drop", "aten.bernoulli_#0"),
    "another batch": (Variant(data_seed=9), "data", "<model>", "input"),
    "gradient x1.01": (Variant(gradient_factor=1.01), "backward", "blocks.1.fc1", "aten.mul#0"),
    "weight decay": (Variant(weight_decay=0.1), "optimizer", "emb", "aten.mul_#0"),
    "Adam beta2": (Variant(beta2=0.99), "optimizer", "emb", "aten.addcmul_#0"),
    "one op x1.05": (Variant(op_factor=1.05), "forward", "blocks.1", "aten.mul#0"),
    "one channel x1.05": (Variant(channel_factor=1.05), "forward", "blocks.1", "aten.mul#0"),
    "start values": (Variant(model_seed=1), "start values", "emb", "parameter"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_names_the_op_that_introduces_the_difference(transformer: Run, tmp_path: Path, name: str):
    variant, cause, site, op = DIFFERENCES[name]
    found = compared(transformer, tmp_path, transformer_training, variant).divergence
    assert found is not None
    assert (found.step, found.cause, found.site, found.op) == (0, cause, site, op)


def test_names_the_one_channel_that_differs_and_the_line(transformer: Run, tmp_path: Path):
    found = compared(transformer, tmp_path, transformer_training, Variant(channel_factor=1.05)).divergence
    assert found is not None
    assert (found.channel, found.num_channels) == (77, 128)
    assert found.source is not None
    assert "variants.py:" in found.source
    assert found.is_only_in == "candidate"


def test_a_parameter_s_gradient_is_named_with_it(transformer: Run, tmp_path: Path):
    found = compared(transformer, tmp_path, transformer_training, Variant(gradient_factor=1.01)).divergence
    assert found is not None
    assert found.parameter == "blocks.1.fc1.weight"


def test_the_same_run_twice_is_identical(transformer: Run, tmp_path: Path):
    comparison = compared(transformer, tmp_path, transformer_training, Variant())
    assert comparison.is_identical
    assert comparison.divergence is None
    assert comparison.steps == (0, 1)


EXPLAINED = {
    "bf16 autocast": Variant(autocast=torch.bfloat16),
    "fp16 autocast": Variant(autocast=torch.float16),
    "two threads": Variant(num_threads=2),
    "foreach optimizer": Variant(foreach=True),
}


@pytest.mark.parametrize("name", EXPLAINED)
@pytest.mark.parametrize("training", [transformer_training, picture_training])
def test_is_silent_where_formats_explain_everything(
    transformer: Run, pictures: Run, tmp_path: Path, training: Training, name: str
):
    reference = transformer if training is transformer_training else pictures
    comparison = compared(reference, tmp_path, training, EXPLAINED[name])
    assert comparison.divergence is None
    assert comparison.steps == (0, 1)
    assert len(comparison.rows) > 100


def test_fused_and_unfused_attention_line_up_around_it(transformer: Run, tmp_path: Path):
    comparison = compared(transformer, tmp_path, transformer_training, Variant(fused_attention=True))
    assert comparison.divergence is None
    forward = {(op.side, op.site) for op in comparison.unpaired if op.phase == "forward"}
    assert forward == {(side, f"blocks.{i}.attn") for side in ("reference", "candidate") for i in range(3)}


def test_a_fault_shows_through_the_rounding_of_a_narrow_format(transformer: Run, tmp_path: Path):
    found = compared(
        transformer, tmp_path, transformer_training, Variant(autocast=torch.bfloat16, op_factor=1.2)
    ).divergence
    assert found is not None
    assert (found.site, found.op) == ("blocks.1", "aten.mul#0")


def test_another_name_of_a_layer_is_guessed_or_given(transformer: Run, tmp_path: Path):
    candidate = record(tmp_path / "candidate", transformer_training, Variant(first_name="up"))
    guessed = compare_runs(transformer, candidate)
    given = compare_runs(transformer, candidate, sites={f"blocks.{i}.fc1": f"blocks.{i}.up" for i in range(3)})
    for comparison in (guessed, given):
        assert comparison.is_identical
        assert {"blocks.0.fc1", "blocks.2.fc1"} <= {row.site for row in comparison.rows}


def test_a_map_that_names_nothing_is_an_error(transformer: Run):
    with pytest.raises(CompareError, match="The map names 'nowhere', which is not a site of the candidate"):
        compare_runs(transformer, transformer, sites={"blocks.0.fc1": "nowhere"})


def test_runs_without_inputs_of_ops_are_compared_too(tmp_path: Path):
    reference = record(tmp_path / "reference", transformer_training, Variant(), inputs=False)
    for name in ("LayerNorm eps", "tanh GELU", "dropout seed", "another batch"):
        variant, _, site, op = DIFFERENCES[name]
        candidate = record(tmp_path / name, transformer_training, variant, inputs=False)
        found = compare_runs(reference, candidate).divergence
        assert found is not None
        assert (found.site, found.op) == (site, op)
    narrow = record(tmp_path / "narrow", transformer_training, Variant(autocast=torch.bfloat16), inputs=False)
    assert compare_runs(reference, narrow).divergence is None


def test_a_step_that_was_not_recorded_is_an_error_that_says_so(transformer: Run):
    with pytest.raises(CompareError, match=r"Step 7 cannot be compared") as caught:
        compare_runs(transformer, transformer, step=7)
    assert "recorded steps 0, 1" in str(caught.value)
    with pytest.raises(CompareError, match=r"Rank 3 cannot be compared"):
        compare_runs(transformer, transformer, rank=3)


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("scale", torch.full((4,), scale))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale


def test_another_buffer_is_neither_data_nor_the_op_that_reads_it(tmp_path: Path):
    def training(scale: float) -> Training:
        def prepare(_: Variant) -> Callable[[], None]:
            torch.manual_seed(0)
            model, x = Scaled(scale), torch.randn(6, 8)

            def train() -> None:
                for _ in range(2):
                    model(x).square().mean().backward()

            return train

        return prepare

    reference = record(tmp_path / "a", training(1.0), Variant())
    found = compare_runs(reference, record(tmp_path / "b", training(1.1), Variant())).divergence
    assert found is not None
    assert (found.cause, found.site, found.op, found.output) == ("forward", "<model>", "aten.mul#0", "input1")


def training_of(make_model: Callable[[], nn.Module], *, freezes: str | None = None) -> Training:
    def prepare(_: Variant) -> Callable[[], None]:
        torch.manual_seed(0)
        model = make_model()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name != freezes)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        x = torch.randn(6, 3, 8, 8)

        def train() -> None:
            for _ in range(2):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()

        return train

    return prepare


def net(*, stride: int = 1, padding_mode: str = "zeros", width: int = 4) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        first = nn.Conv2d(3, width, 3, stride=stride, padding=1, padding_mode=padding_mode)
        return nn.Sequential(first, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 2))

    return make


OTHER_NETS = {
    "stride": (training_of(net(stride=2)), 0, "forward", "0", "aten.convolution#0"),
    "padding": (training_of(net(padding_mode="reflect")), 0, "forward", "0", "aten.reflection_pad2d#0"),
    "width": (training_of(net(width=8)), 0, "start values", "0", "parameter"),
    "frozen": (training_of(net(), freezes="0.weight"), 1, "optimizer", "0", "parameter"),
}


@pytest.mark.parametrize("name", OTHER_NETS)
def test_another_shape_or_update_is_no_agreement(tmp_path: Path, name: str):
    training, step, cause, site, op = OTHER_NETS[name]
    reference = record(tmp_path / "a", training_of(net()), Variant())
    found = compare_runs(reference, record(tmp_path / "b", training, Variant())).divergence
    assert found is not None
    assert (found.step, found.cause, found.site, found.op) == (step, cause, site, op)


def test_runs_of_different_models_are_refused(transformer: Run, pictures: Run):
    with pytest.raises(CompareError, match="are runs of different models"):
        compare_runs(transformer, pictures)


class ScaledBefore(nn.Module):
    """The same function, the factor before the product or after it."""

    def __init__(self, *, is_before: bool) -> None:
        super().__init__()
        self.first, self.last, self.is_before = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), is_before

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(2).mean(1)[:, :8])
        y = (h * 0.25) @ h.t() if self.is_before else (h @ h.t()) * 0.25
        return self.last(torch.cat([y, y[:, :2]], 1))


def test_what_is_computed_another_way_and_comes_out_the_same_is_no_difference(tmp_path: Path):
    reference = record(tmp_path / "a", training_of(lambda: ScaledBefore(is_before=True)), Variant())
    candidate = record(tmp_path / "b", training_of(lambda: ScaledBefore(is_before=False)), Variant())
    comparison = compare_runs(reference, candidate)
    assert comparison.divergence is None
    assert not comparison.is_identical

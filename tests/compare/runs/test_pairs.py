"""Pairs of trainings as users have them: recorded ones are compared as well as watched ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.compare.runs.run_comparison import compare_runs
from roundoff.diagnose.against import findings_against
from roundoff.record import recording
from roundoff.runs import Finding, Run, Severity
from roundoff.watch.watching import watching


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What is different; the defaults are the reference."""

    norm_eps: float = 1e-5
    scale: float = 1.0
    weight_decay: float = 0.01
    gamma: float = 0.9
    clip: float | None = None
    smoothing: float = 0.0
    is_tied: bool = False
    narrow: bool = False
    squares: bool = False
    loss_scale: float | None = None
    eval_scale: float = 1.0
    has_eval_mode: bool = True
    evaluates: bool = True


class Recurrent(nn.Module):
    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self.choices = choices
        self.embed, self.rnn = nn.Embedding(12, 8), nn.GRU(8, 8, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8, eps=choices.norm_eps), nn.Linear(8, 12, bias=False)
        if choices.is_tied:
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.rnn(x.unsqueeze(-1) * self.embed.weight[0])
        narrow = torch.autocast("cpu", dtype=torch.bfloat16) if self.choices.narrow else nullcontext()
        with narrow:
            scores = h @ h.mT * self.choices.scale
            h = h + (scores.softmax(-1) @ h).float()
        if self.choices.squares:
            h = F.relu(h).square()
        return self.head(self.norm(h)).float()


def training(choices: Choices, *, num_steps: int = 2) -> Callable[[], None]:
    torch.manual_seed(0)
    model, criterion = Recurrent(choices), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=choices.weight_decay)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=choices.gamma)
    scale = choices.loss_scale or 1.0
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=choices.loss_scale is not None)
    x, y = torch.randn(num_steps + 1, 4, 6), torch.randint(0, 12, (num_steps, 4, 6))

    def train() -> None:
        for step in range(num_steps):
            model.train()
            logits = model(x[step]).flatten(0, 1)
            loss = criterion(logits, y[step].flatten())
            if choices.smoothing:
                even = -logits.log_softmax(-1).mean()
                loss = (1 - choices.smoothing) * loss + choices.smoothing * even
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if choices.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), choices.clip)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            if not choices.evaluates:
                continue
            if choices.has_eval_mode:
                model.eval()
            with torch.no_grad():
                model(x[-1] * choices.eval_scale)

    return train


def recorded(folder: Path, choices: Choices, *, has_inputs: bool = True) -> Run:
    train = training(choices)
    with recording(to=folder, inputs=has_inputs, stacks=True):
        train()
    return Run.open(folder)


def watched(folder: Path, choices: Choices) -> Run:
    train = training(choices)
    with watching(to=folder):
        train()
    return Run.open(folder)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return recorded(tmp_path_factory.mktemp("pairs") / "reference", Choices())


def only_finding(reference: Run, candidate: Run) -> Finding:
    (found,) = findings_against(compare_runs(reference, candidate))
    return found


def test_a_recording_says_what_was_trained_and_how(reference: Run):
    (structure,) = reference.structures()
    (optimizer,) = structure.optimizers
    assert (optimizer.name, optimizer.groups[0]["lr"], optimizer.has_state) == ("AdamW", 1e-2, False)
    norms = [module.settings["eps"] for module in structure.modules if module.kind == "LayerNorm"]
    assert norms == [1e-5]
    assert all(facts.is_reached for facts in structure.parameters)


def test_a_setting_of_a_module_explains_a_difference_of_two_recordings(reference: Run, tmp_path: Path):
    found = only_finding(reference, recorded(tmp_path / "run", Choices(norm_eps=1e-3)))
    assert (found.site, found.op, found.phase) == ("norm", "aten.native_layer_norm#0", "forward")
    assert "everything before it agrees within its format" in found.why
    assert "eps of LayerNorm (norm): 1e-05 against 0.001" in found.why


VERDICTS = {
    "weight decay": (Choices(weight_decay=0.1), "weight_decay of AdamW: 0.01 against 0.1: step 0, optimizer"),
    "schedule": (Choices(gamma=0.5), "learning rate from step 1 on: [0.009] against [0.005]: step 1, optimizer"),
    "clipping": (Choices(clip=0.1), "max_norm of clipping: none against 0.1: step 0, optimizer"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_hyperparameter_that_explains_an_update_is_the_verdict(reference: Run, tmp_path: Path, name: str):
    choices, verdict = VERDICTS[name]
    found = only_finding(reference, recorded(tmp_path / "run", choices))
    assert found.title == f"the runs differ in {verdict}"
    assert found.source is not None
    assert "test_pairs.py:" in found.source


def test_functional_code_of_a_model_is_named_by_its_line(reference: Run, tmp_path: Path):
    found = only_finding(reference, recorded(tmp_path / "run", Choices(scale=1.1)))
    assert (found.site, found.op, found.phase) == ("<model>", "aten.mul#1", "forward")
    assert found.source is not None
    assert "test_pairs.py:" in found.source


def test_what_a_loss_is_given_is_no_data_if_the_step_computed_it(reference: Run, tmp_path: Path):
    comparison = compare_runs(reference, recorded(tmp_path / "run", Choices(narrow=True)))
    assert comparison.divergence is None
    assert not [setting for setting in comparison.settings if "batch" in setting.what]


@pytest.mark.parametrize("has_inputs", [True, False])
def test_another_loss_is_never_blamed_on_the_backward_pass(tmp_path: Path, has_inputs: bool):
    plain = recorded(tmp_path / "plain", Choices(), has_inputs=has_inputs)
    found = only_finding(plain, recorded(tmp_path / "smooth", Choices(smoothing=0.1), has_inputs=has_inputs))
    assert (found.phase, found.site) == ("forward", "<loop>")
    assert "everything before it agrees" not in found.why  # the ops before it have no counterpart
    assert found.source is not None
    assert "test_pairs.py:" in found.source


@pytest.mark.parametrize("kind", ["classes", "positives"])
def test_another_weight_of_a_loss_function_is_not_called_other_data(tmp_path: Path, kind: str):
    def run(name: str, weight: float) -> Run:
        torch.manual_seed(0)
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, weights = torch.randn(16, 8), torch.tensor([1.0, weight, 1.0])
        with recording(to=tmp_path / name, inputs=True, stacks=True):
            for _ in range(2):
                optimizer.zero_grad()
                if kind == "classes":
                    F.cross_entropy(model(x), x[:, :3].argmax(1), weight=weights).backward()
                else:
                    F.binary_cross_entropy_with_logits(model(x), (x[:, :3] > 0).float(), pos_weight=weights).backward()
                optimizer.step()
        return Run.open(tmp_path / name)

    verdict = findings_against(compare_runs(run("reference", 1.0), run("candidate", 4.0)))[0]
    assert "different data" not in verdict.title
    assert "reads a different tensor from the reference" in verdict.title


def test_of_several_ops_that_only_one_run_has_the_first_is_named(reference: Run, tmp_path: Path):
    found = only_finding(reference, recorded(tmp_path / "run", Choices(squares=True)))
    assert (found.site, found.op) == ("<model>", "aten.relu#0")
    assert "nothing" not in found.why
    assert "everything before it agrees within its format" in found.why


def test_another_loss_scale_is_no_difference(tmp_path: Path):
    low, high = (recorded(tmp_path / f"{scale}", Choices(loss_scale=scale)) for scale in (256.0, 65536.0))
    assert compare_runs(low, high).divergence is None


def test_a_tied_weight_is_named_as_the_parameter_that_only_one_run_has(reference: Run, tmp_path: Path):
    found = only_finding(reference, recorded(tmp_path / "run", Choices(is_tied=True)))
    assert "parameters that only one run has: head.weight against none" in found.why


@pytest.mark.slow
def test_evaluations_of_watched_runs_are_compared(tmp_path: Path):
    plain = watched(tmp_path / "plain", Choices())
    found = only_finding(plain, watched(tmp_path / "scaled", Choices(eval_scale=2.0)))
    assert found.severity is Severity.WARNING
    assert found.title.startswith("the runs evaluate differently: what <model>[0] is given in the evaluation")
    found = only_finding(plain, watched(tmp_path / "mode", Choices(has_eval_mode=False)))
    assert found.title == "the runs evaluate differently: evaluation after step 0"
    assert "in eval mode against no eval(): in training mode, or not at all" in found.why


@pytest.mark.parametrize(
    ("choices", "said"), [(Choices(has_eval_mode=False), "without eval()"), (Choices(evaluates=False), "none")]
)
def test_a_run_that_never_evaluates_is_told_from_one_in_training_mode(
    reference: Run, tmp_path: Path, choices: Choices, said: str
):
    settings = compare_runs(reference, recorded(tmp_path / "run", choices)).settings
    modes = [(each.reference, each.candidate) for each in settings if each.what == "evaluation after step 0"]
    assert modes == [("in eval mode", said)]


def test_evaluations_of_recordings_are_compared_op_by_op(reference: Run, tmp_path: Path):
    found = only_finding(reference, recorded(tmp_path / "run", Choices(eval_scale=2.0)))
    assert (found.site, found.op) == ("<loop>", "aten.mul#0")

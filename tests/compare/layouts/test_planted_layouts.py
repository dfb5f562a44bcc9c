"""Bugs planted in small parallel trainings are named with their factor or group; correct layouts are silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.compare.layouts.layout_comparison import LayoutComparison, compare_layouts
from roundoff.compare.layouts.rank_mesh import RankMesh
from roundoff.diagnose.diagnosis import view_run
from roundoff.diagnose.layout_findings import findings_about_layouts
from roundoff.report.run_page.document import run_page
from roundoff.runs import Finding, Run, Severity
from roundoff.testing.assertions import RunsDiffer, assert_same_run
from tests.watch.script_server import ScriptServer

SCRIPTS = Path(__file__).parent / "scripts"
MESHES = {
    "tensor_parallel": "tp=2", "tensor_parallel_torch": "tp=2", "sequence_parallel": "tp=2", "data_parallel": "dp=2",
    "pipeline_parallel": "pp=2", "vocabulary_parallel": "tp=2", "context_parallel": "cp=2", "expert_parallel": "ep=2",
    "fully_sharded": "dp=2", "two_dimensional": "dp=2,tp=2",
}  # fmt: skip
SAME_ON_ONE_RANK = ("dropout", "clip")
"""Arguments that change the training on one rank too."""


class Recorder:
    """Records scripts, the one on one rank once for all of its variants."""

    def __init__(self, server: ScriptServer, folder: Path) -> None:
        self._server, self._folder = server, folder

    def compare(self, script: str, argument: str = "", *, level: str = "tensors") -> LayoutComparison:
        mesh = RankMesh.parse(MESHES[script])
        alone = next((word for word in SAME_ON_ONE_RANK if word in argument), "")
        number_format = "".join(argument.partition("+")[1:])
        reference = self.record(script, argument if alone else number_format, ranks=1, level=level)
        candidate = self.record(script, argument, ranks=mesh.num_ranks, level=level)
        return compare_layouts(reference, candidate, mesh=mesh)

    def record(self, script: str, *arguments: str, ranks: int = 1, level: str = "tensors") -> Run:
        name = f"{script}-{'-'.join(arguments)}-{ranks}-{level}"
        if not (self._folder / "runs" / name).exists():
            words = ["record", "--level", level, "--name", name, SCRIPTS / f"{script}.py", *arguments]
            ended = self._server.roundoff(words, folder=self._folder, ranks=ranks)
            assert ended.code == 0, ended.stderr
        return Run.open(self._folder / "runs" / name)


@pytest.fixture(scope="module")
def recorder(server: ScriptServer, tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    return Recorder(server, tmp_path_factory.mktemp("layouts"))


def found_in(comparison: LayoutComparison) -> Finding:
    findings = findings_about_layouts(comparison)
    assert len(findings) == 1, (findings, comparison.notes)
    return findings[0]


def test_a_gradient_that_tensor_parallelism_doubles_is_named_with_the_group_of_that_size(recorder: Recorder):
    finding = found_in(recorder.compare("tensor_parallel", "double"))
    assert (finding.rule, finding.step, finding.phase) == ("layout-gradient-scale", 0, "backward")
    assert finding.title == (
        "the gradients of 2.norm.weight, 2.norm.bias, 2.up.weight, 2.up.bias and 1 more are 2 times too large (2 = tp)"
    )
    assert finding.evidence[0]["equals"] == ["tp"]


def test_a_report_and_an_assertion_compare_layouts_as_compare_does(recorder: Recorder):
    one = recorder.record("tensor_parallel")
    bad = recorder.record("tensor_parallel", "double", ranks=2)
    view = view_run(bad, against=one)
    assert view.findings[0].rule == "layout-gradient-scale"
    html = run_page(view).html
    assert "What was put together" in html
    assert "1 rank in the reference, 2 ranks here" in html
    with pytest.raises(RunsDiffer, match="times too large"):
        assert_same_run(one, bad)
    good = recorder.record("tensor_parallel", ranks=2)
    assert not [finding for finding in view_run(good, against=one).findings if finding.severity is not Severity.NOTE]
    assert_same_run(one, good)


def test_gradients_that_copies_of_a_model_forget_to_average_are_named_with_their_group(recorder: Recorder):
    finding = found_in(recorder.compare("data_parallel", "not_averaged"))
    assert finding.title == "all gradients are 2 times too large (2 = dp)"


def test_a_correct_tensor_parallel_training_is_silent(recorder: Recorder):
    comparison = recorder.compare("tensor_parallel")
    assert comparison.faults == comparison.notes == ()
    assert comparison.num_equal == len(comparison.rows) == 48


PLANTED = [
    ("tensor_parallel", "no_sum_in_backward", "layout-missing-reduction", "not summed over tp", "2.norm.bias"),
    ("tensor_parallel", "no_sum_in_forward", "layout-missing-reduction", "1.down is not summed over tp", None),
    ("tensor_parallel", "bias_on_each_rank", "layout-difference", "1.down.bias is added 2 times", "1.down.bias"),
    ("tensor_parallel", "inputs_differ", "layout-inputs", "the inputs differ over tp", None),
    (
        "tensor_parallel",
        "dropout_differs",
        "layout-dropout",
        "different random numbers on ranks that hold the same",
        None,
    ),
    ("tensor_parallel", "dropout_same", "layout-dropout", "the same random numbers on ranks that hold different", None),
    ("tensor_parallel", "local_clip", "layout-gradient-scale", "scaled differently over tp: clipped by the norm", None),
    ("tensor_parallel_torch", "scaled_by_ranks", "layout-gradient-scale", "2 times too large (2 = tp)", None),
    ("sequence_parallel", "norm", "layout-missing-reduction", "not summed over tp", "block.norm.bias"),
    ("sequence_parallel", "bias", "layout-missing-reduction", "not summed over tp", "block.down.bias"),
    ("sequence_parallel", "not_divided", "layout-gradient-scale", "2 times too large (2 = tp)", None),
    ("data_parallel", "not_reduced", "layout-missing-reduction", "not averaged over dp", None),
    (
        "data_parallel",
        "head_not_reduced",
        "layout-missing-reduction",
        "3.weight, 3.bias are not averaged over dp",
        None,
    ),
    ("data_parallel", "micro_not_divided", "layout-gradient-scale", "3 times too large (3 = micro-batches)", None),
    ("data_parallel", "same_part", "layout-inputs", "50 % of the reference's batch went to no rank", None),
    (
        "pipeline_parallel",
        "tied",
        "layout-missing-reduction",
        "tied weight 0.weight are not summed over pp",
        "0.weight",
    ),
    ("pipeline_parallel", "micro_not_divided", "layout-gradient-scale", "4 times too large (4 = micro-batches)", None),
    ("pipeline_parallel", "boundary_doubled", "layout-gradient-scale", "1.0.bias are 2 times too large", "1.0.bias"),
    ("vocabulary_parallel", "gathered", "layout-gradient-scale", "2 times too large (2 = tp)", None),
    ("vocabulary_parallel", "local_softmax", "layout-difference", "whose vocabulary is divided over tp is wrong", None),
    ("context_parallel", "keys_not_summed", "layout-missing-reduction", "attention is not summed over cp", None),
    ("context_parallel", "mask_from_zero", "layout-difference", "the result of attention is the first", None),
    ("context_parallel", "not_reduced", "layout-missing-reduction", "not averaged over cp", None),
    ("expert_parallel", "router_not_reduced", "layout-missing-reduction", "not averaged over ep", "router.bias"),
    ("expert_parallel", "experts_not_divided", "layout-gradient-scale", "2 times too large (2 = ep)", None),
    ("fully_sharded", "loss_times_ranks", "layout-gradient-scale", "2 times too large (2 = dp)", None),
    ("fully_sharded", "divided_twice", "layout-gradient-scale", "2 times too small (2 = dp)", None),
    ("two_dimensional", "no_sum_over_tp", "layout-missing-reduction", "not summed over tp", "1.bias"),
    ("two_dimensional", "shards_not_reduced", "layout-missing-reduction", "not averaged over dp", "4.weight"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "bug", "rule", "words", "parameter"), PLANTED)
def test_a_planted_bug_is_named(
    recorder: Recorder, script: str, bug: str, rule: str, words: str, parameter: str | None
):
    finding = found_in(recorder.compare(script, bug))
    assert (finding.rule, words in finding.title) == (rule, True), finding.title
    assert parameter is None or finding.parameter == parameter


IN_BF16 = [
    ("tensor_parallel", "double", "layout-gradient-scale", "2 times too large (2 = tp)"),
    ("tensor_parallel", "no_sum_in_backward", "layout-missing-reduction", "not summed over tp"),
    ("sequence_parallel", "norm", "layout-missing-reduction", "not summed over tp"),
    ("data_parallel", "not_reduced", "layout-missing-reduction", "not averaged over dp"),
    ("data_parallel", "micro_not_divided", "layout-gradient-scale", "3 times too large (3 = micro-batches)"),
    ("pipeline_parallel", "tied", "layout-missing-reduction", "tied weight 0.weight are not summed over pp"),
    ("vocabulary_parallel", "gathered", "layout-gradient-scale", "2 times too large (2 = tp)"),
    ("context_parallel", "not_reduced", "layout-missing-reduction", "not averaged over cp"),
    ("expert_parallel", "experts_not_divided", "layout-gradient-scale", "2 times too large (2 = ep)"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "bug", "rule", "words"), IN_BF16)
def test_a_planted_bug_is_named_in_bf16(recorder: Recorder, script: str, bug: str, rule: str, words: str):
    finding = found_in(recorder.compare(script, f"{bug}+bf16"))
    assert (finding.rule, words in finding.title) == (rule, True), finding.title


@pytest.mark.slow
@pytest.mark.parametrize("script", dict.fromkeys(script for script, *_ in IN_BF16))
def test_a_correct_layout_is_silent_in_bf16(recorder: Recorder, script: str):
    comparison = recorder.compare(script, "+bf16")
    assert comparison.faults == ()
    assert comparison.is_answered


CORRECT = [
    ("tensor_parallel_torch", ""), ("tensor_parallel_torch", "sequence"), ("sequence_parallel", ""),
    ("data_parallel", ""), ("data_parallel", "micro"), ("data_parallel", "every_other_sample"),
    ("pipeline_parallel", ""), ("vocabulary_parallel", ""), ("context_parallel", ""), ("expert_parallel", ""),
    ("fully_sharded", ""), ("two_dimensional", ""),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("script", "variant"), CORRECT)
def test_a_correct_layout_is_silent(recorder: Recorder, script: str, variant: str):
    comparison = recorder.compare(script, variant)
    assert comparison.faults == comparison.notes == ()
    assert comparison.num_equal == len(comparison.rows) > 10


@pytest.mark.slow
def test_dropout_as_it_should_be_is_silent_and_what_it_hides_is_said(recorder: Recorder):
    comparison = recorder.compare("tensor_parallel", "dropout")
    assert comparison.faults == ()
    assert comparison.notes[0].startswith("1.inner draws other random numbers than in the reference")


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["double", "no_sum_in_backward", "inputs_differ"])
def test_summaries_are_enough_for_what_adds_up(recorder: Recorder, bug: str):
    finding = found_in(recorder.compare("tensor_parallel", bug, level="summary"))
    whole = found_in(recorder.compare("tensor_parallel", bug))
    assert (finding.rule, finding.title) == (whole.rule, whole.title)
    assert recorder.compare("tensor_parallel", level="summary").faults == ()


@pytest.mark.slow
def test_ranks_that_torch_simulates_in_one_process_are_compared_like_real_ones(recorder: Recorder):
    alone = recorder.record("simulated_ranks", "1")
    mesh = RankMesh.parse("tp=8")
    right = compare_layouts(alone, recorder.record("simulated_ranks", "8"), mesh=mesh)
    assert (right.faults, right.num_ranks, right.num_equal) == ((), (1, 8), len(right.rows))
    wrong = compare_layouts(alone, recorder.record("simulated_ranks", "8", "scaled"), mesh=mesh)
    assert found_in(wrong).title == "all gradients are 8 times too large (8 = tp)"

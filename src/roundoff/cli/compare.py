"""`roundoff compare`: where a candidate first differs from its reference."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import PATH, exit_zero_option, fills, json_option
from roundoff.cli.terminal import ExitCode, exit_code_of
from roundoff.console import Paint, columns
from roundoff.errors import CompareError, UsageError
from roundoff.files import write_output
from roundoff.progress import waiting
from roundoff.words import join_words

if TYPE_CHECKING:
    from roundoff.compare.curves.curve import LossCurve
    from roundoff.report.comparisons.comparison_report import ComparisonReport
    from roundoff.runs import Run

CURVE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".log", ".txt")
TENSOR_SUFFIXES = (".npy",)
CHECKPOINT_MARKERS = (".metadata", "model.safetensors.index.json", "pytorch_model.bin.index.json")


class ComparableKind(StrEnum):
    """The things that `roundoff compare` compares."""

    RUN = "run"
    STEP = "step"
    CHECKPOINT = "checkpoint"
    CURVE = "curve"
    TENSORS = "folder of tensors"
    LOGPROBS = "table of log-probabilities"
    RESUMPTION = "run of a resumed training"

    @property
    def plural(self) -> str:
        """Two of them."""
        first, *rest = self.split()
        return " ".join([f"{first}s", *rest])


_K = ComparableKind
_KINDS_WITH_OPTION = {
    "step": (_K.RUN,),
    "rank": (_K.RUN, _K.STEP, _K.RESUMPTION),
    "at": (_K.RESUMPTION,),
    "mesh": (_K.RUN,),
    "pattern": (_K.CURVE,),
    "column": (_K.CURVE,),
    "map": (_K.RUN, _K.CHECKPOINT, _K.TENSORS),
    "gate": (_K.RUN, _K.CURVE),
    "reference": (_K.RUN, _K.CURVE),
}
"""Options that not every kind has; all others work for every kind."""
_FIELDS = {"reference": "further"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """The options of `roundoff compare`."""

    reference: str
    candidate: str
    step: int | None
    rank: int | None
    map: Path | None
    pattern: str | None
    column: str | None
    logprobs: bool
    resume: bool
    at: int | None
    mesh: str | None
    gate: tuple[str, ...]
    further: tuple[str, ...]
    table: bool
    csv: Path | None
    html: Path | None
    as_json: bool
    exit_zero: bool

    def name_map(self) -> dict[str, str] | None:
        """Return the names of the two sides that `--map` pairs, or None without it."""
        from roundoff.checkpoints.pair.pairing import read_name_map

        return read_name_map(self.map) if self.map else None


_AT_HELP = "With --resume: the step of REF that CAND began with.  [default: found by their states]"
_MESH_HELP = "For runs with other layouts: the groups of CAND's ranks, as dp=2,tp=2, the last one of neighbours."
_GATE_HELP = "Exit with 1 only if a gap is larger: mean-loss=2%, matched-step=0.01, grad-norm=5%. Repeatable."


@click.command("compare", epilog="Example: roundoff compare runs/fp32 runs/bf16 --table")
@click.argument("reference", metavar="REF")
@click.argument("candidate", metavar="CAND")
@click.option("--step", type=click.IntRange(min=0), help="Compare only this step of two runs.")
@click.option("--rank", type=click.IntRange(min=0), help="Compare only this rank of two runs or steps.")
@click.option("--map", type=PATH, help="A file of lines 'name in REF = name in CAND'.")
@click.option("--pattern", help="For logs: a regular expression with groups (?P<step>...) and (?P<loss>...).")
@click.option("--column", help="For curves: the column, key or tag of the loss.  [default: found by its name]")
@click.option("--logprobs", is_flag=True, help="Both are tables of two engines' log-probabilities.")
@click.option("--resume", is_flag=True, help="CAND is a run that was resumed from a checkpoint of REF.")
@click.option("--at", type=click.IntRange(min=0), metavar="STEP", help=_AT_HELP)
@click.option("--mesh", metavar="NAME=SIZE,...", help=_MESH_HELP)
@click.option("--gate", multiple=True, metavar="NAME=LIMIT", help=_GATE_HELP)
@click.option(
    "--reference",
    "further",
    multiple=True,
    metavar="REF",
    help="With --gate: a further reference run, with another seed. Repeatable.",
)
@click.option("--table", is_flag=True, help="Also print a table of everything that was compared.")
@click.option("--csv", type=PATH, help="Write the table to a CSV file.")
@click.option("--html", type=PATH, help="Write an HTML page.")
@json_option("Print the comparison as JSON.")
@exit_zero_option
@fills(CompareOptions)
def compare_command(options: CompareOptions) -> None:
    """Find where CAND first differs from REF, and whether their formats explain it.

    Both are runs, steps of runs (RUN@3 is step 3), checkpoints of any framework, loss curves (CSV, JSONL, TensorBoard,
    logs), folders of tensors, or with --logprobs tables (Parquet, JSONL, npz) of a trainer and a rollout engine.
    With --resume, CAND was resumed from a checkpoint of REF: what was not restored.
    Runs with other layouts (tensor, pipeline, data parallel) are put together first; record them with --level tensors.
    Exits with 1 if they differ by more than their formats explain, with 2 if they could not be compared.
    """
    kind = _common_kind(options)
    _check_options(kind, options)
    with waiting("comparing"):
        comparison = (_compare_gates if options.gate else _COMPARE[kind])(options)
    _show(comparison, options)
    if not comparison.is_answered and not options.exit_zero:
        sys.exit(ExitCode.COULD_NOT_LOOK)
    sys.exit(exit_code_of(comparison.differs and not options.exit_zero))


def _show(comparison: ComparisonReport, options: CompareOptions) -> None:
    """Write the files that were requested, and print the answer."""
    if options.csv is not None:
        _write_csv(options.csv, comparison.csv_rows())
    if options.html is not None:
        _write_output(options.html, comparison.page())
    if options.as_json:
        echo_json("compare", comparison.to_object(), indent=1)
    else:
        text = comparison.text(table=options.table, width=columns(), paint=Paint.of(sys.stdout))
        click.echo(text, color=True)


def _compare_runs(options: CompareOptions) -> ComparisonReport:
    from roundoff.compare.runs.run_comparison import compare_runs
    from roundoff.diagnose.against import findings_against
    from roundoff.report.comparisons.compared_runs import ComparedRuns
    from roundoff.runs import Run

    reference, candidate = Run.open(options.reference), Run.open(options.candidate)
    if options.rank is None and _has_other_layout(reference, candidate, options):
        return report_on_layouts(reference, candidate, options.mesh, step=options.step, names=options.name_map())
    sites = options.name_map() or {}
    comparison = compare_runs(reference, candidate, step=options.step, rank=options.rank, sites=sites)
    return ComparedRuns(
        comparison=comparison,
        finding=next(iter(findings_against(comparison)), None),
        reference=options.reference,
        candidate=options.candidate,
    )


def _has_other_layout(reference: Run, candidate: Run, options: CompareOptions) -> bool:
    from roundoff.compare.layouts.layout_comparison import layouts_differ

    if options.mesh is not None:
        return True
    return bool(set(reference.steps) & set(candidate.steps)) and layouts_differ(reference, candidate)


def report_on_layouts(
    reference: Run, candidate: Run, mesh: str | None, *, step: int | None = None, names: dict[str, str] | None = None
) -> ComparisonReport:
    """Compare two runs whose ranks share the work differently."""
    from roundoff.compare.layouts.layout_comparison import compare_layouts
    from roundoff.compare.layouts.rank_mesh import RankMesh
    from roundoff.diagnose.layout_findings import findings_about_layouts
    from roundoff.report.comparisons.compared_layouts import ComparedLayouts

    parsed = None if mesh is None else RankMesh.parse(mesh)
    if parsed is not None and parsed.num_ranks != len(candidate.ranks):
        raise UsageError.explain(
            f"Invalid --mesh {mesh}: it has {parsed.num_ranks} ranks, and the candidate {len(candidate.ranks)}."
        )
    comparison = compare_layouts(reference, candidate, mesh=parsed, step=step, names=names)
    return ComparedLayouts(comparison=comparison, findings=findings_about_layouts(comparison))


def _compare_steps(options: CompareOptions) -> ComparisonReport:
    from roundoff.compare.runs.step_pair import compare_steps
    from roundoff.report.comparisons.compared_runs import ComparedSteps
    from roundoff.runs import Run

    (reference, reference_step), (candidate, candidate_step) = map(split_step, (options.reference, options.candidate))
    assert reference_step is not None
    assert candidate_step is not None
    rank = options.rank or 0
    return ComparedSteps(
        compare_steps(Run.open(reference), reference_step, Run.open(candidate), candidate_step, rank=rank)
    )


def _compare_checkpoints(options: CompareOptions) -> ComparisonReport:
    from roundoff.checkpoints.read.dispatch import read_checkpoint
    from roundoff.compare.checkpoints.checkpoint_comparison import compare_checkpoints
    from roundoff.report.comparisons.compared_checkpoints import ComparedCheckpoints

    with read_checkpoint(options.reference) as reference, read_checkpoint(options.candidate) as candidate:
        return ComparedCheckpoints(compare_checkpoints(reference, candidate, name_map=options.name_map()))


def _compare_curves(options: CompareOptions) -> ComparisonReport:
    from roundoff.compare.curves.curve_comparison import compare_curves
    from roundoff.compare.curves.curve_files import read_curve
    from roundoff.report.comparisons.compared_curves import ComparedCurves

    reference, candidate = (
        read_curve(name, pattern=options.pattern, column=options.column)
        for name in (options.reference, options.candidate)
    )
    return ComparedCurves(compare_curves(reference, candidate))


def _compare_tensors(options: CompareOptions) -> ComparisonReport:
    from roundoff.compare.tensors.tensor_comparison import compare_tensors
    from roundoff.report.comparisons.compared_tensors import ComparedTensors

    return ComparedTensors(compare_tensors(options.reference, options.candidate, name_map=options.name_map()))


def _compare_logprobs(options: CompareOptions) -> ComparisonReport:
    from roundoff.compare.logprobs.logprob_comparison import compare_logprobs
    from roundoff.compare.logprobs.logprob_files import read_logprobs
    from roundoff.diagnose.engines import finding_about_engines
    from roundoff.report.comparisons.compared_logprobs import ComparedLogprobs

    comparison = compare_logprobs(read_logprobs(options.reference), read_logprobs(options.candidate))
    return ComparedLogprobs(comparison=comparison, finding=finding_about_engines(comparison))


def _compare_resumption(options: CompareOptions) -> ComparisonReport:
    from roundoff.compare.resume.resume_comparison import compare_resumption
    from roundoff.diagnose.resumed import finding_about_resumption
    from roundoff.report.comparisons.compared_resumption import ComparedResumption
    from roundoff.runs import CachedRun

    reference, candidate = CachedRun.open(options.reference), CachedRun.open(options.candidate)
    comparison = compare_resumption(reference, candidate, at=options.at, rank=options.rank or 0)
    return ComparedResumption(comparison=comparison, finding=finding_about_resumption(comparison))


def _compare_gates(options: CompareOptions) -> ComparisonReport:
    from roundoff.compare.curves.gates import measure_gate, parse_gate
    from roundoff.report.comparisons.compared_gates import ComparedGates

    gates = [parse_gate(text) for text in options.gate]
    references = (options.reference, *options.further)
    results = []
    for gate in gates:
        *before, candidate = (_curve(name, gate.quantity, options) for name in (*references, options.candidate))
        results.append(measure_gate(gate, before, candidate))
    return ComparedGates(comparison=results, references=references, candidate=options.candidate)


def _curve(name: str, quantity: str, options: CompareOptions) -> LossCurve:
    """Return the losses or gradient norms of a run, or of a file."""
    from roundoff.compare.curves.curve_files import read_curve
    from roundoff.compare.curves.gates import curve_of_run
    from roundoff.runs import Run

    if comparable_kind(name) is _K.RUN:
        return curve_of_run(Run.open(name), quantity)
    column = options.column if quantity == "loss" else quantity
    return read_curve(name, pattern=options.pattern, column=column)


_COMPARE: dict[ComparableKind, Callable[[CompareOptions], ComparisonReport]] = {
    _K.RUN: _compare_runs,
    _K.STEP: _compare_steps,
    _K.CHECKPOINT: _compare_checkpoints,
    _K.CURVE: _compare_curves,
    _K.TENSORS: _compare_tensors,
    _K.LOGPROBS: _compare_logprobs,
    _K.RESUMPTION: _compare_resumption,
}


def split_step(text: str) -> tuple[str, int | None]:
    """Split `runs/a@3` into the folder and the step.

    >>> split_step("runs/a@3")
    ('runs/a', 3)
    >>> split_step("runs/me@home")
    ('runs/me@home', None)
    """
    path, at, step = text.rpartition("@")
    if at and step.isdecimal() and not Path(text).exists():
        return path, int(step)
    return text, None


def comparable_kind(text: str) -> ComparableKind:
    """Return what a text names.

    Raises:
        CompareError: nothing that can be compared.
    """
    name, step = split_step(text)
    path = Path(name)
    if not path.exists():
        raise CompareError.explain(f"There is no '{text}'.", fix="name a run, a checkpoint, a log or a folder.")
    if path.is_dir():
        kind = _folder_kind(path)
    elif path.suffix in CURVE_SUFFIXES or "tfevents" in path.name:
        kind = _K.CURVE
    else:
        kind = _K.TENSORS if path.suffix in TENSOR_SUFFIXES else _K.CHECKPOINT
    return _K.STEP if kind is _K.RUN and step is not None else kind


def _folder_kind(path: Path) -> ComparableKind:
    if (path / "run.json").exists():
        return _K.RUN
    if any((path / marker).exists() for marker in CHECKPOINT_MARKERS):
        return _K.CHECKPOINT
    return _K.CURVE if any("tfevents" in file.name for file in path.iterdir()) else _K.TENSORS


def _common_kind(options: CompareOptions) -> ComparableKind:
    """Return the kind of both sides, which must be the same."""
    if options.logprobs and options.resume:
        raise UsageError.explain("--logprobs and --resume compare different things.", fix="leave one of them out.")
    if options.logprobs:
        return _K.LOGPROBS
    if options.resume:
        return _resumed_kind(options)
    reference, candidate = comparable_kind(options.reference), comparable_kind(options.candidate)
    if reference is candidate:
        return reference
    is_step = {reference, candidate} == {_K.RUN, _K.STEP}
    raise CompareError.explain(
        f"A {reference} and a {candidate} cannot be compared.",
        why=f"'{options.reference}' is a {reference}, '{options.candidate}' is a {candidate}.",
        fix="name a step of both: roundoff compare RUN@3 RUN@4" if is_step else "name two of the same kind.",
    )


def _resumed_kind(options: CompareOptions) -> ComparableKind:
    """Check that both sides of `--resume` are runs."""
    for name in (options.reference, options.candidate):
        kind = comparable_kind(name)
        if kind is not _K.RUN:
            raise CompareError.explain(
                f"'{name}' is a {kind}, not a run.",
                why="--resume compares a run with the run that was resumed from its checkpoint.",
                fix="name two folders that `roundoff run` has made.",
            )
    return _K.RESUMPTION


def _check_options(kind: ComparableKind, options: CompareOptions) -> None:
    """Refuse an option that has no effect on this kind, instead of ignoring it."""
    if options.further and not options.gate:
        raise UsageError.explain("--reference needs a gate.", fix="add --gate mean-loss=2%, or leave --reference out.")
    if options.mesh is not None and options.rank is not None:
        raise UsageError.explain("--mesh and --rank cannot be combined.", why="a layout is compared over all ranks.")
    for name in ("mesh", "step", "rank", "map") if options.gate else ():
        if getattr(options, name) is not None:
            raise UsageError.explain(f"--{name} does not apply to --gate.", fix=f"leave --{name} out.")
    for name, kinds in _KINDS_WITH_OPTION.items():
        value = getattr(options, _FIELDS.get(name, name))
        if value not in (None, ()) and kind not in kinds:
            value = " ".join(value) if isinstance(value, tuple) else value
            raise UsageError.explain(
                f"--{name} {value} does not apply to two {kind.plural}.",
                why=f"it applies to {join_words([each.plural for each in kinds])}.",
                fix=f"leave --{name} out.",
            )


def _write_output(path: Path, text: str) -> None:
    try:
        write_output(path, text.encode())
    except OSError as error:
        raise CompareError.explain(f"'{path}' cannot be written.", why=f"{error.strerror}.") from error


def _write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    _write_output(path, text.getvalue())

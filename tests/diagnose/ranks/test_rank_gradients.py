"""Ranks that drift apart are reported with the reason: start values, no exchange, clipping, one gradient."""

from __future__ import annotations

from pathlib import Path

from roundoff.diagnose.ranks.drift import ranks_that_drift_apart
from roundoff.runs import Call, ClipDetail, ModuleFacts, ParameterFacts, Run, Structure
from tests.run_folders import hash_rows, losses, write_run

NAMES = ("body.weight", "head.weight")
Hash = tuple[int, str, str, int]


def structure(*, mean: float = 0.0, kind: str = "DistributedDataParallel") -> Structure:
    parameters = [
        ParameterFacts(name=name, site=name, shape=(2, 2), dtype="float32", requires_grad=True, mean=mean, std=1.0)
        for name in NAMES
    ]
    return Structure(
        step=0, parameters=tuple(parameters), modules=(ModuleFacts(site="<model>", kind=kind, training=True),)
    )


def step_of(rank: int, step: int, *, gradient: tuple[str, ...] = (), clipped: tuple[str, ...] = ()) -> list[Hash]:
    """Return the hashes of a step; those of the names given differ by rank, and the weights with them."""
    found: list[Hash] = []
    for number, name in enumerate(NAMES):
        found.append((step, "gradient", name, 100 * step + number + (50 + rank if name in gradient else 0)))
        found.append((step, "clipped", name, 100 * step + number + (60 + rank if name in clipped else 0)))
        found.append((step, "parameter", name, 100 * step + number + (70 + rank if clipped else 0)))
    return found


def write(folder: Path, *, kind: str = "DistributedDataParallel", means: tuple[float, float] = (0.0, 0.0),
          calls: tuple[list[Call], list[Call]] = ([], []), **apart: tuple[str, ...]) -> Run:  # fmt: skip
    """Write two ranks that agree in step 0 and are apart from step 1 on."""
    for rank in range(2):
        hashes = [*step_of(rank, 0), *step_of(rank, 1, **apart), *step_of(rank, 2, **apart)]
        run = write_run(
            folder,
            structure(mean=means[rank], kind=kind),
            hash_rows(hashes),
            calls[rank],
            losses(1.0),
            rank=rank,
            ranks=2,
        )
    return run


def test_ranks_that_agree_are_silent(tmp_path: Path) -> None:
    assert ranks_that_drift_apart(write(tmp_path / "run")) == []


def test_gradients_that_differ_when_they_are_used_are_not_reduced(tmp_path: Path) -> None:
    (finding,) = ranks_that_drift_apart(write(tmp_path / "run", gradient=NAMES, clipped=NAMES))
    assert (finding.rule, finding.step, finding.parameter) == ("gradients-not-reduced", 1, "body.weight")


def test_gradients_that_are_exchanged_after_backward_are_fine(tmp_path: Path) -> None:
    assert ranks_that_drift_apart(write(tmp_path / "run", gradient=NAMES)) == []


def test_different_start_values_are_an_init_mismatch(tmp_path: Path) -> None:
    (finding,) = ranks_that_drift_apart(write(tmp_path / "run", means=(0.0, 0.1), gradient=NAMES, clipped=NAMES))
    assert (finding.rule, finding.step) == ("rank-init-mismatch", 0)


def test_one_gradient_changed_on_one_rank_is_named_with_the_rank(tmp_path: Path) -> None:
    for rank in range(2):
        changed = [(1, "clipped", "head.weight", 7)] if rank else [(1, "clipped", "head.weight", 101)]
        rest = [hashed for hashed in step_of(rank, 1) if hashed[1:3] != ("clipped", "head.weight")]
        run = write_run(tmp_path / "run", structure(), hash_rows([*rest, *changed]), losses(1.0), rank=rank, ranks=2)
    (finding,) = ranks_that_drift_apart(run)
    assert (finding.rule, finding.step, finding.rank, finding.parameter) == (
        "rank-gradient-divergence", 1, 1, "head.weight",
    )  # fmt: skip


def test_clipping_on_one_rank_is_named(tmp_path: Path) -> None:
    clip = [Call(step=1, call="clip", detail=ClipDetail(max_norm=0.1))]
    (finding,) = ranks_that_drift_apart(write(tmp_path / "run", clipped=NAMES, calls=(clip, [])))
    assert (finding.rule, finding.step) == ("rank-clip-mismatch", 1)
    assert "rank 0: max_norm 0.1, rank 1: no clipping" in finding.why


def test_sharded_weights_may_differ(tmp_path: Path) -> None:
    run = write(tmp_path / "run", kind="FSDPLinear", means=(0.0, 0.1), gradient=NAMES, clipped=NAMES)
    assert ranks_that_drift_apart(run) == []


def test_weights_that_come_together_again_are_averaged_by_design(tmp_path: Path) -> None:
    for rank in range(2):
        hashes = [*step_of(rank, 0, gradient=NAMES, clipped=NAMES), *step_of(rank, 1)]
        run = write_run(tmp_path / "run", structure(), hash_rows(hashes), losses(1.0), rank=rank, ranks=2)
    assert ranks_that_drift_apart(run) == []

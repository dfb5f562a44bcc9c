"""A second engine of our own, with one thing wrong with it: the cause is named, and healthy pairs have none."""

from pathlib import Path

import pytest
import torch

from roundoff.compare.logprobs.explanation import Cause, CauseExplanation
from roundoff.compare.logprobs.logprob_comparison import LogprobComparison, compare_logprobs
from roundoff.compare.logprobs.logprob_files import read_logprobs
from roundoff.compare.logprobs.save_logprobs import save_logprobs
from tests.compare.logprobs.small_engines import EngineSettings, SmallModel, engine_weights, train_a_little, write_pair

BF16 = torch.bfloat16
KINDS = ("dense", "moe", "lora")


def compare(folder: Path, **settings) -> LogprobComparison:
    reference, candidate = write_pair(folder, **settings)
    return compare_logprobs(read_logprobs(reference), read_logprobs(candidate))


def explain(folder: Path, **settings) -> CauseExplanation:
    found = compare(folder, **settings).explanation
    assert found is not None
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("detail", ["logits", "top"])
def test_a_temperature_is_named_with_its_value(tmp_path: Path, kind: str, detail: str):
    found = explain(tmp_path, kind=kind, detail=detail, settings=EngineSettings(temperature=0.7))
    assert found.cause is Cause.TEMPERATURE
    assert found.numbers["temperature"] == pytest.approx(0.7, abs=0.005)
    assert found.after < 0.03 * found.before
    assert "0.7 applied to the" in found.proof[0]
    assert "the difference falls from 0." in found.proof[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_temperature_is_seen_in_the_chosen_tokens_alone(tmp_path: Path, kind: str):
    settings = EngineSettings(temperature=0.7, dtype=BF16 if kind != "moe" else torch.float32)
    found = explain(tmp_path, kind=kind, detail="", settings=settings)
    assert found.cause is Cause.TEMPERATURE
    assert found.numbers["temperature"] == pytest.approx(0.75, abs=0.1)
    assert found.numbers["side"] == "candidate"


@pytest.mark.parametrize(("kind", "detail"), [("dense", "logits"), ("moe", "top"), ("lora", "")])
def test_top_p_is_named(tmp_path: Path, kind: str, detail: str):
    found = explain(tmp_path, kind=kind, detail=detail, settings=EngineSettings(top_p=0.8))
    assert found.cause is Cause.TOP_P
    assert found.numbers["top_p"] == pytest.approx(0.8, abs=0.01)
    assert "only the candidate truncates" in found.title


@pytest.mark.parametrize(("kind", "detail"), [("dense", "logits"), ("moe", ""), ("lora", "top")])
def test_top_k_is_named(tmp_path: Path, kind: str, detail: str):
    found = explain(tmp_path, kind=kind, detail=detail, settings=EngineSettings(top_k=10))
    assert found.cause is Cause.TOP_K
    assert found.numbers.get("top_k", 10) == 10


@pytest.mark.parametrize(
    ("kind", "detail", "settings", "amount"),
    [
        ("dense", "logits", EngineSettings(repetition=1.2), 1.2),
        ("moe", "logits", EngineSettings(frequency=0.4), 0.4),
        ("lora", "top", EngineSettings(presence=0.5), 0.5),
        ("dense", "", EngineSettings(presence=0.8), None),
    ],
)
def test_a_penalty_is_named(tmp_path: Path, kind: str, detail: str, settings: EngineSettings, amount: float | None):
    found = explain(tmp_path, kind=kind, detail=detail, settings=settings)
    assert found.cause is Cause.PENALTY
    assert "only the candidate" in found.title
    if amount is not None:
        assert found.numbers["amount"] == pytest.approx(amount, abs=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_old_weights_are_named_with_their_age(tmp_path: Path, kind: str):
    torch.manual_seed(0)
    old = SmallModel(kind)
    settings = EngineSettings()
    found = explain(
        tmp_path, kind=kind, model=train_a_little(old), engine=engine_weights(old, settings),
        trainer_version=5, engine_version=3, detail="top",
    )  # fmt: skip
    assert found.cause is Cause.STALE_WEIGHTS
    assert found.numbers["versions"] == 2
    assert found.title == "the candidate used weights that are 2 versions older"


def test_old_weights_are_recognised_by_their_fingerprints(tmp_path: Path):
    torch.manual_seed(0)
    versions = [SmallModel("dense")]
    for seed in range(2):
        versions.append(train_a_little(versions[-1], seed=seed))
    settings = EngineSettings(dtype=BF16)
    reference, candidate = write_pair(
        tmp_path, model=versions[2], engine=engine_weights(versions[0], settings), settings=settings, detail="",
        trainer_version=5, has_weights=True,
    )  # fmt: skip
    for version, model in ((3, versions[0]), (4, versions[1])):
        save_logprobs(reference, [1], [-1.0], sample=100 + version, version=version, weights=model)
    found = compare_logprobs(read_logprobs(reference), read_logprobs(candidate)).explanation
    assert found.cause is Cause.STALE_WEIGHTS
    assert found.title == "the candidate has weights that are 2 versions older"
    assert "they are those of version 3, and the reference has version 5" in found.proof[0]


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_a_transposed_weight_is_named(tmp_path: Path, kind: str):
    torch.manual_seed(0)
    model, settings = SmallModel(kind), EngineSettings(dtype=BF16)
    engine = engine_weights(model, settings)
    engine.blocks[1].proj.weight.data = engine.blocks[1].proj.weight.data.T.contiguous()
    found = explain(tmp_path, kind=kind, model=model, engine=engine, settings=settings, has_weights=True, detail="top")
    assert found.cause is Cause.WRONG_WEIGHTS
    assert "blocks.1.proj.weight: it has the same norm: its elements are in another order" in found.proof[0]


def test_an_adapter_that_was_not_merged_is_named(tmp_path: Path):
    found = explain(tmp_path, kind="lora", settings=EngineSettings(dtype=BF16), merges=False, has_weights=True)
    assert found.cause is Cause.WRONG_WEIGHTS
    assert found.title == "the candidate lacks an adapter"
    assert found.proof[0].startswith("only the reference has blocks.0.qkv.lora_A.weight, blocks.0.qkv.lora_B.weight")


def test_wrong_weights_without_a_trace_in_the_tables_are_not_blamed_on_something_else(tmp_path: Path):
    torch.manual_seed(0)
    model, settings = SmallModel("dense"), EngineSettings(dtype=BF16)
    engine = engine_weights(model, settings)
    engine.blocks[1].proj.weight.data = engine.blocks[1].proj.weight.data.T.contiguous()
    for number, detail in enumerate(("logits", "top", "")):
        found = explain(tmp_path / str(number), model=model, engine=engine, settings=settings, detail=detail)
        assert found.cause is Cause.UNKNOWN
        assert found.fix.startswith("write weights, version")


@pytest.mark.parametrize("kind", KINDS)
def test_attention_to_padding_is_named(tmp_path: Path, kind: str):
    settings = EngineSettings(attends_padding=True, dtype=BF16 if kind == "lora" else torch.float32)
    found = explain(tmp_path, kind=kind, detail="top", settings=settings)
    assert found.cause is Cause.PADDING
    assert found.title == "the candidate's log-probabilities depend on padding"


@pytest.mark.parametrize("kind", KINDS)
def test_samples_that_mix_in_a_batch_are_named(tmp_path: Path, kind: str):
    found = explain(tmp_path, kind=kind, detail="", settings=EngineSettings(mixes_batch=True))
    assert found.cause is Cause.BATCH
    assert found.numbers["smallest_batch"] == 1


def test_router_flips_are_named_with_their_share(tmp_path: Path):
    found = explain(tmp_path, kind="moe", detail="top", settings=EngineSettings(dtype=BF16), num_samples=20)
    assert found.cause is Cause.ROUTER_FLIPS
    assert 0 < found.numbers["share_flipped"] < 0.2
    assert found.before > 2 * found.after


@pytest.mark.parametrize("kind", KINDS)
def test_a_narrow_head_is_named(tmp_path: Path, kind: str):
    found = explain(tmp_path, kind=kind, detail="top", settings=EngineSettings(head_dtype=BF16))
    assert found.cause is Cause.HEAD_DTYPE
    assert found.numbers["side"] == "candidate"


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_of_the_next_token_are_named(tmp_path: Path, kind: str):
    found = explain(tmp_path, kind=kind, detail="", settings=EngineSettings(shift=1))
    assert found.cause is Cause.OFF_BY_ONE
    assert found.after < 1e-4


def test_positions_counted_from_another_token_are_named(tmp_path: Path):
    tokens = torch.randint(0, 1000, (4, 50))
    logprobs = -torch.rand(4, 50)
    save_logprobs(tmp_path / "a.npz", tokens, logprobs, sample=list("abcd"))
    save_logprobs(tmp_path / "b.npz", tokens[:, 1:], logprobs[:, 1:], sample=list("abcd"))
    found = compare_logprobs(read_logprobs(tmp_path / "a.npz"), read_logprobs(tmp_path / "b.npz")).explanation
    assert found.cause is Cause.OFF_BY_ONE
    assert found.after == 0


@pytest.mark.parametrize("kind", KINDS)
def test_other_tokens_are_named(tmp_path: Path, kind: str):
    found = explain(tmp_path, kind=kind, detail="", settings=EngineSettings(retokenises=True))
    assert found.cause is Cause.TOKENISATION
    assert (found.numbers["first_sample"], found.numbers["first_position"]) == ("0", 10)


HEALTHY = [
    {
        "kind": kind,
        "trainer_dtype": trainer,
        "settings": EngineSettings(dtype=dtype),
        "num_new": length,
        "detail": detail,
    }
    for kind, trainer, dtype, length, detail in [
        ("dense", torch.float32, torch.float32, 16, "logits"),
        ("dense", torch.float32, torch.float16, 40, "top"),
        ("dense", torch.float32, BF16, 48, ""),
        ("dense", BF16, torch.float32, 24, "logits"),
        ("dense", BF16, BF16, 32, "top"),
        ("dense", BF16, torch.float16, 20, ""),
        ("moe", torch.float32, torch.float32, 40, "top"),
        ("moe", torch.float32, torch.float32, 24, ""),
        ("lora", torch.float32, BF16, 40, "logits"),
        ("lora", BF16, BF16, 28, "top"),
    ]
]
"""Formats, lengths and contents of the tables; experts in a narrow format flip, which is a cause."""


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("place", range(len(HEALTHY)))
def test_a_healthy_pair_has_no_finding(tmp_path: Path, place: int, seed: int):
    found = compare(tmp_path, seed=10 * place + seed, **HEALTHY[place])
    assert found.explanation is None
    assert found.statistics.rms < found.noise.limit
    assert found.statistics.ess > 0.95

import json

import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line
from roundoff.experiments import throughput
from roundoff.experiments.throughput import Launch, Speed
from roundoff.train import TrainConfig


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(command_line, ["throughput", *arguments])


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], float | None]:
    """Replaces the measurements: samples a second by recipe and threads; None is a failure."""
    table: dict[tuple[str, int], float | None] = {}

    def measured(common: TrainConfig, launch: Launch, *, seconds: float) -> Speed:
        rate = table[launch.recipe, launch.threads]
        if rate is None:
            return Speed(launch=launch, failure="killed by SIGKILL")
        return Speed(launch=launch, samples_per_second=rate, first_batch_seconds=0.25, cpu_share=1.0, steps=9)

    monkeypatch.setattr(throughput, "_measure_one", measured)
    return table


def test_prints_a_table_and_the_command_to_use(speeds: dict[tuple[str, int], float | None]):
    speeds |= {("fp32", 1): 100.0, ("fp32", 2): 150.4, ("amp-bf16", 1): None, ("amp-bf16", 2): 120.0}
    result = invoke("--batch-size", "32", "--recipes", "fp32,amp-bf16", "--workers", "0", "--threads", "1,2")
    assert result.stdout == (
        "recipe    ranks  threads  workers  samples/s  first batch  cores busy  note\n"
        "fp32          1        1        0        100        0.2 s         1.0\n"
        "fp32          1        2        0        150        0.2 s         1.0  fastest\n"
        "amp-bf16      1        1        0          -            -           -  failed: killed by SIGKILL\n"
        "amp-bf16      1        2        0        120        0.2 s         1.0\n"
        "\n"
        "use  roundoff train --batch-size 32 --threads 2\n"
    )
    assert result.stderr.splitlines()[1] == "[2/4] fp32, 1 rank, 2 threads, 0 workers: 150 samples/s"
    assert result.exit_code == 1


def test_json_holds_the_same(speeds: dict[tuple[str, int], float | None]):
    speeds |= {("O2", 1): 100.0}
    result = invoke("--recipes", "O2", "--workers", "0", "--threads", "1", "--json")
    answer = json.loads(result.stdout)
    assert answer["command"] == "roundoff train --recipe O2 --threads 1"
    assert answer["best"] == answer["speeds"][0]
    assert answer["best"]["launch"] == {"recipe": "O2", "workers": 0, "threads": 1, "procs": 1}
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--recipes", "fp32,O9"), "RecipeError: No recipe 'O9'."),
        (("--data", "folder:nowhere"), "DataError: There is no folder 'nowhere/train'."),
    ],
)
def test_what_every_training_would_fail_with_is_said_once(words: tuple[str, ...], message: str):
    result = invoke(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(message)


def test_when_everything_fails_it_says_why(speeds: dict[tuple[str, int], float | None]):
    speeds |= {("fp32", 1): None}
    result = invoke("--workers", "0", "--threads", "1")
    assert result.exit_code == 2
    assert "No combination could be measured.\n  why: the first one failed: killed by SIGKILL." in result.stderr


@pytest.mark.parametrize("wrong", [["--threads", "one"], ["--threads", ","], ["--threads", "0"], ["--procs", "0"]])
def test_lists_that_are_none_are_refused(wrong: list[str]):
    assert invoke(*wrong).exit_code == 2


def test_measures_digits_for_real_and_picks_the_fastest_of_the_measured():
    result = invoke(
        "--width", "4", "--workers", "0", "--threads", "1", "--recipes", "fp32,O2", "--seconds", "0.2", "--json"
    )
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    rates = {speed["launch"]["recipe"]: speed["samples_per_second"] for speed in answer["speeds"]}
    assert set(rates) == {"fp32", "O2"}
    assert answer["best"]["launch"]["recipe"] == max(rates, key=rates.__getitem__)

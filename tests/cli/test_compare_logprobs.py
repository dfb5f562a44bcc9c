"""`roundoff compare --logprobs` as a user types it: what is printed, written, and the way it ends."""

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line
from tests.compare.logprobs.small_engines import EngineSettings, write_pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tables")
    write_pair(made / "good", detail="", num_samples=6, num_new=20)
    write_pair(made / "hot", detail="top", settings=EngineSettings(temperature=0.7), num_samples=8, num_new=30)
    return made


def compare(folder: Path, *arguments: str) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = CliRunner().invoke(command_line, ["compare", "--logprobs", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_engines_that_agree_end_with_0_and_say_what_their_formats_explain(folder: Path):
    result = compare(folder / "good", "trainer.parquet", "rollout.jsonl")
    assert result.exit_code == 0
    first, *rest = result.output.splitlines()
    assert first.startswith("The engines agree within the noise of their formats: ")
    text = "\n".join(rest)
    assert "outside 0.8-1.2" in text
    assert "k1 " in text
    assert "k3 " in text
    assert "effective sample size 100 %" in text


def test_a_cause_ends_with_1_and_is_proven(folder: Path):
    result = compare(folder / "hot", "trainer.parquet", "rollout.jsonl")
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0] == "A temperature of 0.7 separates the candidate from the reference."
    assert lines[1].startswith("  with temperature 0.7 applied to the reference's logits the difference falls from 0.")
    assert "compute both from logits divided by the same temperature" in result.output
    assert all(len(line) <= 100 for line in lines)
    assert compare(folder / "hot", "trainer.parquet", "rollout.jsonl", "--exit-zero").exit_code == 0


def test_json_csv_table_and_page_tell_the_same(folder: Path, tmp_path: Path):
    names = ("trainer.parquet", "rollout.jsonl")
    value = json.loads(compare(folder / "hot", *names, "--json").output)
    assert value["cause"] == "temperature"
    assert value["finding"]["rule"] == "engines-disagree"
    assert value["finding"]["evidence"][0]["temperature"] == pytest.approx(0.7, abs=0.01)
    assert value["statistics"]["num_tokens"] == 240
    assert 0 < value["statistics"]["share_outside"] < 1
    files = ("--csv", str(tmp_path / "worst.csv"), "--html", str(tmp_path / "page.html"), "--table")
    text = compare(folder / "hot", *names, *files).output
    assert "difference" in text
    with (tmp_path / "worst.csv").open() as file:
        worst = list(csv.DictReader(file))
    assert len(worst) == 20
    assert worst[0]["sample"] == value["worst"][0]["sample"]
    page = (tmp_path / "page.html").read_text()
    assert "A temperature of 0.7 separates the candidate from the reference." in page
    assert "outside 0.8-1.2" in page


def test_what_cannot_be_compared_ends_with_2(folder: Path, tmp_path: Path):
    (tmp_path / "empty.jsonl").write_text("")
    result = compare(folder / "hot", "trainer.parquet", str(tmp_path / "empty.jsonl"))
    assert result.exit_code == 2
    assert "holds no token" in result.output
    assert compare(folder / "hot", "trainer.parquet", "rollout.jsonl", "--gate", "mean-loss=2%").exit_code == 2
    assert compare(folder / "hot", "trainer.parquet", "rollout.jsonl", "--step", "3").exit_code == 2

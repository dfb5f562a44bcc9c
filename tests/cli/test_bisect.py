import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line
from roundoff.cli.training_argument import training_named
from roundoff.experiments.trials.targets import TrainTarget
from roundoff.train.config import TrainConfig
from tests.run_folders import write_run

PLANTED = Path(__file__).parents[1] / "experiments" / "bisect" / "planted_overflow.py"
CHECK = 'case ",$ROUNDOFF_SITES," in *,c,*) exit 0;; *) exit 3;; esac'
TINY = ("--width", "4", "--limit", "64", "--batch-size", "32", "--steps", "3", "--threads", "1")
PLAIN = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("planted.py").write_text(PLANTED.read_text())
    Path("check.sh").write_text(CHECK)
    Path("plain.py").write_text(PLAIN)


def invoke(*arguments: str, jobs: int = 0) -> Result:
    result = CliRunner().invoke(command_line, ["bisect", "--jobs", f"{jobs}", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_a_script_that_overflows_at_one_site_is_answered_with_the_op_and_a_recipe_that_trains():
    result = invoke("planted.py", "4", "8")
    assert result.exit_code == 1
    first, *rest = result.stdout.splitlines()
    assert first == "4:mul must stay in fp32: good with it, bad without it."
    assert "  without    4:mul: loss nan at step 0" in rest
    assert "  recipe     runs/bisect-1/recipe.toml" in rest
    reported = result.stderr.splitlines()
    assert reported[:2] == [
        "[before] unchanged: loss nan at step 0",
        "[before] measured step 2 in fp32, to search the most suspicious sites first",
    ]
    assert reported[2].startswith("[before] all 8 sites wide: finite, loss ")
    assert reported[3].startswith("[before] recipe fp32: finite, loss ")
    assert reported[4].startswith("[1/6] 1 site wide: good, finite, loss ")
    assert "culprit 4" in reported[4]
    again = invoke("--bad", "runs/bisect-1/recipe.toml", "--seeds", "1", "planted.py", "4", "8")
    assert again.exit_code == 0
    assert again.stdout.startswith("Nothing to find: runs/bisect-1/recipe.toml is as good as fp32 here.")


def test_a_training_that_fails_in_fp32_too_gets_no_answer():
    text = PLANTED.read_text().replace("lr=1e-3", "lr=1e30 if 'fp32' in os.environ['ROUNDOFF_RECIPE'] else 1e-3")
    Path("hot.py").write_text(text.replace("import sys", "import os\nimport sys"))
    for judge in ("nonfinite", "auto", "loss"):
        result = invoke("--judge", judge, "--bad", "half", "hot.py", "4", "8")
        assert result.exit_code == 2
        assert "`hot.py 4 8` also fails in fp32." in result.stderr
        assert "fix: the format is not the cause" in result.stderr


def test_settings_of_train_are_searched_in_processes():
    Path("bad.toml").write_text('base = "bf16"\n[overrides]\n"stem.0" = "fp16"\n')
    result = invoke("--bad", "bad.toml", "--modules-only", "train", *TINY, "--input-gain", "1e6", jobs=1)
    assert result.exit_code == 1
    assert result.stdout.startswith("stem.0 must stay in fp32: good with it, bad without it.\n")
    assert "  next       roundoff train " in result.stdout


def test_any_command_is_searched_by_its_exit_status():
    result = invoke("--sites", "a,b,c,d", "--json", "sh", "check.sh")
    answer = json.loads(result.stdout)
    assert result.exit_code == 1
    assert answer["found"] == ["c"]
    assert answer["without"] == {"c": "exit 3"}
    assert answer["next_commands"] == ["ROUNDOFF_SITES=c sh check.sh"]
    Path("sites.txt").write_text("a\nb\nc\n")
    assert json.loads(invoke("--sites", "sites.txt", "--json", "sh", "check.sh").stdout)["found"] == ["c"]


def test_the_command_of_a_run_folder_is_taken():
    runner = CliRunner()
    runner.invoke(command_line, ["train", *TINY, "--recipe", "half", "--json"])
    result = invoke("--seeds", "1", "--bad", "half", "runs/train-1")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("Nothing to find: half is as good as fp32 here.")
    write_run(Path("runs/mine"), command=("python", "planted.py", "1", "4"))
    assert invoke("--modules-only", "runs/mine").stdout.startswith("1 must stay in fp32")
    write_run(Path("runs/other"), command=("pytest",))
    assert "does not say how it was started" in invoke("runs/other").stderr


def test_a_rule_of_the_diagnosis_can_judge():
    result = invoke("--judge", "rule:overflow", "--modules-only", "planted.py", "2", "4")
    assert result.exit_code == 1, result.stderr
    assert result.stdout.startswith("2 must stay in fp32")
    assert "judged by  rule:overflow: a finding of the rule overflow is bad" in result.stdout


def test_the_mirror_names_what_spoils_a_good_run():
    result = invoke("--mirror", "planted.py", "2,5", "8")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] in ("2 makes the training bad alone.", "5 makes the training bad alone.")


@pytest.mark.parametrize(
    ("arguments", "what", "fix"),
    [
        ((), "No training is given.", "for example: roundoff bisect"),
        (("--bad", "haf", "planted.py", "4", "8"), "No recipe 'haf'.", "did you mean 'half'?"),
        (("--good", "O1", "planted.py", "4", "8"), "Invalid --good O1.", "--good fp32"),
        (("nothing.py",), "There is no script 'nothing.py'.", "name a Python file"),
        (("no-such-thing",), "Cannot bisect 'no-such-thing'.", "for example"),
        (("sh", "check.sh"), "--sites is needed to bisect `sh check.sh`.", "--sites a,b,c"),
        (("--judge", "los", "planted.py", "4", "8"), "There is no judge 'los'.", "auto, nonfinite"),
        (("--judge", "rule:overflw", "planted.py", "4", "8"), "There is no rule 'overflw'.", "'rule:overflow'?"),
        (("--sites", "9", "planted.py", "4", "8"), "--sites 9 matches no site.", "the sites are 0, 1, "),
        (("plain.py",), "`plain.py` never calls apply_recipe.", "--switch substitute=fp64"),
        (("planted.py",), "`planted.py` fails on its own: exit code 1.", "check that it runs"),
        (("--sites", "a", "sh", "check.sh"), "fails with every site wide: exit code 3.", "check that it runs"),
        (("--switch", "substitute", "plain.py"), "--switch substitute needs a value", "--switch substitute=fp64"),
        (("--against", "runs/a", "plain.py"), "--against works only with --auto.", "add --auto"),
        (("--repeats", "2", "planted.py", "4", "8"), "Invalid --repeats 2.", "use 1, 3, 5"),
        (("--judge", "accuracy", "planted.py", "4", "8"), "cannot be judged by its accuracy", "another judge"),
    ],
)
def test_what_cannot_be_is_one_clear_error(arguments: tuple[str, ...], what: str, fix: str):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert what in result.stderr
    assert fix in result.stderr


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--switch", "bogus=1", "planted.py", "4", "8"), "No switch 'bogus'."),
        (("--switch", "randomness=abc", "planted.py", "4", "8"), "Invalid value 'abc' of the switch randomness."),
        (("--switch", "substitute=bogus", "planted.py", "4", "8"), "'bogus'"),
        (("--name", "../x", "planted.py", "4", "8"), "Invalid --name '../x'."),
        (("--sites", "a,a,b", "sh", "check.sh"), "--sites names a twice."),
        (("--repeats", "4", "planted.py", "4", "8"), "Invalid --repeats 4."),
        (("touch", "ran"), "--sites is needed to bisect `touch ran`."),
    ],
)
def test_wrong_input_is_an_error_before_anything_is_run(arguments: tuple[str, ...], what: str):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert what in result.stderr
    assert not Path("runs").exists()
    assert not Path("ran").exists()


def test_a_site_that_does_not_exist_is_an_error_after_one_step():
    Path("long.py").write_text(PLANTED.read_text() + "\n    open('whole', 'w').close()\n")
    result = invoke("--sites", "nosuch", "long.py", "4", "8", jobs=1)
    assert "--sites nosuch matches no site." in result.stderr
    assert "[before]" not in result.stderr
    assert not Path("whole").exists()


def test_an_error_of_the_training_is_quoted_with_its_log_once():
    Path("broken.py").write_text("import torch\nprint([1][3])\n")
    result = invoke("broken.py", jobs=1)
    assert "IndexError: list index out of range" in result.stderr
    assert result.stderr.count("log.txt") == 1
    assert "runs/bisect-1/trials/1/log.txt" in result.stderr


def test_an_option_that_train_does_not_have_points_to_its_help():
    assert "Try 'roundoff train --help' for help." in invoke("train", "--bogus").stderr


def test_a_training_is_called_by_the_words_that_were_given():
    words = ("train", "--data", "digits", "--steps", "3", "--recipe", "fp32")
    subject = training_named(words, command="bisect", is_module=False, with_rules=False, seed=0)
    assert subject.name == f"roundoff {' '.join(words)}"


def test_a_run_of_train_from_a_version_with_fewer_settings_is_known():
    settings = dict(TrainConfig(recipe="half", steps=3).to_object())
    del settings["wide"]
    write_run(Path("runs/older"), settings=settings)
    subject = training_named(("runs/older",), command="bisect", is_module=False, with_rules=False, seed=0)
    assert isinstance(subject, TrainTarget)
    assert subject.config == TrainConfig(recipe="half", steps=3)


def test_a_folder_of_another_training_is_refused():
    assert invoke("--name", "mine", "--sites", "a,c", "sh", "check.sh").exit_code == 1
    result = invoke("--name", "mine", "planted.py", "4", "8")
    assert result.exit_code == 2
    assert "'runs/mine' holds another bisection." in result.stderr

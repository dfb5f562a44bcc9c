"""The zoo runs any command on trainings, keeps what it says, and judges it by stated words or by findings."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from pathlib import Path

import pytest

from roundoff.diagnose.diagnosis import FAMILIES, codes_of, discover_rules
from tests.faults.zoo.__main__ import main
from tests.faults.zoo.catalogue import FOLDER, Expected, expectations, healthy_trainings
from tests.faults.zoo.running import Result, ZooError, check_command, choose, read_results, run_all
from tests.faults.zoo.scoring import Answer, causes, judge
from tests.faults.zoo.table import Row, families_of, table_of

KNOWN = causes()
FAMILY_OF = {code: cause.family for code, cause in KNOWN.items()}
ATTENTION = Expected(name="plant", rule="overflow", site="blocks.1.attn", op="aten.bmm#0", source="faults/plant.py:14")
HEALTHY = Expected(name="twin", healthy=True)


def said(output: str, *, code: int | None = 0, findings: list[dict[str, object]] | None = None) -> Result:
    return Result(name="plant", code=code, output=output, findings=findings)


def by_words(
    result: Result, *, entry: Expected = ATTENTION, bare: str | None = "", ignore: tuple[str, ...] = ()
) -> Answer:
    beside = None if bare is None else said(bare)
    return judge(entry, result, by="words", known=KNOWN, bare=beside, ignore=ignore)


@pytest.fixture
def plant(tmp_path: Path) -> Expected:
    (tmp_path / "plant.py").write_text("print('0 1.25')\n")
    return Expected(name="plant", rule="overflow", folder=tmp_path)


# The lists


def test_every_fault_has_words_and_the_family_of_its_rule() -> None:
    assert set(KNOWN) == {entry.rule for entry in expectations() if entry.rule}
    for title, package in FAMILIES.items():
        names = {code.name for code in codes_of(discover_rules([package]))}
        assert {code: KNOWN[code].family for code in KNOWN if code in names} == {
            code: title for code in KNOWN if code in names
        }


def test_a_sample_is_drawn_evenly_from_all_families_and_the_same_again() -> None:
    known = [*expectations(), *healthy_trainings()]
    chosen = choose(known, families=FAMILY_OF, sample=16, seed=3)
    assert chosen == choose(known, families=FAMILY_OF, sample=16, seed=3)
    assert chosen != choose(known, families=FAMILY_OF, sample=16, seed=4)
    assert set(Counter(FAMILY_OF[entry.rule] for entry in chosen if entry.rule).values()) == {2}
    assert sum(entry.healthy for entry in chosen) == 8


def test_a_word_that_no_name_has_is_refused() -> None:
    with pytest.raises(ZooError, match="No training has a name with 'nonesuch' in it"):
        choose(expectations(), families=FAMILY_OF, sample=None, seed=0, words=["nonesuch"])


# Running


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("python train.py", "has no {script}"),
        ("no-such-tool-here {script}", "There is no program 'no-such-tool-here'"),
        ("./not/here {script}", "There is no program './not/here'"),
    ],
)
def test_a_command_that_cannot_run_is_refused(command: str, why: str) -> None:
    with pytest.raises(ZooError, match=why):
        check_command(command)


def test_a_path_from_here_leads_to_the_same_file_from_other_folders() -> None:
    words = check_command("sh tests/faults/README.md {script} {options}")
    assert words == ["sh", str(Path("tests/faults/README.md").absolute()), "{script}", "{options}"]


def test_keeps_what_was_said_under_a_neutral_name(plant: Expected, tmp_path: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -S {{script}}"
    (result,) = run_all([plant], command=command, to=tmp_path / "out.jsonl", about={"name": "bare"})
    assert result == Result(name="plant", code=0, output="0 1.25\n")
    (result,) = run_all([plant], command="sh -c 'echo $0; exit 3' {script}", to=tmp_path / "two.jsonl", about={})
    assert (result.code, result.output) == (3, "train.py\n")


def test_a_run_goes_on_where_it_was_and_a_line_that_was_cut_off_is_done_again(plant: Expected, tmp_path: Path) -> None:
    to, command = tmp_path / "out.jsonl", f"sh -c 'echo x >> {tmp_path}/calls' {{script}}"
    list(run_all([plant], command=command, to=to, about={}))
    assert list(run_all([plant], command=command, to=to, about={})) == []
    assert (tmp_path / "calls").read_text() == "x\n"
    header = to.read_text().splitlines()[0]
    to.write_text(f'{header}\n{{"name": "pla')
    assert read_results(to).by_name == {}


def test_results_of_another_command_are_not_mixed_in(plant: Expected, tmp_path: Path) -> None:
    list(run_all([plant], command="true {script}", to=tmp_path / "out.jsonl", about={}))
    with pytest.raises(ZooError, match=r"results of another command: 'true \{script\}'"):
        list(run_all([plant], command="false {script}", to=tmp_path / "out.jsonl", about={}))


def test_a_command_that_hangs_is_ended_with_its_children(plant: Expected, tmp_path: Path) -> None:
    command = "sh -c 'echo started; sleep 60; echo ended' {script}"
    (result,) = run_all([plant], command=command, to=tmp_path / "out", about={}, timeout_seconds=1)
    assert (result.code, result.output) == (None, "started\n")


def test_every_rank_is_started_as_torchrun_does(plant: Expected, tmp_path: Path) -> None:
    ranks = Expected(name="plant", rule="overflow", folder=plant.folder, ranks=2)
    command = "sh -c 'echo $RANK of $WORLD_SIZE at $MASTER_ADDR' {script}"
    (result,) = run_all([ranks], command=command, to=tmp_path / "out", about={})
    assert result.output == "0 of 2 at localhost\n1 of 2 at localhost\n"


@pytest.mark.parametrize("content", ['[{"rule": "overflow"}]', '{"version": 2, "findings": [{"rule": "overflow"}]}'])
def test_findings_are_read_from_where_the_command_writes_them(content: str, plant: Expected, tmp_path: Path) -> None:
    command = f"sh -c {shlex.quote(f'mkdir -p a/b; echo {shlex.quote(content)} > a/b/found.json')} {{script}}"
    (result,) = run_all([plant], command=command, to=tmp_path / "out", about={}, findings="a/*/found.json")
    assert result.findings == [{"rule": "overflow"}]


def test_as_a_program_it_runs_and_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to, bare = tmp_path / "tool.jsonl", tmp_path / "bare.jsonl"
    words = ["overflow_attention", "cancellation_twin"]
    assert main(["run", "--command", "true {script}", "--name", "silent", "--to", str(bare), *words]) == 0
    tool = "sh -c 'echo inf output of blocks.1.attn' {script}"
    assert main(["run", "--command", tool, "--to", str(to), "--workers", "2", *words]) == 0
    assert main(["score", str(bare), str(to), "--bare", str(bare)]) == 0
    printed = capsys.readouterr().out
    assert "| silent | words | 0 of 1 | 0 of 1 | 0 of 1 | 0 of 1 |" in printed
    assert "| tool | words | 1 of 1 | 1 of 1 | 1 of 1 | 1 of 1 |" in printed


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["run", "--command", "true", "--to", "x"], "The command has no {script}"),
        (["run", "--command", "no-such-tool {script}", "--to", "x"], "There is no program 'no-such-tool'"),
        (["run", "--command", "true {script}", "--to", "x", "--ignore", "("], "is not a regular expression"),
        (["run", "--command", "true {script}", "--to", "x", "--timeout", "0"], "must be positive"),
        (["run", "--command", "true {script}", "--to", "x", "nonesuch"], "No training has a name"),
        (["score", "no-such-file.jsonl"], "no-such-file.jsonl"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_in_one_line(
    words: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert why in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "x").exists()


# Judging by words


@pytest.mark.parametrize(
    ("output", "noticed", "cause", "place"),
    [
        ("", False, False, False),
        ("0 1.5\n", False, False, False),
        ("something is odd\n", True, False, False),
        ("the result is TOO LARGE\n  for fp16\n", True, True, False),
        ("see blocks.1.attn\n", True, False, True),
        ("see blocks.1.attn2 and myblocks.1.attn\n", True, False, False),
        ('  File "train.py", line 14, in forward\n', True, False, True),
        ("train.py:141\n", True, False, False),
        ("Function 'BmmBackward0' returned inf values\n", True, True, True),
    ],
)
def test_words_are_judged(output: str, noticed: bool, cause: bool, place: bool) -> None:
    answer = by_words(said(output), bare="0 1.25\n")
    assert (answer.said, answer.cause, answer.place) == (noticed, cause, place)


def test_a_place_that_is_not_given_or_only_a_number_does_not_count() -> None:
    assert by_words(said("0"), entry=Expected(name="plant", rule="overflow", site="0")).place is None
    assert by_words(said(""), entry=Expected(name="plant", rule="overflow", site="<loop>")).place is None


def test_without_a_bare_run_only_complaints_count_as_said() -> None:
    assert not by_words(said("epoch 3: 0.25, information follows\n"), bare=None).said
    assert by_words(said("epoch 3: nan\n"), bare=None).said
    assert by_words(said("train.py:3: UserWarning: careful\n"), bare=None).said


def test_an_exit_code_or_a_signal_is_something_said_and_a_timeout_is_not() -> None:
    assert by_words(said("", code=1)).said
    assert not by_words(said("", code=None)).said
    killed = by_words(said("", code=-9), entry=Expected(name="plant", rule="killed"))
    assert (killed.said, killed.cause) == (True, True)


def test_lines_to_ignore_and_numbers_that_differ_blame_no_one() -> None:
    assert not by_words(
        said("loss 0.2 in 3e-5 s\n[INFO] ready\n"), entry=HEALTHY, bare="loss 0.1 in 9 s\n", ignore=("INFO",)
    ).said
    assert by_words(said("[INFO] ready\n"), entry=HEALTHY).said


def test_marks_around_words_make_no_difference() -> None:
    warning = "Detected call of `lr_scheduler.step()` before `optimizer.step()`"
    assert by_words(said(warning), entry=Expected(name="plant", rule="scheduler-before-step")).cause


# Judging by findings


@pytest.mark.parametrize(
    ("findings", "noticed", "cause", "place"),
    [
        (None, False, False, False),
        ([], False, False, False),
        ([{"rule": "lr-too-high"}, {"rule": "overflow"}], True, False, False),
        ([{"rule": "overflow", "site": "blocks.1.attn"}], True, True, False),
        (
            [{"rule": "overflow", "site": "blocks.1.attn", "op": "aten.bmm#0", "source": "zoo-x/train.py:14"}],
            True,
            True,
            True,
        ),
    ],
)
def test_findings_are_held_to_the_rule_and_the_whole_place(
    findings: list[dict[str, object]] | None, noticed: bool, cause: bool, place: bool
) -> None:
    answer = judge(ATTENTION, said("", findings=findings), by="findings", known=KNOWN)
    assert (answer.said, answer.cause, answer.place) == (noticed, cause, place)


def test_notes_blame_no_healthy_training_and_warnings_do() -> None:
    note, warning = {"rule": "frozen", "severity": "note"}, {"rule": "frozen", "severity": "warning"}
    assert not judge(HEALTHY, said("", findings=[note]), by="findings", known=KNOWN).said
    assert judge(HEALTHY, said("", findings=[note, warning]), by="findings", known=KNOWN).said


def test_a_finding_without_a_rule_is_refused() -> None:
    with pytest.raises(ZooError, match="A finding has no 'rule'"):
        judge(ATTENTION, said("", findings=[{"code": 3}]), by="findings", known=KNOWN)


def test_the_tables_count_each_family_and_leave_out_unknown_places() -> None:
    answers = (
        Answer(name="a", family="The loss", said=True, cause=True),
        Answer(name="b", family="The loss", said=False, place=False),
        Answer(name="c", family="", said=True),
    )
    row = Row(tool="mine", by="words", answers=answers)
    assert table_of([row]).splitlines()[-1] == "| mine | words | 1 of 2 | 1 of 2 | 0 of 1 | 1 of 1 |"
    header, _, line = families_of([row]).splitlines()
    assert line.split("|")[header.split("|").index(" The loss ")] == " 1 of 2 "


# Adapters


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        ("detect_anomaly", "'SqrtBackward0' returned nan"),
        ("underflow_overflow", "inf/nan detected"),
        ("debug_mode", "aten::sqrt"),
    ],
)
def test_an_adapter_says_what_its_tool_says_and_nothing_of_a_healthy_training(
    adapter: str, words: str, tmp_path: Path
) -> None:
    chosen = [entry for entry in expectations() if entry.name in ("domain_error_where", "dead_units_twin")]
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(FOLDER / 'zoo' / 'adapters' / adapter))}.py {{script}}"
    about = {"name": adapter}
    results = {result.name: result for result in run_all(chosen, command=command, to=tmp_path / "out", about=about)}
    assert words in results["domain_error_where"].output
    twin = judge(HEALTHY, results["dead_units_twin"], by="words", known=KNOWN, ignore=("Anomaly Detection",))
    assert not twin.said, results["dead_units_twin"].output


def test_a_results_file_holds_what_is_needed_to_judge_it_again(plant: Expected, tmp_path: Path) -> None:
    to = tmp_path / "out.jsonl"
    list(run_all([plant], command="true {script}", to=to, about={"name": "mine", "ignore": ["x"]}))
    header, line = map(json.loads, to.read_text().splitlines())
    assert header == {"command": "true {script}", "name": "mine", "ignore": ["x"]}
    assert line == {"name": "plant", "code": 0, "output": "", "findings": None}

"""A bisection from its target to its answer; with --auto, standard checks decide what to search."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from roundoff.compare.settings.setting_comparison import differing_settings
from roundoff.compare.settings.setting_difference import SettingDifference, SettingKind
from roundoff.errors import BisectError, RoundoffError
from roundoff.experiments.bisect.bisect_answer import BisectAnswer, bisect_text, start_answer
from roundoff.experiments.bisect.bisect_options import BisectEvent, BisectOptions, OnEvent, make_change
from roundoff.experiments.bisect.candidates import calls_apply_recipe, check_command, check_sites, find_candidates
from roundoff.experiments.bisect.search import BisectSearch
from roundoff.experiments.engine.scheduler import connected_to
from roundoff.experiments.experiment_folder import ExperimentFolder
from roundoff.experiments.trials import judges
from roundoff.experiments.trials.runner import TrialRunner
from roundoff.experiments.trials.targets import CommandTarget, ScriptTarget, TrainTarget
from roundoff.experiments.trials.trial import RUN_NAME, TrialResult, TrialSetting, TrialTarget, result_of_run
from roundoff.files import write_atomically
from roundoff.precision import Recipe, find_recipe
from roundoff.precision.recipe.toml import to_toml
from roundoff.runs import JsonValue, Run, to_json

_ALIGNED_FIRST = (SettingKind.LOSS, SettingKind.HYPERPARAMETER, SettingKind.MODEL, SettingKind.DATA)
"""A difference in one of these explains more than any format could."""
_MAX_SHOWN = 3


class Stages:
    """Runs one check after another; each reports what it showed, and together they decide what to search."""

    def __init__(self, trials: TrialRunner, options: BisectOptions, *, on_event: OnEvent) -> None:
        self.findings: list[str] = []
        """What each stage showed, and why the next one follows."""
        self.substitute: str | None = None
        """The implementation to search with; None searches formats."""
        self._trials, self._options, self._on_event = trials, options, on_event
        self._recipe = make_change(options).bad
        self._bad = self._run("unchanged")
        self.judge = self._judge()

    def answer(self) -> BisectAnswer | None:
        """Return the answer if a stage found it; None if a search is needed.

        Raises:
            BisectError: no check makes the training good.
        """
        verdict = self.judge(self._bad)
        if not verdict.is_bad:
            judges.check_noise(self.judge, verdict)
            return self._make_answer()
        if different := self._differing_settings():
            return self._make_answer(
                found=tuple(each.what for each in different),
                verdict="The two trainings have different settings; make them equal first, then try again.",
            )
        widest_helps = self._helps(
            "widest formats", {"widest": "fp32"}, yes="formats are involved", no="formats alone are not the cause"
        )
        for name, switch in (("randomness", "fixed random numbers"), ("adaptive", "frozen scales")):
            if self._helps(switch, {name: "0"}, yes="that is the cause", no="that is not the cause"):
                return self._cured_by(name, switch)
        if widest_helps and calls_apply_recipe(self._bad):
            self._report("next: search formats, site by site")
            return None
        if self._helps("every op in fp64", {"substitute": "fp64"}, yes="an op is the cause", no="no op is the cause"):
            self._report("next: search ops, each in fp64")
            self.substitute = "fp64"
            return None
        if widest_helps:
            raise BisectError.explain(
                f"Wider formats make `{self._trials.target.name}` good, but its sites cannot be searched.",
                why="it never calls apply_recipe, and only through it can single sites take another format.",
                fix="replace its own formats by `model, optimizer = roundoff.apply_recipe(model, optimizer, 'half')`, "
                "and try again.",
            )
        raise BisectError.explain(
            f"No check makes `{self._trials.target.name}` good.",
            why="\n       ".join(self.findings),
            fix="diagnose it with roundoff run, or compare it with a good run: --against RUN",
        )

    def _judge(self) -> judges.Judge:
        requested, against = self._options.judge, self._options.against
        if requested == "auto" and against is not None:
            reference = result_of_run(against, exit_code=0, with_rules=False)
            failing = next(
                (each for each in (judges.ExitJudge(), judges.NonFiniteJudge()) if each(self._bad).is_bad), None
            )
            return failing or judges.loss_judge([reference])
        seeds = judges.trial_seeds(self._options.seeds)

        def references() -> list[TrialResult]:
            results = self._trials.run_all([self._setting({"widest": "fp32"}, seed=seed) for seed in seeds])
            for seed, result in zip(seeds, results, strict=True):
                what = f"widest formats{'' if seed is None else f', seed {seed}'}"
                self._on_event(BisectEvent(what=what, verdict=judges.NonFiniteJudge()(result).text))
            return results

        judge = judges.choose_judge(requested, bad=self._bad, good=self._bad, references=references)
        if isinstance(judge, judges.LossJudge) and not judge(self._bad).is_bad:
            return self._against_fp64(judge)
        return judge

    def _against_fp64(self, judge: judges.LossJudge) -> judges.LossJudge:
        """Return a judge for a training that is as bad in its widest formats: a wrong op makes both bad."""
        loss = judges.final_loss(self._run("every op in fp64", {"substitute": "fp64"}))
        if loss is None or not math.isfinite(loss):
            return judge
        return judges.LossJudge(reference=replace(judge.reference, mean=loss))

    def _differing_settings(self) -> list[SettingDifference]:
        """Return the differences in settings that matter most, if there is a run to compare with."""
        against, run = self._options.against, self._bad.folder and self._bad.folder / RUN_NAME
        if against is None or run is None or not (run / "run.json").exists():
            self._report(
                "configuration and data: not compared, because there is no good run to compare with (--against)"
            )
            return []
        different = differing_settings(Run.open(against), Run.open(run))
        first = [each for each in different if each.kind in _ALIGNED_FIRST]
        shown = "; ".join(each.text for each in first[:_MAX_SHOWN]) or f"the same as those of {against}"
        self._report(f"configuration and data: {shown}")
        return first

    def _helps(self, what: str, switches: dict[str, str], *, yes: str, no: str) -> bool:
        """Run the training with a switch on everywhere, and report what that shows."""
        verdict = self.judge(self._run(what, switches))
        showed = f"still bad ({verdict.text}), {no}" if verdict.is_bad else f"good ({verdict.text}), {yes}"
        self._report(f"{what}: {showed}")
        return not verdict.is_bad

    def _cured_by(self, name: str, switch: str) -> BisectAnswer:
        with_it = self.judge(self._trials(self._setting({name: "0"}))).text
        return self._make_answer(
            found=(name,),
            verdict=f"{switch[0].upper()}{switch[1:]} make the training good: `{name}` makes the difference.",
            with_them=with_it,
            next_commands=(f'ROUNDOFF_SWITCHES=\'{{"{name}": "0"}}\' roundoff run {self._trials.target.name}',),
        )

    def _make_answer(self, **found: Any) -> BisectAnswer:
        return start_answer(
            self._trials,
            self._options,
            self.judge,
            fmt="",
            as_it_is=self.judge(self._bad).text,
            num_other_runs=self._trials.num_requested,
            seconds=self._trials.seconds,
            **found,
        )

    def _run(self, what: str, switches: dict[str, str] | None = None) -> TrialResult:
        result = self._trials(self._setting(switches or {}))
        if switches is None:
            self._on_event(BisectEvent(what=what, verdict=judges.NonFiniteJudge()(result).text))
        return result

    def _report(self, text: str) -> None:
        self.findings.append(text)
        self._on_event(BisectEvent(what=text, verdict=""))

    def _setting(self, switches: dict[str, str], *, seed: int | None = None) -> TrialSetting:
        return TrialSetting(recipe=self._recipe, switches={**self._options.switches, **switches}, seed=seed)


class BisectFolder(ExperimentFolder):
    """The folder of a bisection."""

    kind: ClassVar[str] = "bisect"
    noun: ClassVar[str] = "bisection"
    error: ClassVar[type[RoundoffError]] = BisectError
    differences_in_words: ClassVar[Mapping[str, str]] = {
        "fingerprint": "before the script or its settings changed",
        "good": "with another --good",
        "bad": "with another --bad",
        "substitute": "with another --switch substitute",
        "switches": "with another --switch",
        "auto": "with --auto in only one of them",
        "with_findings": "with another kind of --judge",
    }


def bisect_training(
    target: TrialTarget, options: BisectOptions, *, on_event: OnEvent = lambda event: None
) -> BisectAnswer:
    """Find a smallest set of sites of a training that must be wide, prove it, and write a recipe that keeps them wide.

    Everything is stored in a folder, `bisect-1`, ..., in which an interrupted search resumes. With `options.auto`
    standard checks run first, and decide what to search.

    Raises:
        BisectError: there is nothing to search, or the training is bad in any case.
        TrialError: a trial failed.
    """
    change = make_change(options)  # invalid recipes are reported before anything runs
    check_command(target, options)
    folder = BisectFolder.open(_search_identity(target, options), base=options.runs, name=options.name)
    with connected_to(options.on):
        trials = TrialRunner(target, folder, jobs=options.jobs, on=options.on)
        check_sites(trials, change, options)
        if options.auto:
            answer = _run_stages(trials, options, on_event=on_event)
        else:
            answer = _run_search(trials, options, on_event=on_event)
    if answer.is_minimal:  # otherwise a larger budget could still improve it
        write_atomically(folder.answer, f"{to_json(answer.to_object(), indent=1)}\n".encode())
    return answer


def _run_search(
    trials: TrialRunner, options: BisectOptions, *, on_event: OnEvent, judge: judges.Judge | None = None
) -> BisectAnswer:
    """Search as the options say."""
    change = make_change(options)
    search = BisectSearch(trials, change, options, on_event=on_event)
    candidates, recipe = find_candidates(trials, search.run_unchanged(), change, options, on_event=on_event)
    answer = replace(search.find(candidates, judge=judge), seconds=trials.seconds)
    if recipe is not None and options.bad is None:
        answer = replace(answer, bad=recipe.name)
    if not answer.found or options.mirror:
        return answer
    if recipe is not None:
        answer = _write_recipe(recipe, answer, trials.folder.path / "recipe.toml")
    return replace(answer, next_commands=_next_commands(trials.target, answer, options))


def _run_stages(trials: TrialRunner, options: BisectOptions, *, on_event: OnEvent) -> BisectAnswer:
    """Run the stages of `--auto`, then the search that they ask for, if any."""
    stages = Stages(trials, options, on_event=on_event)
    answer = stages.answer()
    if answer is None:
        searched = replace(options, auto=False, against=None, substitute=stages.substitute)
        answer = _run_search(trials, searched, on_event=on_event, judge=stages.judge)
    return replace(answer, stages=tuple(stages.findings))


def _search_identity(target: TrialTarget, options: BisectOptions) -> Mapping[str, JsonValue]:
    """Return what must be equal for a search to resume; other options may change."""
    bad = None if options.bad is None else to_toml(find_recipe(options.bad))
    return {
        "subject": target.name,
        "fingerprint": target.fingerprint,
        "good": options.good,
        "bad": bad,
        "substitute": options.substitute,
        "switches": dict(options.switches),
        "auto": options.auto,
        "with_findings": options.with_rules,
    }


def _write_recipe(recipe: Recipe, answer: BisectAnswer, file: Path) -> BisectAnswer:
    """Write the bad recipe with the overrides that make it good, and the answer as comments; return the answer."""
    overrides = {**recipe.overrides, **dict.fromkeys(answer.found, answer.fmt)}
    saved = replace(recipe, name=f"{recipe.name}-bisected", description="", overrides=overrides)
    comments = "".join(f"# {line}\n" for line in bisect_text(answer).splitlines())
    write_atomically(file, f"{comments}{to_toml(saved)}".encode())
    return replace(answer, recipe_file=file)


def _next_commands(target: TrialTarget, answer: BisectAnswer, options: BisectOptions) -> tuple[str, ...]:
    if options.substitute is not None:
        switches = {**options.switches, "substitute": options.substitute, "substitute.ops": ",".join(answer.found)}
        words = target.name if isinstance(target, TrainTarget | CommandTarget) else f"roundoff run {target.name}"
        return (f"ROUNDOFF_SWITCHES={shlex.quote(json.dumps(switches))} {words}",)
    if isinstance(target, TrainTarget):
        config = replace(target.config, recipe=str(answer.recipe_file), loss_scale="recipe")
        return (TrainTarget(config=config).name,)
    if isinstance(target, ScriptTarget):
        command = shlex.join(target.script.command)
        return (
            f'apply_recipe(model, optimizer, "{answer.recipe_file}")',
            f"ROUNDOFF_RECIPE={answer.recipe_file} {command}",
        )
    assert isinstance(target, CommandTarget)
    return (f"ROUNDOFF_SITES={','.join(answer.found)} {target.name}",)

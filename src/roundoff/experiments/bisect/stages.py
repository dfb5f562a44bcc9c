"""The order that experienced people use: configuration and data, widest formats, randomness, scales, then halves."""

from __future__ import annotations

import math
from dataclasses import replace

from roundoff.compare.settings.setting_comparison import differing_settings
from roundoff.compare.settings.setting_difference import SettingDifference, SettingKind
from roundoff.errors import BisectError
from roundoff.experiments.bisect.answer import BisectAnswer
from roundoff.experiments.bisect.candidates import calls_apply_recipe, make_change
from roundoff.experiments.bisect.judged_trials import trial_seeds
from roundoff.experiments.bisect.options import BisectEvent, BisectOptions, OnEvent
from roundoff.experiments.trials.judges import (
    ExitJudge,
    Judge,
    LossJudge,
    NonFiniteJudge,
    check_noise,
    choose_judge,
    final_loss,
    loss_judge,
)
from roundoff.experiments.trials.runner import TrialRunner
from roundoff.experiments.trials.trial import TrialResult, TrialSetting
from roundoff.experiments.trials.watched_trial import RUN_NAME, result_of_run
from roundoff.runs import Run

_ALIGNED_FIRST = (SettingKind.LOSS, SettingKind.HYPERPARAMETER, SettingKind.MODEL, SettingKind.DATA)
"""What is told differently here explains more than any format could."""
_MAX_SHOWN = 3


class Stages:
    """Tries one thing after another; what each showed is told, and decides what is searched for."""

    def __init__(self, trials: TrialRunner, options: BisectOptions, *, on_event: OnEvent) -> None:
        self.told: list[str] = []
        """What each stage showed, and why the next follows."""
        self.substitute: str | None = None
        """The implementation to search with; None: search by formats."""
        self._trials, self._options, self._on_event = trials, options, on_event
        self._recipe = make_change(options).bad
        self._bad = self._tried("as it is")
        self.judge = self._judge()

    def answer(self) -> BisectAnswer | None:
        """Return the answer if a stage gives it; None if a search has to.

        Raises:
            BisectError: nothing that was tried makes the training good.
        """
        verdict = self.judge(self._bad)
        if not verdict.is_bad:
            check_noise(self.judge, verdict)
            return self._plain(found=(), as_it_is=verdict.text)
        if different := self._not_aligned():
            return self._plain(
                found=tuple(each.what for each in different),
                verdict="The two trainings were not told the same; align them first, then look again.",
                as_it_is=verdict.text,
            )
        widest_helps = self._helps(
            "widest formats", {"widest": "fp32"}, yes="it has to do with formats", no="formats alone are not it"
        )
        for name, switch in (("randomness", "fixed random numbers"), ("adaptive", "frozen scales")):
            if self._helps(switch, {name: "0"}, yes="that is it", no="it is something else"):
                return self._cured_by(name, switch)
        if widest_helps and calls_apply_recipe(self._bad):
            self._tell("so formats are searched, site by site")
            return None
        if self._helps("every op in fp64", {"substitute": "fp64"}, yes="an op is to blame", no="no op is to blame"):
            self._tell("so ops are searched, each by fp64")
            self.substitute = "fp64"
            return None
        if widest_helps:
            raise BisectError.explain(
                f"Wider formats make `{self._trials.subject.name}` good, but it cannot be searched where.",
                why="formats of single sites reach a training through apply_recipe, which it never calls.",
                fix="add `model, optimizer = roundoff.apply_recipe(model, optimizer, 'half')` in place of its own "
                "formats, and look again.",
            )
        raise BisectError.explain(
            f"Nothing that was tried makes `{self._trials.subject.name}` good.",
            why="\n       ".join(self.told),
            fix="look at what it computes: roundoff run; with a run that is good: --against RUN",
        )

    def _judge(self) -> Judge:
        asked, against = self._options.judge, self._options.against
        if asked == "auto" and against is not None:
            reference = result_of_run(against, exit_code=0, with_rules=False)
            failing = next((each for each in (ExitJudge(), NonFiniteJudge()) if each(self._bad).is_bad), None)
            return failing or loss_judge([reference])
        seeds = trial_seeds(self._options.seeds)

        def references() -> list[TrialResult]:
            results = self._trials.all([self._setting({"widest": "fp32"}, seed=seed) for seed in seeds])
            for seed, result in zip(seeds, results, strict=True):
                what = f"widest formats{'' if seed is None else f', seed {seed}'}"
                self._on_event(BisectEvent(what=what, verdict=NonFiniteJudge()(result).text))
            return results

        judge = choose_judge(asked, bad=self._bad, good=self._bad, references=references)
        if isinstance(judge, LossJudge) and not judge(self._bad).is_bad:
            return self._against_fp64(judge)
        return judge

    def _against_fp64(self, judge: LossJudge) -> LossJudge:
        """Return a judge for a training that is no worse than its widest: an op that is wrong spoils both."""
        loss = final_loss(self._tried("every op in fp64", {"substitute": "fp64"}))
        if loss is None or not math.isfinite(loss):
            return judge
        return LossJudge(reference=replace(judge.reference, mean=loss))

    def _not_aligned(self) -> list[SettingDifference]:
        """Return what the two trainings were told differently, if there is another to compare with."""
        against, run = self._options.against, self._bad.folder and self._bad.folder / RUN_NAME
        if against is None or run is None or not (run / "run.json").exists():
            self._tell("configuration and data: the same in every run, there is nothing to compare them with")
            return []
        different = differing_settings(Run.open(against), Run.open(run))
        first = [each for each in different if each.kind in _ALIGNED_FIRST]
        shown = "; ".join(each.text for each in first[:_MAX_SHOWN]) or f"the same as those of {against}"
        self._tell(f"configuration and data: {shown}")
        return first

    def _helps(self, what: str, switches: dict[str, str], *, yes: str, no: str) -> bool:
        """Try the training with something switched for all of it, and tell what that shows."""
        verdict = self.judge(self._tried(what, switches))
        showed = f"still bad ({verdict.text}), {no}" if verdict.is_bad else f"good ({verdict.text}), {yes}"
        self._tell(f"{what}: {showed}")
        return not verdict.is_bad

    def _cured_by(self, name: str, switch: str) -> BisectAnswer:
        with_it = self.judge(self._trials(self._setting({name: "0"}))).text
        return self._plain(
            found=(name,),
            verdict=f"{switch[0].upper()}{switch[1:]} make the training good: the switch `{name}` is the difference.",
            as_it_is=self.judge(self._bad).text,
            with_them=with_it,
            next_commands=(f'ROUNDOFF_SWITCHES=\'{{"{name}": "0"}}\' roundoff run {self._trials.subject.name}',),
        )

    def _plain(self, *, found: tuple[str, ...], **more: object) -> BisectAnswer:
        return BisectAnswer(
            subject=self._trials.subject.name,
            good=self._options.good,
            bad=self._options.bad or "the training as it is",
            fmt="",
            judge=f"{self.judge.name}: {self.judge.text}",
            found=found,
            num_other_runs=self._trials.num_asked,
            seconds=self._trials.seconds,
            folder=self._trials.folder.path,
            **more,  # type: ignore[arg-type]
        )

    def _tried(self, what: str, switches: dict[str, str] | None = None) -> TrialResult:
        result = self._trials(self._setting(switches or {}))
        if switches is None:
            self._on_event(BisectEvent(what=what, verdict=NonFiniteJudge()(result).text))
        return result

    def _tell(self, text: str) -> None:
        self.told.append(text)
        self._on_event(BisectEvent(what=text, verdict=""))

    def _setting(self, switches: dict[str, str], *, seed: int | None = None) -> TrialSetting:
        return TrialSetting(recipe=self._recipe, switches={**self._options.switches, **switches}, seed=seed)

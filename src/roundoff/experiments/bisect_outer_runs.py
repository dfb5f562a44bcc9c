"""The runs beside a search: the training as it is, with every site changed, and the reference under several seeds."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.errors import BisectError
from roundoff.experiments.bisect_changes import Change
from roundoff.experiments.bisect_options import BisectEvent, BisectOptions, OnEvent
from roundoff.experiments.judged_trials import other_seeds
from roundoff.experiments.judges import ExitJudge, Judge, NonFiniteJudge, final_loss
from roundoff.experiments.trial import Setting, TrialResult
from roundoff.experiments.trials import Trials, log_of


class OuterRuns:
    """Makes these runs, each once, tells of each, and raises where there is no search to be made."""

    def __init__(self, trials: Trials, change: Change, options: BisectOptions, *, on_event: OnEvent) -> None:
        self.notes: list[str] = []
        """What a reader of the answer has to know about them."""
        self._trials, self._change, self._options, self._on_event = trials, change, options, on_event

    def as_it_is(self) -> TrialResult:
        """Return what the training comes to if nothing is changed."""
        return self._tried("as it is", self._change.setting(()))

    def all_changed(self, sites: Sequence[str]) -> TrialResult:
        """Return what the training comes to if every site is changed."""
        return self._tried(f"all {len(sites)} sites {self._change.noun}", self._change.setting(sites))

    def references(self) -> list[TrialResult]:
        """Train the reference under several seeds.

        Raises:
            BisectError: it fails itself.
        """
        name, seeds = self._change.reference_name, other_seeds(self._options.seeds)
        settings = [self._change.reference(seed=seed) for seed in seeds]
        are_new = [not self._trials.was_asked(setting) for setting in settings]
        results = self._trials.all(settings)
        for seed, setting, is_new in zip(seeds, settings, are_new, strict=True):
            if is_new:
                self._tell(f"{name}{'' if seed is None else f', seed {seed}'}", setting)
        for result in results:
            self._check_reference(result)
        note = "the noise of the reference is not known (its runs are all alike): 1 % is allowed."
        if len({each.losses for each in results}) == 1 and note not in self.notes:
            self.notes.append(note)
        return results

    def check_reference(self) -> None:
        """Train the reference once; raise if it fails itself: then no format is to blame."""
        self._check_reference(self._tried(self._change.reference_name, self._change.reference()))

    def check_good(self, judge: Judge, good: TrialResult) -> None:
        """Raise if changing every site does not help, and say what is known of why."""
        subject, name = self._trials.subject.name, self._change.reference_name
        verdict = judge(good)
        if not verdict.is_bad:
            return
        if good.exit_code:
            raise BisectError.explain(
                f"`{subject}` fails with every site {self._change.noun}: exit code {good.exit_code}.",
                why=f"a search needs a run that is good{log_of(good.folder)}",
                fix="see that it runs by itself.",
            )
        reference = judge(self._tried(name, self._change.reference()))
        words = subject.removeprefix("roundoff ")
        raise BisectError.explain(
            f"`{subject}` is bad even with every site {self._change.noun}: {verdict.text}.",
            why=f"with {name} it is bad, too: {reference.text}."
            if reference.is_bad
            else f"with {name} it is good ({reference.text}).\n"
            "       What spoils it is not in the sites that were searched, but in the loss scale, in the format\n"
            "       of the model's inputs, in how weights are updated, or elsewhere.",
            fix="look for what else is wrong: roundoff run, roundoff diagnose"
            if reference.is_bad
            else f"let a recipe be planned, with a loss scale where it takes one: roundoff plan {words}",
        )

    def _check_reference(self, result: TrialResult) -> None:
        verdict = NonFiniteJudge()(result)
        if verdict.is_bad and final_loss(result) is not None:
            good = self._change.good_name
            raise BisectError.explain(
                f"`{self._trials.subject.name}` fails in {good}, too.",
                why=f"with {self._change.reference_name}: {verdict.text}{log_of(result.folder)}",
                fix=f"find out why first, it is not the format: roundoff run with {self._change.reference_name}",
            )

    def _tried(self, what: str, setting: Setting) -> TrialResult:
        is_first_time = not self._trials.was_asked(setting)
        result = self._trials(setting)
        if is_first_time:
            self._tell(what, setting)
        return result

    def _tell(self, what: str, setting: Setting) -> None:
        kept = self._trials.kept(setting)
        has_losses = bool(kept.result.losses) or kept.result.eval_loss is not None
        judge = NonFiniteJudge() if has_losses else ExitJudge()
        self._on_event(BisectEvent(what=what, verdict=judge(kept.result).text, is_new=kept.is_new))

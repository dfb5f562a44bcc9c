"""One bisection of a training: its outer runs, the judge, the modules, the ops inside them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from roundoff.errors import BisectError
from roundoff.experiments.bisect_changes import Change
from roundoff.experiments.bisect_judging import judge_for
from roundoff.experiments.bisect_options import BisectEvent, BisectOptions, OnEvent
from roundoff.experiments.bisection import Smallest
from roundoff.experiments.candidates import Candidates
from roundoff.experiments.judged_trials import JudgedTrials, other_seeds
from roundoff.experiments.judges import ExitJudge, Judge, NonFiniteJudge
from roundoff.experiments.smallest import smallest_bad, smallest_wide
from roundoff.experiments.trial import Setting, TrialResult
from roundoff.experiments.trials import Trials, log_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search came to."""

    judge: Judge
    sites: tuple[str, ...] = ()
    """A smallest set; empty if the bad run is not bad."""
    modules: tuple[str, ...] = ()
    """The modules it was narrowed down from."""
    is_minimal: bool = True
    stopped_by: str | None = None
    with_them: str = ""
    """The verdict on the run with the set."""
    without: dict[str, str] = field(default_factory=dict)
    """The verdicts on the runs with all of the set but one."""
    as_it_is: str = ""
    """The verdict on the run as it is."""
    notes: tuple[str, ...] = ()
    num_runs: int = 0
    num_other_runs: int = 0


class BisectSearch:
    """Searches for the sites to change. Made once per bisection: it knows how much time there is."""

    def __init__(self, trials: Trials, change: Change, options: BisectOptions, *, on_event: OnEvent) -> None:
        self._trials, self._change, self._options, self._on_event = trials, change, options, on_event
        self._began = time.monotonic()
        self._notes: list[str] = []

    def try_as_it_is(self) -> TrialResult:
        """Return what the training comes to if nothing is changed."""
        return self._before("as it is", self._change.setting(()))

    def find(self, candidates: Candidates, *, judge: Judge | None = None) -> Found:
        """Return a smallest set of sites that must be changed, and its proof; judged as the options say, or by `judge`.

        Raises:
            BisectError: the training is bad even with all of them changed, or fails by itself.
        """
        sites = candidates.modules
        if not sites:
            raise BisectError.explain("There is nothing to bisect.", why="no site is left to search among.")
        bad = self.try_as_it_is()
        good = self._before(f"all {len(sites)} sites {self._change.noun}", self._change.setting(sites))
        judge = judge or judge_for(self._options.judge, bad=bad, good=good, references=self._references)
        if not judge(bad).is_bad:
            return Found(
                judge=judge,
                as_it_is=judge(bad).text,
                notes=tuple(self._notes),
                num_other_runs=self._trials.num_asked,
            )
        self._check_good(judge, good)
        judged = JudgedTrials(
            self._trials,
            self._change,
            judge,
            bad_fails=bad.exit_code != 0,
            max_runs=self._options.max_runs,
            on_event=self._on_event,
        )
        return self._searched(candidates, judge, judged, as_it_is=judge(bad).text)

    def _searched(self, candidates: Candidates, judge: Judge, judged: JudgedTrials, *, as_it_is: str) -> Found:
        num_before = self._trials.num_asked
        modules = self._smallest(candidates.modules, judged)
        inner = self._inside(candidates, modules, judged)
        found = modules if inner is None else inner
        num_runs = judged.num_runs
        kept = frozenset(candidates.modules) - frozenset(found.sites) if self._options.mirror else found.sites
        return Found(
            judge=judge,
            sites=found.sites,
            modules=modules.sites,
            is_minimal=found.is_minimal,
            stopped_by=_option(found),
            with_them=judged.verdict(kept).text,
            without=self._proof(found, judged) if found.is_minimal and not self._options.mirror else {},
            as_it_is=as_it_is,
            notes=tuple(self._notes),
            num_runs=num_runs,
            num_other_runs=num_before,
        )

    def _proof(self, found: Smallest, judged: JudgedTrials) -> dict[str, str]:
        """Return the verdicts on the runs that show each site to be needed; the search has made them."""
        without = {site: tuple(each for each in found.sites if each != site) for site in found.sites}
        return {site: judged.verdict(others).text for site, others in without.items()}

    def _smallest(self, sites: Sequence[str], judged: JudgedTrials) -> Smallest:
        options = self._options
        outer_runs = 2 * options.repeats
        max_runs = None if options.max_runs is None else max(1, options.max_runs - judged.num_runs) + outer_runs
        seconds = None if options.max_seconds is None else options.max_seconds - (time.monotonic() - self._began)
        judged.search_among(sites)
        search = smallest_bad if options.mirror else smallest_wide
        return search(
            sites,
            judged.is_bad_without if options.mirror else judged.is_good_with,
            repeats=options.repeats,
            max_runs=max_runs,
            deadline_seconds=None if seconds is None else max(1.0, seconds),
            on_progress=judged.tell,
        )

    def _inside(self, candidates: Candidates, modules: Smallest, judged: JudgedTrials) -> Smallest | None:
        """Return the ops inside the modules that suffice, or None if whole modules are the answer."""
        ops = candidates.inside(modules.sites)
        if self._options.modules_only or self._options.mirror or len(ops) < 2 or not modules.is_minimal:
            return None
        if judged.verdict(ops).is_bad:
            self._notes.append(f"whole modules: with only their {len(ops)} ops {self._change.noun} it is bad.")
            return None
        inner = self._smallest(ops, judged)
        return inner if len(inner.sites) < len(ops) else None

    def _check_good(self, judge: Judge, good: TrialResult) -> None:
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
        reference = judge(self._before(name, self._change.reference()))
        raise BisectError.explain(
            f"`{subject}` is bad even with every site {self._change.noun}: {verdict.text}.",
            why=f"with {name} it is bad, too: {reference.text}."
            if reference.is_bad
            else f"with {name} it is good ({reference.text}): what spoils it is not in the sites that were searched, "
            "but in the format of the model's inputs, in the loss scale, in how weights are updated, or elsewhere.",
            fix="look for what else is wrong: roundoff run, roundoff bisect --auto",
        )

    def _references(self) -> list[TrialResult]:
        """Train the reference under several seeds."""
        name, seeds = self._change.reference_name, other_seeds(self._options.seeds)
        settings = [self._change.reference(seed=seed) for seed in seeds]
        is_told = self._trials.was_asked(settings[-1])
        results = self._trials.all(settings)
        if is_told:
            return results
        for seed, setting in zip(seeds, settings, strict=True):
            self._tell(f"{name}{'' if seed is None else f', seed {seed}'}", setting)
        if len({each.losses for each in results}) == 1:
            self._notes.append("the noise of the reference is not known (its runs are all alike): 1 % is allowed.")
        return results

    def _before(self, what: str, setting: Setting) -> TrialResult:
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


def _option(found: Smallest) -> str | None:
    """Return the option that ended a search early."""
    return {"max_runs": "--max-runs", "deadline_seconds": "--max-minutes", None: None}[found.stopped_by]

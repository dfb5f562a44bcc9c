"""The answer of a bisection, as a value and as text: what must be wide, the proof, and the recipe to use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from roundoff.experiments.bisect.bisect_options import BisectOptions
from roundoff.experiments.trials.judges import Judge
from roundoff.experiments.trials.runner import TrialRunner
from roundoff.report.parts import Facts, Part, Sentence, to_text
from roundoff.runs import JsonValue
from roundoff.words import join_words, plural

_LABEL_WIDTH = 11
_MAX_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectAnswer:
    """The result of a bisection."""

    subject: str
    """The training, as a user would type it."""
    good: str
    bad: str
    """The names of the two recipes, or implementations."""
    fmt: str
    """The format that the culprits must take."""
    judge: str
    """The judge, with its numbers."""
    is_mirror: bool = False
    """Whether the sites make a good run bad, instead of a bad run good."""
    is_substituted: bool = False
    """Whether ops were searched by another implementation, not by formats."""
    num_sites: int = 0
    """How many sites were searched."""
    is_measured: bool = False
    """Whether their order comes from a measured step."""
    found: tuple[str, ...] = ()
    """A smallest set of sites or ops; empty if there was nothing to find."""
    modules: tuple[str, ...] = ()
    """The modules that contain them."""
    is_minimal: bool = True
    stopped_by: str | None = None
    """The option that ended the search early."""
    with_them: str = ""
    """The verdict on the run with the set changed."""
    without: Mapping[str, str] = field(default_factory=dict)
    """By site, the verdict on the run with all of the set changed except that site."""
    as_it_is: str = ""
    """The verdict on the unchanged run."""
    still_above: str = ""
    """The set makes the losses finite but not good: the verdict on them."""
    notes: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    """What each stage of `--auto` showed, and why the next one followed."""
    num_runs: int = 0
    """Runs of the search."""
    num_other_runs: int = 0
    """Runs besides the search: unchanged, with every site changed, and of the reference."""
    seconds: float = 0.0
    """The time of all these runs, whenever they were made."""
    verdict: str = ""
    """The first line, if something else than a set of sites was found."""
    folder: Path | None = None
    recipe_file: Path | None = None
    next_commands: tuple[str, ...] = ()

    def to_object(self) -> dict[str, JsonValue]:
        """Return everything as JSON values."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def start_answer(trials: TrialRunner, options: BisectOptions, judge: Judge, **found: Any) -> BisectAnswer:
    """Return an answer with what follows from the options, and the fields in `found`."""
    return BisectAnswer(
        subject=trials.target.name,
        good=options.substitute or options.good,
        bad=options.bad or "the unchanged training",
        judge=f"{judge.name}: {judge.text}",
        is_mirror=options.mirror,
        is_substituted=options.substitute is not None,
        folder=trials.folder.path,
        **found,
    )


def bisect_text(answer: BisectAnswer) -> str:
    """Lay out the answer of a bisection, the verdict first."""
    return to_text(answer_parts(answer))


def answer_parts(answer: BisectAnswer) -> list[Part]:
    """Return the verdict, its proof, and what to do next."""
    facts, to_copy = [*_proof_facts(answer), *_search_facts(answer)], _use_facts(answer)
    return [
        Sentence(_verdict(answer)),
        Facts(_label_once(facts), label_width=_LABEL_WIDTH),
        Facts(_label_once(to_copy), label_width=_LABEL_WIDTH, overflow="keep"),
    ]


def _verdict(answer: BisectAnswer) -> str:
    if answer.verdict:
        return answer.verdict
    if not answer.found:
        return f"Nothing to find: {answer.bad} is as good as {answer.good} here."
    sites, one = join_words(answer.found, at_most=_MAX_SHOWN), len(answer.found) == 1
    if answer.is_mirror:
        proof = "alone" if one else "together, but not if any one of them is left out"
        verdict = f"{sites} {'makes' if one else 'make'} the training bad {proof}"
    elif answer.is_substituted:
        proof = "unchanged" if one else "with any one of them unchanged"
        by = f"good with {'it' if one else 'them'} computed by {answer.good}"
        verdict = f"{sites} {'is' if one else 'are'} the cause: {by}, bad {proof}"
    else:
        proof = "without it" if one else "without any one of them"
        verdict = f"{sites} must stay in {answer.fmt}: good with {'it' if one else 'them'}, bad {proof}"
    if answer.still_above:
        ended = f"; {answer.stopped_by} ended the search for more" if answer.stopped_by else ""
        with_them = "finite with it, but its loss" if one else "finite with them, but the loss"
        return f"{sites} must stay in {answer.fmt}: {with_them} is still above that of {answer.good}{ended}."
    if answer.is_minimal:
        return f"{verdict}."
    if answer.without:
        return f"{verdict}; {answer.stopped_by} ended the search inside."
    return f"{sites}: sufficient, but perhaps not all are needed; {answer.stopped_by} ended the search."


def _proof_facts(answer: BisectAnswer) -> list[tuple[str, str]]:
    if not answer.found:
        return [("unchanged", answer.as_it_is)]
    changed = "narrow" if answer.is_mirror else "with them" if len(answer.found) > 1 else "with it"
    facts = [(changed, answer.still_above or answer.with_them)] * bool(answer.with_them)
    facts += [("unchanged", answer.as_it_is)] * (not answer.without)
    facts += [("without", f"{site}: {text}") for site, text in [*answer.without.items()][:_MAX_SHOWN]]
    if answer.modules and answer.modules != answer.found:
        facts.append(("inside", join_words(answer.modules, at_most=_MAX_SHOWN)))
    return facts


def _search_facts(answer: BisectAnswer) -> list[tuple[str, str]]:
    order = ", the most suspicious in one measured step first" if answer.is_measured else ""
    counted = f"{plural(answer.num_runs, 'run')} of the search and {answer.num_other_runs} to compare with"
    facts = [("stage", stage) for stage in answer.stages]
    facts += [("judged by", answer.judge)]
    facts += [("searched", f"{plural(answer.num_sites, 'site')} of `{answer.subject}`{order}")] * bool(answer.num_runs)
    facts += [("took", f"{counted}; {answer.seconds:.0f} s")]
    return facts + [("note", note) for note in answer.notes]


def _use_facts(answer: BisectAnswer) -> list[tuple[str, str]]:
    facts = [("recipe", str(answer.recipe_file))] * bool(answer.recipe_file)
    facts += [("folder", str(answer.folder))] * bool(answer.folder)
    return facts + [("next", command) for command in answer.next_commands]


def _label_once(facts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return facts with a label only at the first of several with the same one."""
    labels = ["", *(label for label, _ in facts)]
    return [("" if label == before else label, text) for before, (label, text) in zip(labels, facts, strict=False)]

"""The answer of a bisection, as text: what must be wide, the proof, and the recipe to use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from roundoff.runs import JsonValue
from roundoff.words import join_words, plural, wrap

_WIDTH = 100
_LABEL_WIDTH = 11
_TO_COPY = ("next", "recipe", "folder")
"""What is left on one line, however long: it is copied."""
_MAX_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectAnswer:
    """What a bisection came to."""

    subject: str
    """The training, as a user would type it."""
    good: str
    bad: str
    """The two recipes, or implementations, by name."""
    fmt: str
    """What the culprits have to take."""
    judge: str
    """Who judged, and with which numbers."""
    is_mirror: bool = False
    """Whether it was asked what spoils a good run, and not what saves a bad one."""
    is_substituted: bool = False
    """Whether another implementation was searched with, and not a format."""
    num_sites: int = 0
    """How many were searched."""
    is_measured: bool = False
    """Whether their order comes from a measured step."""
    found: tuple[str, ...] = ()
    """A smallest set of sites or ops; empty if there was nothing to find."""
    modules: tuple[str, ...] = ()
    """The modules that the set was narrowed down from."""
    is_minimal: bool = True
    stopped_by: str | None = None
    """The option that ended the search early."""
    with_them: str = ""
    """The verdict on the run with the set changed."""
    without: Mapping[str, str] = field(default_factory=dict)
    """The verdict on the run in which all of the set but this one is kept."""
    as_it_is: str = ""
    """The verdict on the unchanged run."""
    still_above: str = ""
    """The set makes the losses finite, but not good: the verdict on the last of them."""
    notes: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    """What each stage of `--auto` showed, and why the next followed."""
    num_runs: int = 0
    """Runs of the search."""
    num_other_runs: int = 0
    """Runs before it: the bad one, the good one, the reference's."""
    seconds: float = 0.0
    """Of all these runs, whenever they were made."""
    verdict: str = ""
    """The first line, where it is no set of sites that was found."""
    folder: Path | None = None
    recipe_file: Path | None = None
    next_commands: tuple[str, ...] = ()

    def to_object(self) -> dict[str, JsonValue]:
        """Return everything as JSON values."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def bisect_text(answer: BisectAnswer) -> str:
    """Lay out the answer of a bisection, the verdict first."""
    if not answer.found:
        return _lines(_verdict(answer), [("as it is", answer.as_it_is), *_common_facts(answer)])
    kept = "narrow" if answer.is_mirror else "with them" if len(answer.found) > 1 else "with it"
    facts = [(kept, answer.still_above or answer.with_them)] * bool(answer.with_them)
    facts += [("as it is", answer.as_it_is)] * (not answer.without)
    facts += [("without", f"{site}: {text}") for site, text in [*answer.without.items()][:_MAX_SHOWN]]
    if answer.modules and answer.modules != answer.found:
        facts.append(("inside", join_words(answer.modules, at_most=_MAX_SHOWN)))
    return _lines(_verdict(answer), [*facts, *_common_facts(answer)])


def _verdict(answer: BisectAnswer) -> str:
    if answer.verdict:
        return answer.verdict
    if not answer.found:
        return f"Nothing to find: {answer.bad} is as good as {answer.good} here."
    sites, one = join_words(answer.found, at_most=_MAX_SHOWN), len(answer.found) == 1
    if answer.is_mirror:
        proof = "alone" if one else "together, and not with any one of them left out"
        verdict = f"{sites} {'spoils' if one else 'spoil'} the training {proof}"
    elif answer.is_substituted:
        proof = "as it is" if one else "with any one of them as it is"
        by = f"good with {'it' if one else 'them'} computed by {answer.good}"
        verdict = f"{sites} {'is' if one else 'are'} to blame: {by}, bad {proof}"
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
    return f"{sites}: enough, but perhaps not all needed; {answer.stopped_by} ended the search."


def _common_facts(answer: BisectAnswer) -> list[tuple[str, str]]:
    order = ", the most suspicious of one measured step first" if answer.is_measured else ""
    counted = f"{plural(answer.num_runs, 'run')} to search, and {answer.num_other_runs} to know what is good and bad"
    facts = [("stage", stage) for stage in answer.stages]
    facts += [("judged by", answer.judge)]
    facts += [("searched", f"{plural(answer.num_sites, 'site')} of `{answer.subject}`{order}")] * bool(answer.num_runs)
    facts += [("took", f"{counted}; {answer.seconds:.0f} s")]
    facts += [("note", note) for note in answer.notes]
    facts += [("recipe", str(answer.recipe_file))] * bool(answer.recipe_file)
    facts += [("folder", str(answer.folder))] * bool(answer.folder)
    return facts + [("next", command) for command in answer.next_commands]


def _lines(verdict: str, facts: list[tuple[str, str]]) -> str:
    lines, before = wrap(verdict, width=_WIDTH - 2), ""
    lines[1:] = [f"  {line}" for line in lines[1:]]
    for label, text in facts:
        shown = "" if label == before else label
        first, *more = text.splitlines() if label in _TO_COPY else wrap(text, width=_WIDTH - _LABEL_WIDTH - 2)
        lines.append(f"  {shown:<{_LABEL_WIDTH}}{first}")
        lines += [f"  {'':<{_LABEL_WIDTH}}{line}" for line in more]
        before = label
    return "\n".join(lines)

"""Which ranks had the same values, step by step, and since when they differ."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from roundoff.diagnose.diagnosis import RunView
from roundoff.diagnose.ranks.agreement import INPUT, RankAgreement, Stretch, rank_agreement
from roundoff.report.markup import Html, join_html, tag
from roundoff.report.run_page.section import Section
from roundoff.words import join_names, plural

MAX_COLUMNS = 60
MAX_RANKS = 32
_TITLES = {
    INPUT: "model inputs",
    "gradient": "gradients after backward",
    "clipped": "gradients used by the optimizer",
    "parameter": "weights after the step",
    "buffer": "buffers before the forward pass",
}
_EXPLAINED = (
    "Ranks with the same letter had the same values, bit for bit. Each column is an interval of steps without a "
    "change. Inputs should differ between ranks; everything else should be the same."
)


def ranks_section(view: RunView) -> Section | None:
    """Show who agrees with whom; None where one process trained alone."""
    found = rank_agreement(view.run)
    if not found:
        return None
    columns, places = _columns(found), _places(found)
    return Section(
        key="ranks",
        title="Ranks",
        body=join_html(
            tag("ul", *map(_sentence, found), class_="agreement"),
            tag("p", _EXPLAINED, class_="faint"),
            _matrix(found, columns[:MAX_COLUMNS], places[:MAX_RANKS]),
        ),
        thinned=_left_out(len(columns), len(places)),
    )


def _left_out(num_columns: int, num_ranks: int) -> list[str]:
    notes = []
    if num_columns > MAX_COLUMNS:
        notes.append(f"The first {MAX_COLUMNS} of {num_columns} intervals of steps are shown.")
    if num_ranks > MAX_RANKS:
        notes.append(f"{MAX_RANKS} of {num_ranks} ranks are shown, those that differ from the majority first.")
    return notes


def _sentence(each: RankAgreement) -> Html:
    words = tag("span", agreement_words(each), class_="odd" if each.first_odd is not None else None)
    return tag("li", tag("strong", _TITLES[each.kind]), ": ", words)


def agreement_words(each: RankAgreement) -> str:
    """Say who agrees with whom, since when not, and in what."""
    odd = each.first_odd
    num_steps = sum(stretch.num_steps for stretch in each.stretches)
    steps = f"in {'the one step' if num_steps == 1 else f'all {num_steps} steps'} that were checked"
    if odd is None and each.kind == INPUT:
        return f"Every rank has different batches {steps}."
    if odd is None:
        if each.is_wanted:
            return f"All {len(each.ranks)} ranks agree {steps}."
        return "The weights are sharded: each rank has a different part."
    if each.kind == INPUT:
        sentence = f"{_who(each, odd, alike=True)} receive the same batch {_since(each, odd)}."
        return sentence[0].upper() + sentence[1:]
    names = f"{len(odd.differing)} of {plural(each.num_tensors, 'tensor')} differ: {join_names(list(odd.differing))}"
    sentence = f"{_who(each, odd, alike=False)} {_since(each, odd)}; {names}."
    return sentence[0].upper() + sentence[1:]


def _who(each: RankAgreement, stretch: Stretch, *, alike: bool) -> str:
    groups: dict[int, list[int]] = {}
    for rank, group in zip(each.ranks, stretch.groups, strict=True):
        if group is not None:
            groups.setdefault(group, []).append(rank)
    if alike:
        return " and ".join(_name_ranks(ranks) for ranks in groups.values() if len(ranks) > 1)
    usual, *others = (groups[group] for group in sorted(groups))
    if len(others) > 3:
        return f"{len(others) + 1} groups of ranks differ from each other"
    verb = "differs" if len(others) == 1 and len(others[0]) == 1 else "differ"
    return f"{', '.join(map(_name_ranks, others))} {verb} from {_name_ranks(usual)}"


def _name_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {join_names([str(rank) for rank in ranks])}"


def _since(each: RankAgreement, odd: Stretch) -> str:
    later = each.stretches[each.stretches.index(odd) + 1 :]
    if all(map(each.is_odd, later)):
        return f"from step {odd.first_step} on"
    return f"in {_steps(odd)}, and {'again' if any(map(each.is_odd, later)) else 'not'} later"


def _steps(stretch: Stretch) -> str:
    if stretch.first_step == stretch.last_step:
        return f"step {stretch.first_step}"
    return f"steps {stretch.first_step} to {stretch.last_step}"


def _columns(found: Sequence[RankAgreement]) -> list[tuple[int, int]]:
    """Return first and last step of each column: nothing changes within, in any kind."""
    stretches = [stretch for each in found for stretch in each.stretches]
    begins = sorted({stretch.first_step for stretch in stretches})
    last = max(stretch.last_step for stretch in stretches)
    return [(begin, end - 1) for begin, end in itertools.pairwise([*begins, last + 1])]


def _places(found: Sequence[RankAgreement]) -> list[int]:
    """Return the places of ranks, the first one and those that are ever in another group than most in front."""
    places = range(len(found[0].ranks))
    odd = {
        place
        for place in places
        for each in found
        if each.kind != INPUT and any(stretch.groups[place] for stretch in each.stretches)
    }
    return list(dict.fromkeys([0, *sorted(odd), *places]))


def _matrix(found: Sequence[RankAgreement], columns: Sequence[tuple[int, int]], places: Sequence[int]) -> Html:
    heads = [tag("th", _short(first, last), scope="col") for first, last in columns]
    head = tag("thead", tag("tr", tag("th", "step", scope="col"), *heads))
    bodies = [_rows(each, columns, sorted(places)) for each in found]
    table = tag("table", head, *bodies, class_="matrix")
    return tag("div", table, class_="scrolling", tabindex=0, role="region", aria_label="ranks by steps")


def _rows(each: RankAgreement, columns: Sequence[tuple[int, int]], places: Sequence[int]) -> Html:
    heading = tag("th", _TITLES[each.kind], scope="rowgroup", colspan=len(columns) + 1)
    known = [_stretch_at(each, first) for first, _ in columns]
    rows = [
        tag("tr", tag("th", f"rank {each.ranks[place]}", scope="row"), *(_cell(each, at, place) for at in known))
        for place in places
    ]
    return tag("tbody", tag("tr", heading), *rows)


def _stretch_at(each: RankAgreement, step: int) -> Stretch | None:
    return next((stretch for stretch in each.stretches if stretch.first_step <= step <= stretch.last_step), None)


def _short(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}\N{EN DASH}{last}"


def _cell(each: RankAgreement, stretch: Stretch | None, place: int) -> Html:
    group = None if stretch is None else stretch.groups[place]
    if stretch is None or group is None:
        return tag("td")
    is_odd = group > 0 if each.is_wanted else each.kind == INPUT and stretch.groups.count(group) > 1
    return tag("td", _letter(group), class_="odd" if is_odd else None)


def _letter(group: int) -> str:
    """Name a group of ranks.

    >>> _letter(0), _letter(25), _letter(27)
    ('A', 'Z', 'B1')
    """
    letter = chr(ord("A") + group % 26)
    return letter if group < 26 else f"{letter}{group // 26}"

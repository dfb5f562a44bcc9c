"""A plan for people: the verdict, what is wide and why, what was tried, and how to use it."""

from __future__ import annotations

from collections.abc import Iterator

from roundoff.experiments.plan.options import Plan
from roundoff.experiments.plan.site_formats import Proposal, SitePlan
from roundoff.experiments.plan.verification import Verification
from roundoff.report.precision_loss import sensitivity_text
from roundoff.words import wrap

_WIDTH = 100
_MAX_SHOWN = 12
_MAX_NAMED = 4
_MAX_COSTLY = 6
"""Sites of the table of where the precision goes; the page has all of them."""


def plan_text(plan: Plan) -> str:
    """Lay out a plan, the verdict first."""
    lines = [*wrap(verdict(plan)), *_wide_lines(plan), "", *_fact_lines(plan), "", *_use_lines(plan)]
    where = sensitivity_text(plan.measured, plan.measured.formats[0], num_sites=_MAX_COSTLY)
    return "\n".join([*lines, "", "where the precision goes", where])


def evidence_lines(plan: Plan) -> list[str]:
    """Return what is known about the recipe, for the top of its file."""
    return [f"Planned by roundoff for: {plan.subject}", verdict(plan), "", *_fact_lines(plan)]


def verdict(plan: Plan) -> str:
    """Say in one sentence what is narrow, and whether it trains."""
    proposal = plan.proposal
    wide = [_whole_or_own_code(each, proposal) for each in proposal.wide]
    shown = ", ".join(wide[:_MAX_NAMED]) + (f" and {len(wide) - _MAX_NAMED} more" if len(wide) > _MAX_NAMED else "")
    what = f"{plan.measured_format} everywhere" if not wide else f"{plan.measured_format} everywhere but {shown}"
    if len(wide) == len(proposal.sites):
        what = f"no site can take {plan.measured_format}"
    narrow = f"{100 * proposal.narrow_parameters:.3g} % of the parameters are narrow"
    return f"{what}: {narrow}{_ending(plan)}."


def _whole_or_own_code(wide: SitePlan, proposal: Proposal) -> str:
    """Name a wide site; where a module inside it is narrow, only its own code is meant."""
    names = {each.site for each in proposal.wide}
    has_narrow_parts = any(
        each.site.startswith(f"{wide.site}.") and each.site not in names and each.num_elements
        for each in proposal.sites
    )
    return f"{wide.site}'s own code" if has_narrow_parts else wide.site


def _ending(plan: Plan) -> str:
    if plan.verified is None:
        return ", not tried"
    if plan.is_good:
        return ", and it trains as fp32 does"
    return (
        ", but it does not train as fp32 does" if plan.verified.verification is not None else ", not tried to the end"
    )


def _wide_lines(plan: Plan) -> Iterator[str]:
    wide = plan.proposal.wide
    width = max((len(_site_text(each)) for each in wide[:_MAX_SHOWN]), default=0)
    for each in wide[:_MAX_SHOWN]:
        names = [_site_text(each)]
        for reason in each.reasons or ("",):
            yield from _two_columns(names.pop() if names else "", reason, width=width)
    if len(wide) > _MAX_SHOWN:
        yield f"  and {len(wide) - _MAX_SHOWN} more, in the recipe"


def _two_columns(name: str, reason: str, *, width: int) -> Iterator[str]:
    """Yield a reason in a column of its own, in as many lines as it takes."""
    lines = wrap(reason, width=max(40, _WIDTH - width - 4))
    yield f"  {name.ljust(width)}  {lines[0]}".rstrip()
    yield from (f"  {''.ljust(width)}  {line}" for line in lines[1:])


def _site_text(each: SitePlan) -> str:
    ops = ", ".join(f"{op} {fmt}" for op, fmt in each.ops.items())
    return f"{each.site} ({ops})" if ops else f"{each.site} {each.fmt}"


def _fact_lines(plan: Plan) -> Iterator[str]:
    proposal, recipe = plan.proposal, plan.recipe
    share = proposal.loss_change / abs(proposal.loss) if proposal.loss else 0.0
    yield f"measured  step {plan.measured.step} in fp32, loss {proposal.loss:.4g}; the target is {plan.options.target}"
    yield f"expected  the loss moves by {proposal.loss_change:.2g} ({100 * share:.2g} %) in one step"
    yield f"bits      {proposal.mean_bits:.1f} a weight or result on average"
    if proposal.scaling is not None:
        yield f"scale     {recipe.loss_scale.kind}: {proposal.scaling}"
    if plan.not_tried is not None:
        yield f"not tried {plan.not_tried}"
    if plan.verified is not None:
        for tried in plan.verified.tried:
            yield from label_lines("tried", tried)
        if plan.verified.verification is not None:
            yield from verification_lines(plan.verified.verification)


def verification_lines(verification: Verification) -> Iterator[str]:
    """Yield what came of the trainings with a recipe, and of those in fp32."""
    ended, reference = verification.text.split("; ", 1)
    yield from label_lines("verified", f"{ended};")
    yield from label_lines("", reference)


def label_lines(label: str, text: str) -> Iterator[str]:
    """Yield a fact beside its label, in as many lines as it takes."""
    for number, line in enumerate(wrap(text, width=_WIDTH - 10)):
        yield f"{'' if number else label:<10}{line}"


def _use_lines(plan: Plan) -> Iterator[str]:
    yield f"recipe    {plan.recipe_file}"
    yield f"page      {plan.page_file}"
    if plan.subject.startswith("roundoff train"):
        yield f"use       roundoff train --recipe {plan.recipe_file} ..."
    else:
        yield f'use       model, optimizer = roundoff.apply_recipe(model, optimizer, "{plan.recipe_file}")'
    if plan.verified is not None and not plan.is_good:
        yield f"next      roundoff bisect --bad {plan.recipe_file} {_without_roundoff(plan.subject)}"


def _without_roundoff(subject: str) -> str:
    return subject.removeprefix("roundoff ")

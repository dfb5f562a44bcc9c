"""The answer of a plan, as a value and as parts of a report: the verdict, what is wide and why, and how to use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from roundoff.experiments.plan.plan_session import PlanOptions
from roundoff.experiments.plan.site_choices import Proposal, SitePlan
from roundoff.experiments.plan.verification import Verification, VerifiedProposal
from roundoff.precision import find_recipe
from roundoff.precision.recipe.recipe import Recipe
from roundoff.report.notebook import parts_html
from roundoff.report.parts import Facts, Heading, Note, Part, Sentence, to_text
from roundoff.report.precision_loss import sensitivity_parts
from roundoff.runs import JsonValue
from roundoff.sensitivity.effects import Sensitivity
from roundoff.words import join_names

LABEL_WIDTH = 10
_MAX_SHOWN = 12
_MAX_NAMED = 4
_MAX_COSTLY = 6
"""How many sites the table of lost precision shows; the page has all of them."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan:
    """A recipe, its evidence, and whether it trains."""

    subject: str
    options: PlanOptions
    measured: Sensitivity
    measured_format: str
    """The format of most sites, as the recipe names it."""
    proposal: Proposal
    recipe: Recipe
    verified: VerifiedProposal | None
    """None if the recipe was not verified."""
    not_tried: str | None
    """Why the recipe was not verified."""
    num_trials: int
    folder: Path
    recipe_file: Path

    def __repr__(self) -> str:
        return f"<Plan {self.recipe_file}: {verdict(self)}>"

    def _repr_html_(self) -> str:
        return parts_html(plan_parts(self), is_good=self.is_good)

    @property
    def page_file(self) -> Path:
        """The page that shows where precision is lost."""
        return self.folder / "precision.html"

    @property
    def is_good(self) -> bool:
        """Whether the recipe was verified and trains as well as fp32, or was not to be verified."""
        return self.verified.is_good if self.verified is not None else not self.options.verify

    @property
    def text(self) -> str:
        """The plan as text, the verdict first."""
        return plan_text(self)

    def to_object(self) -> dict[str, JsonValue]:
        """Return everything as JSON values, without the measured step, which has its own file."""
        verified = self.verified
        verification = None if verified is None else verified.verification
        return {
            "subject": self.subject,
            "recipe": str(self.recipe_file),
            "folder": str(self.folder),
            "page": str(self.page_file),
            "good": self.is_good,
            "base": self.options.base_name,
            "format": self.proposal.base_format,
            "loss": self.proposal.loss,
            "expected_loss_change": self.proposal.loss_change,
            "narrow_parameters": self.proposal.narrow_parameters,
            "mean_bits": self.proposal.mean_bits,
            "loss_scale": self.recipe.loss_scale.kind,
            "master_weights": self.recipe.master_weights,
            "overrides": dict(self.recipe.overrides),
            "wide": [
                {"site": each.site, "format": each.fmt, "ops": dict(each.ops), "reasons": list(each.reasons)}
                for each in self.proposal.wide
            ],
            "verification": None if verification is None else verification.to_object(),
            "tried": [] if verified is None else list(verified.tried),
            "not_tried": self.not_tried,
            "trials": self.num_trials,
        }


def plan_text(plan: Plan) -> str:
    """Lay out a plan, the verdict first."""
    return to_text(plan_parts(plan))


def plan_parts(plan: Plan) -> list[Part]:
    """Return the verdict, what is wide and why, the evidence, how to use it, and where precision is lost."""
    return [
        Sentence(verdict(plan)),
        *_wide_parts(plan.proposal.wide),
        Facts(_facts(plan), label_width=LABEL_WIDTH, is_apart=True),
        Facts(_use_facts(plan), label_width=LABEL_WIDTH, overflow="keep", is_apart=True),
        Heading("where precision is lost"),
        *sensitivity_parts(plan.measured, plan.measured.formats[0], num_sites=_MAX_COSTLY),
    ]


def evidence_lines(plan: Plan) -> list[str]:
    """Return the evidence for the recipe, for the top of its file."""
    return [f"Planned by roundoff for: {plan.subject}", verdict(plan), "", *comment_lines(_facts(plan))]


def comment_lines(facts: Sequence[tuple[str, str]]) -> list[str]:
    """Return facts as the lines of a comment."""
    return dedent(to_text([Facts(facts, label_width=LABEL_WIDTH)])).splitlines()


def verdict(plan: Plan) -> str:
    """Return in one sentence what is narrow, and whether it trains."""
    proposal = plan.proposal
    wide = [_whole_or_own_code(each, proposal) for each in proposal.wide]
    shown = join_names(wide, at_most=_MAX_NAMED)
    what = f"{plan.measured_format} everywhere" if not wide else f"{plan.measured_format} everywhere except {shown}"
    if len(wide) == len(proposal.sites):
        what = f"no site can take {plan.measured_format}"
    whose = " of layers" if _rounds_layers(plan.recipe) else ""
    narrow = f"{100 * proposal.narrow_parameters:.3g} % of the parameters{whose} are narrow"
    return f"{what}: {narrow}{_ending(plan)}."


def _whole_or_own_code(wide: SitePlan, proposal: Proposal) -> str:
    """Name a wide site; if a module inside it is narrow, only its own code is wide."""
    names = {each.site for each in proposal.wide}
    has_narrow_parts = any(
        each.site.startswith(f"{wide.site}.") and each.site not in names and each.num_elements
        for each in proposal.sites
    )
    return f"{wide.site}'s own code" if has_narrow_parts else wide.site


def _ending(plan: Plan) -> str:
    if plan.verified is None:
        return ", not verified"
    if plan.is_good:
        return ", and it trains as well as fp32"
    is_complete = plan.verified.verification is not None
    return ", but it does not train as well as fp32" if is_complete else ", verification not finished"


def _wide_parts(wide: Sequence[SitePlan]) -> list[Part]:
    pairs = [
        (_site_text(each) if number == 0 else "", reason)
        for each in wide[:_MAX_SHOWN]
        for number, reason in enumerate(each.reasons or ("",))
    ]
    parts: list[Part] = [Facts(pairs, label_width=max(len(name) for name, _ in pairs) + 2)] if pairs else []
    return [*parts, Note(f"and {len(wide) - _MAX_SHOWN} more (see the recipe)")] if len(wide) > _MAX_SHOWN else parts


def _site_text(each: SitePlan) -> str:
    ops = ", ".join(f"{op} {fmt}" for op, fmt in each.ops.items())
    return f"{each.site} ({ops})" if ops else f"{each.site} {each.fmt}"


def _facts(plan: Plan) -> list[tuple[str, str]]:
    proposal, recipe, target = plan.proposal, plan.recipe, plan.options.target
    share = proposal.loss_change / abs(proposal.loss) if proposal.loss else 0.0
    facts = [
        ("measured", f"step {plan.measured.step} in fp32, loss {proposal.loss:.4g}; the target is {target}"),
        ("expected", f"the loss changes by {proposal.loss_change:.2g} ({100 * share:.2g} %) in one step"),
        ("bits", f"{proposal.mean_bits:.1f} per weight or result on average"),
    ]
    if _rounds_layers(recipe):
        facts.append(("layers", _layers_text(proposal, base=find_recipe(plan.options.base_name))))
    if proposal.scaling is not None:
        facts.append(("scale", f"{recipe.loss_scale.kind}: {proposal.scaling}"))
    if plan.not_tried is not None:
        facts.append(("not tried", plan.not_tried))
    if plan.verified is not None:
        facts += [("tried", tried) for tried in plan.verified.tried]
        facts += verification_facts(plan.verified.verification)
    return facts


def _rounds_layers(recipe: Recipe) -> bool:
    return recipe.compute == "operands" and recipe.operands.layers_only


def _layers_text(proposal: Proposal, *, base: Recipe) -> str:
    """Say how many layers are wide, and how many the base recipe keeps wide without a plan."""
    layers = [each for each in proposal.sites if each.all_ops]
    num_wide = len({each.site for each in proposal.wide} & {each.site for each in layers})
    share = num_wide / max(1, len(layers))
    without = (
        f"; {base.name} without a plan: {100 * base.operands.wide_share:.0f} %" if base.operands.wide_share else ""
    )
    return f"{num_wide} of {len(layers)} are wide, {100 * share:.0f} %{without}"


def verification_facts(verification: Verification | None) -> list[tuple[str, str]]:
    """Return the results of the trainings with a recipe, and of those in fp32; nothing if it was not verified."""
    if verification is None:
        return []
    ended, reference = verification.text.split("; ", 1)
    return [("verified", f"{ended};"), ("", reference)]


def _use_facts(plan: Plan) -> list[tuple[str, str]]:
    facts = [("recipe", str(plan.recipe_file)), ("page", str(plan.page_file))]
    if plan.subject.startswith("roundoff train"):
        facts.append(("use", f"roundoff train --recipe {plan.recipe_file} ..."))
    else:
        facts.append(("use", f'model, optimizer = roundoff.apply_recipe(model, optimizer, "{plan.recipe_file}")'))
    if plan.verified is not None and not plan.is_good:
        facts.append(("next", f"roundoff bisect --bad {plan.recipe_file} {plan.subject.removeprefix('roundoff ')}"))
    return facts

"""What a plan can be told, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from roundoff.errors import PlanError
from roundoff.experiments.plan.site_formats import Proposal
from roundoff.experiments.plan.target import DEFAULT_LOSS, Target
from roundoff.experiments.plan.verification import VerifiedProposal
from roundoff.formats import format_named
from roundoff.precision.recipe.recipe import Recipe
from roundoff.runs import JsonValue
from roundoff.sensitivity.effects import Sensitivity

OnMessage = Callable[[str], None]
"""Is told what is going on, a line at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Where a plan starts, what it has to meet, and how much trying it may cost."""

    base: str = "half"
    """The recipe to start from: a name or a TOML file."""
    formats: tuple[str, ...] = ()
    """What sites may take besides fp32; none: what the base recipe computes in."""
    target: Target = field(default_factory=lambda: Target(loss=DEFAULT_LOSS))
    modules_only: bool = False
    """Let no op of a site take another format than the site."""
    extra: str = ""
    """What is planned instead of formats, as it was asked for; empty: formats."""
    measured_step: int = 2
    """The step that is measured, from 0. In the first ones, what starts at zero has not moved."""
    verify: bool = True
    seeds: int = 3
    """How many trainings of each kind are compared."""
    num_steps: int | None = 100
    """How long these are; None: as long as the training itself."""
    max_runs: int | None = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        for fmt in self.formats:
            format_named(fmt)  # an unknown one is an error now, and not after the first training
        if self.seeds < 2:
            raise PlanError.explain(
                f"--seeds {self.seeds} cannot be.",
                why="how far trainings in fp32 are apart takes two of them to know.",
                fix="use 2 or more, or --no-verify.",
            )

    def asked(self, subject: str, fingerprint: str) -> dict[str, JsonValue]:
        """Return what makes this plan another one than others, as JSON values; budgets do not."""
        return {
            "subject": subject,
            "fingerprint": fingerprint,
            "base": self.base,
            "formats": list(self.formats),
            "target": str(self.target),
            "modules_only": self.modules_only,
            "extra": self.extra,
            "measured_step": self.measured_step,
            "seeds": self.seeds,
            "num_steps": self.num_steps,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A recipe, what it rests on, and whether it trains."""

    subject: str
    options: PlanOptions
    measured: Sensitivity
    measured_format: str
    """The format whose effects were looked at first."""
    proposal: Proposal
    recipe: Recipe
    verified: VerifiedProposal | None
    """None if nothing was tried."""
    not_tried: str | None
    """Why nothing was tried."""
    num_trials: int
    folder: Path
    recipe_file: Path

    @property
    def page_file(self) -> Path:
        """Where the precision goes, as a page."""
        return self.folder / "precision.html"

    @property
    def is_good(self) -> bool:
        """Whether the recipe was tried and trains as fp32 does, or was not to be tried."""
        return self.verified.is_good if self.verified is not None else not self.options.verify

    def to_object(self) -> dict[str, JsonValue]:
        """Return everything but the measured step, which has a file of its own, as JSON values."""
        verified = self.verified
        verification = None if verified is None else verified.verification
        return {
            "subject": self.subject,
            "recipe": str(self.recipe_file),
            "folder": str(self.folder),
            "page": str(self.page_file),
            "good": self.is_good,
            "base": self.options.base,
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

"""The rules for what the optimizer trains and what it should: parameters left out, replaced, frozen or never owned."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.runs import Finding, JsonValue, ParameterFacts, Run, Severity, Structure
from roundoff.words import join_names, plural

COVERAGE_CODES = ("stale-optimizer-parameters", "unregistered-parameter", "not-in-optimizer", "frozen")


def uncovered_parameters(run: Run) -> list[Finding]:
    """Find parameters that get gradients and that no optimizer holds, and say how that came about."""
    looks = run.structures()
    if not looks or not looks[-1].optimizers:
        return []
    found = _of_look(looks[0], looks) or _replaced_later(looks)
    return [*found, *_frozen(looks[0])]


def _of_look(look: Structure, looks: Sequence[Structure]) -> list[Finding]:
    """Judge one look at the training; what an optimizer holds at any time counts as held."""
    held_later = {p.name for other in looks for p in other.parameters if p.optimizers and p.name is not None}
    left_out = [
        p for p in look.parameters if p.requires_grad and p.is_reached and not p.optimizers and p.name not in held_later
    ]
    unowned = [p for p in left_out if p.attribute is not None]
    if unowned:
        return [_unregistered(look, unowned)]
    owned = [p for p in left_out if p.name is not None and "<" not in p.name]
    if _have_masters(look, owned):
        return []
    idle = [p for p in look.parameters if p.optimizers and p.requires_grad and not p.is_reached and not p.has_gradient]
    replaced = [p for p in idle if p.name is None or any(p is not q and p.name == q.name for q in owned)]
    if owned and replaced:
        return [_stale(look, owned, replaced)]
    if owned and not _is_bystander(look, owned):
        return [_not_in_optimizer(look, owned)]
    return []


def _replaced_later(looks: Sequence[Structure]) -> list[Finding]:
    """Judge the later looks: a layer that came when the training was under way has no optimizer yet."""
    known = {p.name for p in looks[0].parameters}
    for look in looks[1:]:
        new = [p for p in look.parameters if p.name is None and p.optimizers and not p.has_gradient]
        left = [p for p in look.parameters if p.name in known and p.requires_grad and p.has_gradient]
        left = [p for p in left if not p.optimizers and "<" not in str(p.name)]
        if new and left:
            return [_stale(look, left, new)]
    return []


def _have_masters(look: Structure, left_out: Sequence[ParameterFacts]) -> bool:
    """Say whether an optimizer trains a copy of each instead, with gradients handed to it: master weights."""
    masters = [p.shape for p in look.parameters if p.name is None and p.optimizers and p.has_gradient]
    return bool(left_out) and all(p.shape in masters for p in left_out) and len(masters) >= len(left_out)


def _is_bystander(look: Structure, left_out: Sequence[ParameterFacts]) -> bool:
    """Say whether they are all of a model that only looks on, in eval mode, such as the one of a perceptual loss."""
    models = {_model_of(p.site) for p in left_out}
    trained = {_model_of(p.site) for p in look.parameters if p.optimizers and p.name is not None}
    modes = {_model_of(module.site): False for module in look.modules if not module.training}
    modes.update({_model_of(module.site): True for module in look.modules if module.training})
    return not models & trained and not any(modes.get(model, True) for model in models)


def _model_of(site: str) -> str:
    return site.partition(":")[0] if ":" in site else ""


def _unregistered(look: Structure, unowned: Sequence[ParameterFacts]) -> Finding:
    unowned = sorted(unowned, key=lambda p: (str(p.attribute).rpartition(".")[0], -len(p.shape)))
    places = [str(p.attribute) for p in unowned]
    return _finding(
        "unregistered-parameter",
        look,
        unowned,
        title=f"{plural(len(unowned), 'tensor')} of the graph {_are(unowned)} held by the model but not owned by it",
        why=f"{join_names(places)}: gradients reach them, but a plain attribute, list or dict hides them from "
        "model.parameters(), so that no optimizer trains them and no checkpoint holds them",
        fix="keep layers in nn.ModuleList or nn.ModuleDict, single tensors as nn.Parameter, before the optimizer is "
        "built",
        evidence=tuple({"attribute": p.attribute, "shape": list(p.shape)} for p in unowned),
    )


def _stale(look: Structure, new: Sequence[ParameterFacts], old: Sequence[ParameterFacts]) -> Finding:
    optimizer, names, shapes = old[0].optimizers[0], [str(p.name) for p in new], [_shape(p) for p in old]
    return _finding(
        "stale-optimizer-parameters",
        look,
        new,
        title=f"{optimizer} trains parameters that the model no longer has",
        why=f"{join_names(names)} get gradients and no optimizer holds them; {optimizer} holds {len(old)} others "
        f"({join_names(shapes)}) that no loss depends on: the layer was replaced after the optimizer was built",
        fix="build the optimizer after the last change of the model, or add the new parameters: "
        "optimizer.add_param_group({'params': layer.parameters()})",
        evidence=({"in_model": [*names]}, {"in_optimizer": [*shapes]}),
    )


def _not_in_optimizer(look: Structure, left_out: Sequence[ParameterFacts]) -> Finding:
    names = [str(p.name) for p in left_out]
    num_trained = sum(1 for p in look.parameters if p.optimizers)
    return _finding(
        "not-in-optimizer",
        look,
        left_out,
        confidence=0.97,
        title=f"no optimizer holds {join_names(names)}",
        why=f"gradients reach {'it' if len(names) == 1 else 'them'} in every backward, but of the parameters that ask "
        f"for gradients {len(names)} of {len(names) + num_trained} are in no optimizer and keep their start values",
        fix="give the optimizer model.parameters(), or freeze on purpose: parameter.requires_grad_(False)",
        evidence=({"left_out": [*names]},),
    )


def _frozen(look: Structure) -> list[Finding]:
    frozen = [p for p in look.parameters if not p.requires_grad and p.name is not None]
    if not frozen or not any(p.requires_grad for p in look.parameters):
        return []
    names = [str(p.name) for p in frozen]
    held = sum(1 for p in frozen if p.optimizers)
    inside = f"; {held} of them are in an optimizer, which leaves them as they are" if held else ""
    return [
        _finding(
            "frozen",
            look,
            frozen,
            severity=Severity.NOTE,
            confidence=1.0,
            title=f"{len(frozen)} of {len(look.parameters)} parameters are frozen",
            why=f"requires_grad is False: {join_names(names)}{inside}",
            fix="nothing, if it is meant so; else parameter.requires_grad_(True) before the optimizer is built",
            evidence=({"frozen": [*names]},),
        )
    ]


def _finding(
    rule: str,
    look: Structure,
    parameters: Sequence[ParameterFacts],
    *,
    title: str,
    why: str,
    fix: str,
    evidence: tuple[JsonValue, ...],
    severity: Severity = Severity.ERROR,
    confidence: float = 0.99,
) -> Finding:
    """Return the finding about some parameters, at the place of the first of them."""
    return Finding(
        rule=rule,
        severity=severity,
        confidence=confidence,
        step=look.step,
        site=parameters[0].site,
        parameter=parameters[0].attribute or parameters[0].name,
        title=title,
        why=why,
        fix=fix,
        evidence=evidence,
    )


def _shape(parameter: ParameterFacts) -> str:
    return "x".join(map(str, parameter.shape)) or "scalar"


def _are(things: Sequence[object]) -> str:
    return "is" if len(things) == 1 else "are"

"""Parameters that no optimizer trains: left out, replaced, frozen or never registered."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.diagnose import needs
from roundoff.diagnose.parameter_histories import first_histories
from roundoff.diagnose.rule import Code, rule
from roundoff.diagnose.step_flow import first_rank
from roundoff.runs import Finding, JsonValue, ParameterFacts, Run, Severity, Structure
from roundoff.words import is_or_are, join_names, plural


@rule(
    Code(
        name="stale-optimizer-parameters",
        means="A layer was replaced after the optimizer was built. The optimizer still trains the old layer, which the "
        "model no longer uses.",
        detected="Some parameters with gradients are in no optimizer, while an optimizer holds as many others that no "
        "loss depends on.",
        fix="Build the optimizer after the last change to the model, or add the new parameters to it.",
    ),
    Code(
        name="unregistered-parameter",
        means="Tensors that should learn are stored in a plain list, dict or attribute. `model.parameters()` does not "
        "list them, so no optimizer trains them and no checkpoint contains them.",
        detected="The leaves of the autograd graph are compared with `model.parameters()`; those found in attributes "
        "of modules are named.",
        fix="Use `nn.ModuleList`, `nn.ModuleDict` and `nn.Parameter`.",
    ),
    Code(
        name="not-in-optimizer",
        means="Parameters receive gradients in every backward but are in no optimizer, so they keep their initial "
        "values.",
        detected="Parameters with gradients are compared with the parameter groups of all optimizers; after parameters "
        "were unfrozen, with those of the optimizers that still step.",
        fix="Give the optimizer `model.parameters()`, or freeze these parameters explicitly.",
    ),
    Code(
        name="frozen",
        means="Parameters do not require gradients. This is only a note: in fine-tuning it is intended.",
        detected="Parameters whose `requires_grad` is False.",
        fix="Nothing, if it is intended; otherwise `parameter.requires_grad_(True)` before the optimizer is built.",
        follows_from=("frozen-untrained",),
    ),
    order=210,
    checks="parameters that no optimizer trains",
    needs=[needs.structure, needs.optimizer],
)
def uncovered_parameters(run: Run) -> list[Finding | None]:
    """Find parameters with gradients that no optimizer holds, and how that came about."""
    looks = run.structures()
    if not looks or not looks[-1].optimizers:
        return []
    left_out = next((found for look in looks if (found := _find_left_out(look, looks)) is not None), None)
    replaced = _find_same_names(looks)
    return [
        replaced or _find_unfrozen(run, looks) or left_out or _find_replaced_later(looks),
        _find_frozen(run, looks[0]),
    ]


def _find_left_out(look: Structure, looks: Sequence[Structure]) -> Finding | None:
    """Judge one look at the training; a parameter that an optimizer holds at any time counts as held."""
    held_later = {p.name for other in looks for p in other.parameters if p.optimizers and p.name is not None}
    left_out = [
        p for p in look.parameters if p.requires_grad and p.is_reached and not p.optimizers and p.name not in held_later
    ]
    unowned = [p for p in left_out if p.attribute is not None]
    if unowned:
        return _unregistered_finding(look, unowned)
    owned = [p for p in left_out if p.name is not None and "<" not in p.name]
    if _have_masters(look, owned):
        return None
    idle = [p for p in look.parameters if p.optimizers and p.requires_grad and not p.is_reached and not p.has_gradient]
    replaced = [p for p in idle if p.name is None or any(p is not q and p.name == q.name for q in owned)]
    if owned and replaced:
        return _stale_finding(look, owned, replaced)
    if owned and not _is_bystander(look, owned):
        return _left_out_finding(look, owned)
    return None


def _find_same_names(looks: Sequence[Structure]) -> Finding | None:
    """Find two parameters of one name, of which the loss reaches the one that no optimizer holds, and not the other."""
    for number, look in enumerate(looks):
        held_later = {
            p.name for later in looks[number + 1 :] for p in later.parameters if p.optimizers and p.is_reached
        }
        idle = [p for p in look.parameters if p.optimizers and not p.is_reached and not p.has_gradient and p.name]
        names = {p.name for p in idle} - held_later
        left = [p for p in look.parameters if p.name in names and p.requires_grad and p.is_reached and not p.optimizers]
        if left:
            return _stale_finding(look, left, [p for p in idle if p.name in {q.name for q in left}])
    return None


def _find_replaced_later(looks: Sequence[Structure]) -> Finding | None:
    """Judge the later looks: a layer that was added during training is in no optimizer."""
    known = {p.name for p in looks[0].parameters}
    for look in looks[1:]:
        new = [p for p in look.parameters if p.name is None and p.optimizers and not p.has_gradient]
        left = [p for p in look.parameters if p.name in known and p.requires_grad and p.has_gradient]
        left = [p for p in left if not p.optimizers and "<" not in str(p.name)]
        if new and left:
            return _stale_finding(look, left, new)
    return None


def _find_unfrozen(run: Run, looks: Sequence[Structure]) -> Finding | None:
    """Find parameters that were frozen, and require gradients again when only optimizers of the past held them."""
    last_step = {metric.optimizer: metric.step for metric in run.metrics(rank=first_rank(run))}
    for number, look in enumerate(looks):
        frozen = {p.name for before in looks[:number] for p in before.parameters if not p.requires_grad}
        held = {p.name for later in looks[number:] for p in later.parameters if p.optimizers}
        held |= {
            p.name
            for before in looks[:number]
            for p in before.parameters
            if any(last_step.get(name, -1) >= look.step for name in p.optimizers)
        }
        thawed = [p for p in look.parameters if p.name in frozen and p.name not in held and p.name is not None]
        thawed = [p for p in thawed if p.requires_grad and p.is_reached]
        if thawed and not _have_masters(look, thawed) and not _is_bystander(look, thawed):
            return _unfrozen_finding(look, thawed)
    return None


def _have_masters(look: Structure, left_out: Sequence[ParameterFacts]) -> bool:
    """Say whether an optimizer trains a copy of each instead, to which gradients are copied: master weights."""
    masters = [p.shape for p in look.parameters if p.name is None and p.optimizers and p.has_gradient]
    return bool(left_out) and all(p.shape in masters for p in left_out) and len(masters) >= len(left_out)


def _is_bystander(look: Structure, left_out: Sequence[ParameterFacts]) -> bool:
    """Say whether all of them belong to a model that is only used, in eval mode, such as that of a perceptual loss."""
    models = {_model_of(p.site) for p in left_out}
    trained = {_model_of(p.site) for p in look.parameters if p.optimizers and p.name is not None}
    modes = {_model_of(module.site): False for module in look.modules if not module.training}
    modes.update({_model_of(module.site): True for module in look.modules if module.training})
    return not models & trained and not any(modes.get(model, True) for model in models)


def _model_of(site: str) -> str:
    return site.partition(":")[0] if ":" in site else ""


def _unregistered_finding(look: Structure, unowned: Sequence[ParameterFacts]) -> Finding:
    unowned = sorted(unowned, key=lambda p: (str(p.attribute).rpartition(".")[0], -len(p.shape)))
    places = [str(p.attribute) for p in unowned]
    return _finding(
        "unregistered-parameter",
        look,
        unowned,
        title=f"{plural(len(unowned), 'tensor')} of the model {is_or_are(len(unowned))} not registered as parameters",
        why=f"{join_names(places)}: gradients reach them, but a plain attribute, list or dict hides them from "
        "model.parameters(), so no optimizer trains them and no checkpoint contains them",
        fix="store layers in nn.ModuleList or nn.ModuleDict, and single tensors as nn.Parameter, before the "
        "optimizer is built",
        evidence=tuple({"attribute": p.attribute, "shape": list(p.shape)} for p in unowned),
    )


def _stale_finding(look: Structure, new: Sequence[ParameterFacts], old: Sequence[ParameterFacts]) -> Finding:
    optimizer, names, shapes = old[0].optimizers[0], [str(p.name) for p in new], [_shape(p) for p in old]
    return _finding(
        "stale-optimizer-parameters",
        look,
        new,
        title=f"{optimizer} trains parameters that the model no longer has",
        why=f"{join_names(names)} get gradients but are in no optimizer; {optimizer} holds {len(old)} others "
        f"({join_names(shapes)}) that no loss depends on: the layer was replaced after the optimizer was built",
        fix="build the optimizer after the last change to the model, or add the new parameters: "
        "optimizer.add_param_group({'params': layer.parameters()})",
        evidence=({"in_model": [*names]}, {"in_optimizer": [*shapes]}),
    )


def _left_out_finding(look: Structure, left_out: Sequence[ParameterFacts]) -> Finding:
    names = [str(p.name) for p in left_out]
    num_trained = sum(1 for p in look.parameters if p.optimizers)
    return _finding(
        "not-in-optimizer",
        look,
        left_out,
        confidence=0.97,
        title=f"{join_names(names)} {is_or_are(len(names))} in no optimizer",
        why=f"gradients reach {'it' if len(names) == 1 else 'them'} in every backward, but {len(names)} of the "
        f"{len(names) + num_trained} parameters that require gradients {is_or_are(len(names))} in no optimizer and "
        f"{'keeps its' if len(names) == 1 else 'keep their'} initial values",
        fix="give the optimizer model.parameters(), or freeze explicitly: parameter.requires_grad_(False)",
        evidence=({"left_out": [*names], "num_parameters": len(names) + num_trained},),
    )


def _unfrozen_finding(look: Structure, thawed: Sequence[ParameterFacts]) -> Finding:
    names = [str(p.name) for p in thawed]
    stepping = list(dict.fromkeys(name for p in look.parameters for name in p.optimizers))
    return _finding(
        "not-in-optimizer",
        look,
        thawed,
        confidence=0.95,
        title=f"{join_names(names)} {'was' if len(names) == 1 else 'were'} unfrozen, but {is_or_are(len(names))} in no "
        "optimizer",
        why=f"requires_grad was False and is True since step {look.step} at the latest, and gradients reach "
        f"{'it' if len(names) == 1 else 'them'}; the optimizer that steps now ({join_names(stepping)}) was built "
        f"without {'it' if len(names) == 1 else 'them'}, so nothing changes",
        fix="after unfreezing, add the parameters: optimizer.add_param_group({'params': body.parameters()}); or build "
        "a new optimizer",
        evidence=({"left_out": [*names]},),
    )


def _find_frozen(run: Run, look: Structure) -> Finding | None:
    """Note parameters that need no gradient; those of a model that is trained in turn with another are updated."""
    updated = {name for name, history in first_histories(run).items() if bool((history.update > 0).any())}
    frozen = [p for p in look.parameters if not p.requires_grad and p.name is not None and p.name not in updated]
    if not frozen or not any(p.requires_grad for p in look.parameters):
        return None
    names = [str(p.name) for p in frozen]
    held = sum(1 for p in frozen if p.optimizers)
    inside = f"; {held} of them {is_or_are(held)} in an optimizer, which does not change them" if held else ""
    return _finding(
        "frozen",
        look,
        frozen,
        severity=Severity.NOTE,
        confidence=1.0,
        title=f"{len(frozen)} of {len(look.parameters)} parameters are frozen",
        why=f"requires_grad is False: {join_names(names)}{inside}",
        fix="nothing, if it is intended; otherwise parameter.requires_grad_(True) before the optimizer is built",
        evidence=({"frozen": [*names]},),
    )


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
    """Return a finding about some parameters, located at the first of them."""
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

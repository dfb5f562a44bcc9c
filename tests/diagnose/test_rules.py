"""The registry: rules in their families' folders, one decision order, and a new file is enough for a new rule."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.rule_pages import page_of_code, rules_of_question
from roundoff.diagnose import diagnose_run
from roundoff.diagnose.against import AGAINST_CODES
from roundoff.diagnose.diagnosis import FAMILIES, PROCEDURE, RULES, causes_by_code, codes_of, discover_rules
from roundoff.runs import Answer
from tests.run_folders import write_run

ORDER = """
native-crash killed hang interrupted
invalid-access native-leak
stepping-stopped
layer-made-in-forward
target-always-current target-never-updated
stale-optimizer-parameters unregistered-parameter not-in-optimizer frozen
graph-cut
loss-term-unreachable
tie-broken
schedule-state-lost
worst-checkpoint-kept
checkpoint-not-loaded
optimizer-state-lost
resume-incomplete
ema-broken
average-too-slow
average-incomplete
loss-broadcast
loss-input-kind
terms-cancel
constant-softmax
outputs-limited dropout-on-output contrast-with-itself
class-weights-inverted
double-softmax
zero-init symmetric-init
dead-units
exploding-activations vanishing-gradients
units-without-gradient
initial-loss
axes-confused
causal-leak mask-inverted read-after-padding padding-seen order-ignored
batch-mixing
wrong-backward
affine-network
integer-wraparound
reshaped-not-permuted
batch-sizes-disagree
constant-input
single-class
classes-in-order
labels-misaligned
targets-not-turned class-indices-interpolated
label-leak
padding-in-loss target-never-seen
padding-collision
running-stats-frozen
lr-zero
accumulation-uneven
step-on-scaled-gradients clip-before-unscale
clip-after-step clip-before-backward
clip-too-low
zero-grad-before-step missing-zero-grad gradients-thrown-away accumulation-remainder
leftover-gradients
double-step
missing-step
scheduler-before-step scheduler-rate
schedule-too-long
plateau-inverted
settings-swapped weight-decay-too-strong eps-above-gradients decay-in-adam
eval-mode-training
mixed-reductions
loss-sum-reduction
accumulation-not-averaged
loss-unbounded-below
lr-too-high
overflow loss-scale-overflow domain-error masked-softmax nonfinite-update nonfinite-input norm-statistics-nonfinite
    no-valid-targets step-on-nonfinite-gradients loss-nonfinite
loss-scale-collapsed
consumed-overflow
cancellation
positions-rounded
sum-stands-still
ids-through-float
saturated-softmax
gradient-underflow
update-below-ulp
norm-weight-decay
input-scale
unused-parameter
rank-init-mismatch module-replaced-after-wrap gradients-not-reduced rank-clip-mismatch rank-gradient-divergence
rank-data-duplicate epoch-order-repeated
rank-buffers-differ
collective-mismatch
nondeterministic-step
graph-leak memory-growth
lr-too-low
loss-spike
loader-workers-alike
dataset-mutated
duplicate-samples
eval-input-scale
eval-input-differs
train-eval-overlap eval-on-training-data
eval-target-scale
running-stats-lost
metric-threshold
metric-axis
metric-broadcast
metric-ignored-labels
eval-in-train-mode
predictions-misaligned eval-classes-renamed
tiny-norm-batch
random-numbers-repeated
stochastic-eval
train-eval-gap
frozen-untrained labels-independent
eval-loss-rising
data-not-shuffled
stays-at-guessing
loss-exploded loss-rising loss-flat
exception
"""
"""Every rule by its codes, one line each, in the order in which a diagnosis decides."""

CAUSES = """
average-incomplete: ema-broken running-stats-frozen running-stats-lost sum-stands-still
average-too-slow: ema-broken sum-stands-still
batch-mixing: axes-confused
causal-leak: axes-confused
clip-too-low: clip-before-unscale
data-not-shuffled: dataset-mutated duplicate-samples epoch-order-repeated
dead-units: constant-input exploding-activations input-scale zero-init
domain-error: accumulation-not-averaged cancellation clip-after-step clip-before-backward double-step
    loss-scale-collapsed loss-sum-reduction loss-unbounded-below lr-too-high missing-zero-grad settings-swapped
    step-on-scaled-gradients
duplicate-samples: loader-workers-alike
ema-broken: sum-stands-still
eval-classes-renamed: eval-input-differs predictions-misaligned
eval-loss-rising: eval-classes-renamed eval-in-train-mode eval-input-differs eval-input-scale eval-on-training-data
    eval-target-scale norm-statistics-nonfinite running-stats-frozen running-stats-lost stochastic-eval sum-stands-still
    train-eval-gap train-eval-overlap
exception: collective-mismatch domain-error loss-nonfinite loss-scale-overflow masked-softmax no-valid-targets
    nonfinite-input nonfinite-update norm-statistics-nonfinite overflow step-on-nonfinite-gradients
    step-on-scaled-gradients unused-parameter
frozen: frozen-untrained
gradient-underflow: consumed-overflow saturated-softmax
gradients-not-reduced: unused-parameter
graph-cut: stale-optimizer-parameters
hang: collective-mismatch
ids-through-float: positions-rounded
initial-loss: exploding-activations input-scale
input-scale: consumed-overflow domain-error masked-softmax nonfinite-update overflow
labels-independent: axes-confused batch-mixing classes-in-order graph-cut labels-misaligned layer-made-in-forward
    order-ignored units-without-gradient update-below-ulp
loss-nonfinite: accumulation-not-averaged cancellation clip-after-step clip-before-backward domain-error double-step
    loss-scale-collapsed loss-scale-overflow loss-sum-reduction loss-unbounded-below lr-too-high masked-softmax
    missing-zero-grad no-valid-targets nonfinite-input nonfinite-update norm-statistics-nonfinite overflow
    settings-swapped step-on-nonfinite-gradients step-on-scaled-gradients
loss-spike: accumulation-not-averaged classes-in-order clip-after-step clip-before-backward domain-error double-step
    input-scale loss-nonfinite loss-scale-overflow loss-sum-reduction loss-unbounded-below lr-too-high masked-softmax
    missing-zero-grad no-valid-targets nonfinite-input nonfinite-update norm-statistics-nonfinite overflow
    settings-swapped step-on-nonfinite-gradients step-on-scaled-gradients
loss-term-unreachable: graph-cut not-in-optimizer
lr-too-high: accumulation-not-averaged clip-after-step clip-before-backward double-step exploding-activations
    input-scale loss-sum-reduction loss-unbounded-below missing-zero-grad settings-swapped step-on-scaled-gradients
lr-too-low: clip-before-unscale clip-too-low constant-softmax consumed-overflow dead-units eps-above-gradients
    gradient-underflow graph-cut lr-too-high lr-zero missing-step plateau-inverted saturated-softmax schedule-too-long
    scheduler-rate stepping-stopped terms-cancel update-below-ulp vanishing-gradients weight-decay-too-strong
    zero-grad-before-step
nonfinite-update: accumulation-not-averaged cancellation clip-after-step clip-before-backward double-step
    loss-scale-collapsed loss-sum-reduction loss-unbounded-below lr-too-high missing-zero-grad settings-swapped
    step-on-scaled-gradients
norm-statistics-nonfinite: accumulation-not-averaged cancellation clip-after-step clip-before-backward double-step
    loss-scale-collapsed loss-sum-reduction loss-unbounded-below lr-too-high missing-zero-grad settings-swapped
    step-on-scaled-gradients
order-ignored: axes-confused
overflow: accumulation-not-averaged cancellation clip-after-step clip-before-backward double-step loss-scale-collapsed
    loss-sum-reduction loss-unbounded-below lr-too-high missing-zero-grad settings-swapped step-on-scaled-gradients
rank-buffers-differ: gradients-not-reduced rank-init-mismatch
running-stats-frozen: eval-mode-training
running-stats-lost: constant-input dead-units zero-init
step-on-nonfinite-gradients: accumulation-not-averaged cancellation clip-after-step clip-before-backward domain-error
    double-step loss-scale-collapsed loss-scale-overflow loss-sum-reduction loss-unbounded-below lr-too-high
    masked-softmax missing-zero-grad no-valid-targets nonfinite-input nonfinite-update norm-statistics-nonfinite
    overflow settings-swapped step-on-scaled-gradients
stepping-stopped: domain-error loss-scale-overflow masked-softmax no-valid-targets nonfinite-input nonfinite-update
    norm-statistics-nonfinite overflow
train-eval-gap: eval-classes-renamed eval-in-train-mode eval-input-differs eval-input-scale eval-on-training-data
    eval-target-scale norm-statistics-nonfinite running-stats-frozen running-stats-lost stochastic-eval sum-stands-still
    tiny-norm-batch train-eval-overlap
units-without-gradient: constant-softmax dead-units eval-mode-training gradient-underflow graph-cut terms-cancel
    zero-init
vanishing-gradients: constant-input dead-units symmetric-init terms-cancel zero-init
weight-decay-too-strong: norm-weight-decay
"""
"""The codes that explain each code, without those of the whole loss, which the codes of every other rule explain."""

NEW_RULE = '''
"""Trainings without a seed."""

from roundoff.diagnose.rule import Code, FaultEffect, rule, warning


@rule(
    Code(name="no-seed", means="It has no seed.", fix="Set one.", leads_to=(FaultEffect.BLOWS_UP,)),
    order=105,
    checks="the seed of the run",
)
def unseeded_runs(run):
    """Find runs without a seed."""
    return [] if run.info.seed is not None else [
        warning(rule="no-seed", confidence=1.0, title="no seed", why="-", fix="-", step=0)
    ]
'''


def test_the_decision_order_is_as_written_here() -> None:
    assert [" ".join(code.name for code in rule.codes) for rule in RULES] == ORDER.replace(
        "\n    ", " "
    ).strip().splitlines()
    assert list(PROCEDURE) == ORDER.split()


def test_consequences_follow_from_the_causes_written_here() -> None:
    causes = causes_by_code(RULES)
    shape = {"loss-exploded", "loss-rising", "loss-flat"}
    whole_loss = {**dict.fromkeys(shape, shape), "stays-at-guessing": {"stays-at-guessing"}}
    written = [line.split(": ") for line in CAUSES.replace("\n    ", " ").strip().splitlines()]
    expected = {code: set(explaining.split()) for code, explaining in written}
    assert {code: causes[code] for code in causes if code not in whole_loss} == expected
    assert all(causes[code] == set(PROCEDURE) - own for code, own in whole_loss.items())


def test_every_code_belongs_to_one_rule_and_every_cause_is_a_code() -> None:
    counts = Counter(code.name for code in (*codes_of(RULES), *AGAINST_CODES))
    assert [name for name, count in counts.items() if count > 1] == []
    named = {cause for code in codes_of(RULES) for cause in code.follows_from if isinstance(cause, str)}
    assert named <= set(counts)


def test_explanations_are_whole_sentences() -> None:
    codes = (*codes_of(RULES), *AGAINST_CODES)
    texts = [text for code in codes for text in (code.means, code.fix, code.detected) if text]
    assert [text for text in texts if not (text[0].isupper() or text[0] == "`") or not text.endswith(".")] == []


def test_every_code_that_shares_its_rule_says_what_distinguishes_it() -> None:
    shared = [code for rule in RULES if len(rule.codes) > 1 for code in rule.codes]
    assert [code.name for code in (*shared, *AGAINST_CODES) if not code.detected] == []


def test_every_rule_says_what_it_needs() -> None:
    assert [rule.checks for rule in RULES if not rule.needs] == []


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of a new, empty family that can be imported."""
    folder = tmp_path / "family_of_this_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.startswith(folder.name)]:
        del sys.modules[name]


def test_a_new_file_in_a_family_is_a_new_rule(family: Path, tmp_path: Path) -> None:
    (family / "seeds.py").write_text(NEW_RULE)
    rules = discover_rules([*FAMILIES.values(), importlib.import_module(family.name)])
    assert [rule.codes[0].name for rule in rules][:2] == ["no-seed", RULES[0].codes[0].name]
    assert "no-seed" in causes_by_code(rules)["loss-spike"]
    diagnosis = diagnose_run(write_run(tmp_path / "run"), rules=rules)
    assert [finding.rule for finding in diagnosis.findings] == ["no-seed"]
    assert [answer.checks for answer in diagnosis.answers if answer.answer is Answer.FOUND] == ["the seed of the run"]


def test_a_new_file_in_a_family_is_a_new_page(family: Path) -> None:
    (family / "seeds.py").write_text(NEW_RULE)
    rules = discover_rules([*FAMILIES.values(), importlib.import_module(family.name)])
    page = page_of_code("no-seed", rules=rules)
    assert page.startswith("# no-seed\n\nIt has no seed.")
    assert "[`overflow`](overflow.md)" in page.partition("It explains")[2]
    assert rules_of_question(1, rules=rules).startswith("- the seed of the run: `no-seed`\n")


def test_two_rules_cannot_have_the_same_place(family: Path) -> None:
    (family / "seeds.py").write_text(NEW_RULE)
    (family / "other_seeds.py").write_text(NEW_RULE)
    with pytest.raises(AssertionError, match="two rules at 105"):
        discover_rules([importlib.import_module(family.name)])

"""Collects the facts about a training besides its numbers: its parts, its batches, hashes that ranks compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakSet, ref

from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.kernels.host_copies import HostCopies, Reading
from roundoff.precision.optimizer import RecipeOptimizer
from roundoff.record.identity import IdentityDict
from roundoff.record.loop.sites import MAX_REMADE, Sites
from roundoff.record.process_info import note_environment
from roundoff.record.structure import OptimizerNames, start_values, structure_of
from roundoff.replay.arguments import DroppedByScript
from roundoff.replay.lost_numbers import LostNumbersFinder
from roundoff.replay.state import Training
from roundoff.replay.step_tape import StepTape
from roundoff.runs import BatchFacts, Failure, HashColumns, Probe, RemadeLayerProbe, RunWriter
from roundoff.watch.budget import TimeBudget
from roundoff.watch.facts.average_twins import AverageTwins
from roundoff.watch.facts.dense_targets import DensePairs
from roundoff.watch.facts.eval_inputs import EvalInputs
from roundoff.watch.facts.eval_trial import EvalTrial
from roundoff.watch.facts.gradient_rows import GradientRows
from roundoff.watch.facts.label_predictor import KeptPairs
from roundoff.watch.facts.random_draws import RandomDraws
from roundoff.watch.facts.step_batch import BatchSamples, batch_facts_of, criterion_input_facts, external_tensors
from roundoff.watch.facts.target_twins import TargetTwins
from roundoff.watch.facts.tensor_hashes import RankHashes
from roundoff.watch.facts.weight_averages import WeightAverages
from roundoff.watch.journal import is_kept

_Result = TypeVar("_Result")

_BATCH_PART = 0.1
"""The share of the budget that looking at batches may take."""
_DENSE_STEPS = 1000
"""From then on, batches are described in ever fewer steps."""
_MAX_TARGETS = 16
_SECOND_LOOK = 10
"""The step after which the structure is described again: what has not changed by then does not learn."""


_STEPS_BETWEEN_FREEZES, _MAX_FREEZES = 10, 8
"""So often is it checked which tensors are frozen; so many changes have the structure described again."""


class FactCollector:
    """Describes the training when it begins and when it changes, and its batches as far as the budget allows.

    To be called where no mode of the user's sees it. What is on an accelerator is read when `copies` are delivered.
    """

    def __init__(
        self,
        writer: RunWriter,
        training: Training,
        *,
        sites: Sites,
        budget: TimeBudget,
        kept_batches: int,
        copies: HostCopies | None = None,
    ) -> None:
        self._writer = writer
        self._training = training
        self._sites = sites
        self._budget = budget
        self._copies = copies or HostCopies()
        self._hashes = RankHashes(writer, self._copies)
        self._samples = BatchSamples(writer, sites=sites, most=kept_batches)
        self._averages = WeightAverages(training, sites)
        self._rows = GradientRows(sites)
        self._twins = AverageTwins(training)
        self._eval_inputs = EvalInputs(training, sites)
        self._draws = RandomDraws()
        self._pairs = KeptPairs()
        self._dense = DensePairs()
        self._target_twins = TargetTwins(training, sites)
        self._starts: dict[int, tuple[float, float, float]] = {}
        self._resumed: set[int] = set()
        self._has_structure = False
        self._trainable: tuple[bool, ...] | None = None
        self._freezes_checked = -_STEPS_BETWEEN_FREEZES
        self._num_thawed = 0
        self._described: IdentityDict[object, int] = IdentityDict()
        """Models, and optimizers with their numbers of groups, that have been described."""
        self._criterion_input: dict[str, Any] = {}
        self.optimizer_name = OptimizerNames().of
        self._stepped: WeakSet[Optimizer] = WeakSet()
        self._targets: list[Tensor] = []
        self._num_asked = 0
        self._failed: set[str] = set()
        self._remade: set[str] = set()

    def begin(self) -> None:
        """Note the start values, before the first step changes them, and the environment."""
        note_environment(self._writer)
        self._starts = start_values(self._training.tensors())
        self._resumed = {id(optimizer) for optimizer in self._training.optimizers if optimizer.state}

    def has_thawed(self, step: int) -> bool:
        """Say whether other tensors require gradients than when it was checked before; then look at all again."""
        if step - self._freezes_checked < _STEPS_BETWEEN_FREEZES or self._num_thawed >= _MAX_FREEZES:
            return False
        self._freezes_checked = step
        before, self._trainable = self._trainable, self._training.trainable()
        if before in (None, self._trainable):
            return False
        self._num_thawed += 1
        self._has_structure = False
        return True

    def see_criterion(self, args: tuple[Any, ...]) -> None:
        """Look at the arguments of a loss function."""
        if args:
            self._criterion_input = criterion_input_facts(args[0])
        if len(args) > 1 and isinstance(args[1], Tensor) and not (args[1].requires_grad or args[1].is_meta):
            self._targets = [*self._targets, args[1]][-_MAX_TARGETS:]

    def gradients_ready(self, step: int, optimizer: Optimizer | None = None) -> None:
        """Hash the gradients: after backward, and (with the optimizer that will use them) after clipping."""
        if optimizer is not None:
            self._stepped.add(optimizer)
            self._collect("averages", step, lambda: self._averages.step_begins(step))
            self._collect("rows", step, lambda: self._rows.gradients_ready(step, optimizer))
        if self._hashes.wants(step):
            kind = "gradient" if optimizer is None else "clipped"
            gradients = ((name, x.grad) for name, x in self._parameters())
            self._collect("hashes", step, lambda: self._hashes.write(step, kind, gradients))

    def evaluated(self, module: nn.Module, step: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look at a model that the loop evaluates, if it is trained or a copy of one that is."""
        self._collect("eval-samples", step, lambda: self._see_eval_samples(module, step, args, kwargs))
        if self._eval_inputs.wants(module, args):
            look = self._eval_inputs.see(module, args[0], step)
            self._collect("eval-inputs", step, lambda: self._read("eval-inputs", step, look, self._write_if_any))
        if self._twins.is_followed(module):
            self._collect("twins", step, lambda: self._write_if_any(self._twins.see(module, step)))

    def _see_eval_samples(self, module: nn.Module, step: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hashes = self._eval_inputs.hash_samples(module, args, kwargs, step)
        if hashes is not None:
            self._writer.write_hashes(hashes)

    def see_draw(self, function: str, drawn: Any, step: int, line: tuple[str, int] | None) -> None:
        """Look at random numbers that the loop has drawn."""
        if isinstance(drawn, Tensor):
            self._collect(
                "draws", step, lambda: self._write_if_any(self._draws.see(function, drawn, step=step, line=line))
            )

    def called_without_gradients(self, module: nn.Module, args: tuple[Any, ...], step: int, *, fully: bool) -> None:
        """Count a call of a model by the loop without gradients; look at copies of a trained one."""
        self._num_asked += fully
        if not self._target_twins.is_followed(module):
            return
        self._collect("targets", step, lambda: self._write_if_any(self._target_twins.see(module, args, step)))

    def buffers_ready(self, step: int, *, fully: bool) -> None:
        """Hash the buffers as a forward begins, when they have just been synchronized between ranks."""
        if fully or self._hashes.wants(step):
            self._collect("hashes", step, lambda: self._hashes.write(step, "buffer", self._training.buffers()))

    def see_lost_numbers(self, step: int, finder: LostNumbersFinder) -> None:
        """Write down which whole numbers the loop has lost since the step before."""

        def write() -> None:
            for lost in finder.take():
                self._writer.write(replace(lost, step=step))
            if finder.failure is not None:
                raise finder.failure

        self._collect("lost-numbers", step, write)

    def end_attempt(self, tape: StepTape, *, leaves: Iterable[ref[Tensor]], fully: bool) -> None:
        """Collect what is due at the end of a step: structure, batch, samples, weight averages, hashes of weights."""
        step = tape.step
        self._collect("structure", step, lambda: self._see_structure(step, leaves))
        if tape.entries:
            self._collect("batch", step, lambda: self._see_batch(tape, fully=fully))
            self._collect("samples", step, lambda: self._samples.see(tape, targets=self._targets))
            if fully:
                self._collect("pairs", step, lambda: self._keep_pairs(tape))
        self._targets, self._num_asked = [], 0
        if self._sites.remade:
            self._collect("remade", step, lambda: self._see_remade(step))
        self._collect("averages", step, lambda: self._see_averages(step))
        if self._writer.info.ranks == 1:
            self._collect("twins", step, lambda: self._twins.step_ended(step))
        self._collect("rows", step, lambda: self._read("rows", step, self._rows.step_ended(step), self._write_if_any))
        if self._hashes.wants(step):
            self._collect("hashes", step, lambda: self._hashes.write(step, "parameter", self._parameters()))

    def _collect(self, name: str, step: int, look: Callable[[], None]) -> None:
        """Collect one fact; one that fails because of us is noted in the run and not tried again."""
        if name in self._failed:
            return
        try:
            look()
        except Exception as error:
            self._fail(name, step, error)

    def _read(self, name: str, step: int, reading: Reading[_Result], then: Callable[[_Result], Any]) -> None:
        """Read tensors for a fact, and do something with it; it may fail then."""

        def guarded() -> Reading[None]:
            try:
                then((yield from reading))
            except Exception as error:
                self._fail(name, step, error)

        self._copies.read(guarded())

    def _fail(self, name: str, step: int, error: Exception) -> None:
        if isinstance(error, DroppedByScript):
            return  # what the step used is gone already
        self._failed.add(name)
        self._writer.write(Failure.of(error, check="fact", name=name, step=step))

    def _see_structure(self, step: int, leaves: Iterable[ref[Tensor]]) -> None:
        """Describe the training if models, optimizers or groups were added, and once more after some steps."""
        sizes: list[tuple[object, int]] = [(model, 0) for model in self._training.models]
        sizes += [(optimizer, len(optimizer.param_groups)) for optimizer in self._training.optimizers]
        new = [(found, size) for found, size in sizes if self._described.get(found) != size]
        is_due = not self._has_structure or (step == _SECOND_LOOK and sizes)
        if not new and not is_due:  # of models that died there is nothing left to describe
            return
        self._has_structure = True
        late = [x for x in self._training.tensors() if id(x) not in self._starts and x.requires_grad]
        self._starts |= start_values(late)  # after their first update, which zeros that can learn do not survive
        for found, size in new:
            self._described[found] = size
        structure = structure_of(
            list(self._training.models),
            self._training.optimizers,
            step=step,
            sites=self._sites,
            reached=[leaf for kept in leaves if (leaf := kept()) is not None],
            starts=self._starts,
            resumed=self._resumed,
            stepped=self._stepped,
            name_of=self.optimizer_name,
        )
        self._read("structure", step, structure, self._writer.write)
        recipe = next(
            (each.recipe.name for each in self._training.optimizers if isinstance(each, RecipeOptimizer)), None
        )
        if recipe is not None and self._writer.info.recipe is None:  # `roundoff train` has named it already
            self._writer.update_info(replace(self._writer.info, recipe=recipe))

    def _see_batch(self, tape: StepTape, *, fully: bool) -> None:
        if not fully and not (
            is_kept(tape.step, dense=_DENSE_STEPS) and self._budget.has_room("batch", part=_BATCH_PART)
        ):
            return
        began, num_asked = time.perf_counter(), self._num_asked

        def write(found: tuple[BatchFacts, HashColumns | None]) -> None:
            facts, samples = found
            self._writer.write(replace(facts, num_asked=num_asked))
            if samples is not None:
                self._writer.write_hashes(samples)

        facts = batch_facts_of(tape, self._sites, targets=self._targets, criterion_input=self._criterion_input)
        self._read("batch", tape.step, facts, write)
        self._budget.spend(time.perf_counter() - began, "batch")

    def _keep_pairs(self, tape: StepTape) -> None:
        """Keep the first input of a step with its targets, so that a model of our own can be tried on them."""
        external = list(external_tensors(tape, self._sites))
        given = next((x for _, x, is_target in external if not is_target and x.dim() > 1), None)
        targets = [*self._targets, *(x for _, x, is_target in external if is_target)]
        if given is not None and targets:
            self._pairs.add(given, targets[0])
            self._dense.add(given, targets[0])

    def compare_evaluation(self, step: int, trial: EvalTrial) -> None:
        """Compare what was trained on with what was evaluated, and targets of pictures with these."""
        self._collect("dense-targets", step, lambda: self._write_if_any(self._dense.compare(step)))
        self._collect("eval-trial", step, lambda: self._write_if_any(trial.compare(self._pairs.together(), step)))

    def try_predicting(self, step: int) -> None:
        """Try whether the targets follow from the inputs."""
        self._collect("predictor", step, lambda: self._write_if_any(self._pairs.try_predicting(step)))

    def _see_remade(self, step: int) -> None:
        """Write down which layers were made on the fly, once several with different weights have been seen."""
        for site, sums in self._sites.remade.items():
            if len(sums) >= MAX_REMADE and site not in self._remade:
                self._remade.add(site)
                self._writer.write(RemadeLayerProbe(step=step, site=site, num_made=len(sums)))

    def _see_averages(self, step: int) -> None:
        if self._writer.info.ranks == 1:
            self._read("averages", step, self._averages.step_ended(step), self._write_if_any)

    def _write_if_any(self, seen: Probe | None) -> None:
        if seen is not None:
            self._writer.write(seen)

    def _parameters(self) -> Iterable[tuple[str, Tensor]]:
        for x in self._training.tensors():
            name = self._sites.of_parameter(x)[1]
            if name is not None:
                yield name, x

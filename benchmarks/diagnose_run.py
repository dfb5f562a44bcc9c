"""How long a diagnosis takes: a healthy run of 10,000 steps with 100 sites, everything measured at every step.

That is more than a watch writes: every site has a norm under weight decay, and every sample of every step its hash.

python benchmarks/diagnose_run.py [--steps 10000] [--sites 100] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from roundoff.diagnose import diagnose_run
from roundoff.runs import (
    BackwardDetail,
    BatchFacts,
    Call,
    EpochDetail,
    ForwardDetail,
    HashColumns,
    Interned,
    Metrics,
    ModuleFacts,
    OptimizerFacts,
    ParameterColumns,
    ParameterFacts,
    Run,
    RunInfo,
    RunWriter,
    StepDetail,
    Structure,
    TensorFacts,
    ZeroGradDetail,
)

MUST_SECONDS = 5.0
SAMPLES_PER_STEP, STEPS_PER_EPOCH = 32, 1000


def write_run(folder: Path, *, num_steps: int, num_sites: int) -> None:
    generator = np.random.default_rng(0)
    names = [f"blocks.{site}.weight" for site in range(num_sites)]
    with RunWriter.create(folder, RunInfo()) as writer:
        writer.write(structure_of(names))
        for step in range(20):
            writer.write(batch_of(step))
        for step in range(num_steps):
            if step % STEPS_PER_EPOCH == 0:
                detail = EpochDetail(sampler="RandomSampler", num_batches=STEPS_PER_EPOCH)
                writer.write(Call(step=step, call="epoch", detail=detail))
                write_samples(writer, range(step, min(step + STEPS_PER_EPOCH, num_steps)), generator)
            loss = 2.0 * math.exp(-step / num_steps) + 0.05 * float(generator.standard_normal())
            writer.write(Metrics(step=step, loss=loss, lr=1e-3, grad_norm=1.0, update_norm=0.01, seconds=0.1))
            if step < 100:  # later calls repeat those of the step before, and are left out
                writer.write(Call(step=step, call="forward", detail=ForwardDetail(site="<model>", training=True)))
                writer.write(Call(step=step, call="backward", detail=BackwardDetail()))
                writer.write(Call(step=step, call="step", detail=StepDetail(optimizer="AdamW")))
                writer.write(Call(step=step, call="zero_grad", detail=ZeroGradDetail()))
            if step % 100 == 99:
                write_parameters(writer, range(step - 99, step + 1), names)


def structure_of(names: list[str]) -> Structure:
    parameters = tuple(
        ParameterFacts(
            name=name,
            site=name.removesuffix(".weight"),
            shape=(4096,),
            dtype="float32",
            requires_grad=True,
            optimizers=("AdamW",),
            has_gradient=True,
            is_reached=True,
            mean=1.0,
            std=0.0,
        )
        for name in names
    )
    modules = tuple(ModuleFacts(site=p.site, kind="LayerNorm", training=True) for p in parameters)
    optimizer = OptimizerFacts(name="AdamW", groups=({"lr": 1e-3, "weight_decay": 0.01},))
    return Structure(step=0, parameters=parameters, modules=modules, optimizers=(optimizer,))


def batch_of(step: int) -> BatchFacts:
    shape = (SAMPLES_PER_STEP, 64)
    inputs = TensorFacts(place="<model>[0]", shape=shape, dtype="float32", mean=0.0, std=1.0, hash=f"{step:x}")
    targets = TensorFacts(place="mse_loss[1]", shape=shape[:1], dtype="float32", std=1.0, hash=f"{step + 99:x}")
    return BatchFacts(step=step, tensors=(inputs,), targets=(targets,), criterion="mse_loss")


def write_samples(writer: RunWriter, steps: range, generator: np.random.Generator) -> None:
    num_rows = len(steps) * SAMPLES_PER_STEP
    writer.write_hashes(
        HashColumns(
            step=np.repeat(np.array(steps, dtype=np.int32), SAMPLES_PER_STEP),
            microbatch=np.zeros(num_rows, dtype=np.int32),
            kind=Interned.of(["sample"] * num_rows),
            name=Interned.of(["<model>[0]"] * num_rows),
            hash=generator.permutation(num_rows).astype(np.uint64),
        )
    )


def write_parameters(writer: RunWriter, steps: range, names: list[str]) -> None:
    num_rows = len(steps) * len(names)
    ones = np.ones(num_rows)
    writer.write_parameters(
        ParameterColumns(
            step=np.repeat(np.array(steps, dtype=np.int32), len(names)),
            parameter=Interned.of(names * len(steps)),
            site=Interned.of([name.removesuffix(".weight") for name in names] * len(steps)),
            num_elements=np.full(num_rows, 4096, dtype=np.int64),
            l2=ones * 64,
            absmax=ones,
            grad_l2=ones,
            grad_absmax=ones,
            grad_zero_share=ones * 0,
            grad_subnormal_share=ones * 0,
            changed_fraction=ones,
            update_l2=ones * 0.06,
        )
    )
    writer.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder) / "run", num_steps=options.steps, num_sites=options.sites)
        began = time.process_time()
        diagnosis = diagnose_run(Run.open(Path(folder) / "run"))
        seconds = time.process_time() - began
    if options.json:
        print(json.dumps({"seconds": seconds, "findings": len(diagnosis.findings)}))
    else:
        size = f"{options.steps} steps x {options.sites} sites"
        print(f"diagnosis of {size}: {seconds:.2f} s; must {MUST_SECONDS:g} s; {len(diagnosis.findings)} findings")
        for finding in diagnosis.findings:
            print(f"  {finding.rule}: {finding.why}")
    return int(seconds > MUST_SECONDS)


if __name__ == "__main__":
    sys.exit(main())

"""How long a diagnosis takes: a healthy run of 10,000 steps with 100 sites, everything measured at every step.

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
from roundoff.runs import Call, Interned, Metrics, ParameterColumns, Run, RunInfo, RunWriter

MUST_SECONDS = 5.0


def write_run(folder: Path, *, num_steps: int, num_sites: int) -> None:
    generator = np.random.default_rng(0)
    names = [f"blocks.{site}.weight" for site in range(num_sites)]
    with RunWriter.create(folder, RunInfo()) as writer:
        for step in range(num_steps):
            loss = 2.0 * math.exp(-step / num_steps) + 0.05 * float(generator.standard_normal())
            writer.write_metrics(Metrics(step=step, loss=loss, lr=1e-3, grad_norm=1.0, update_norm=0.01, seconds=0.1))
            if step < 100:  # later calls repeat those of the step before, and are left out
                for call in ("forward", "backward", "step", "zero_grad"):
                    writer.write_call(Call(step=step, call=call, detail={"site": "<model>", "training": True}))
            if step % 100 == 99:
                write_parameters(writer, range(step - 99, step + 1), names)


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

"""`roundoff train`: train a standard model on standard data, at any precision."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import PATH, json_option, name_option, runs_option
from roundoff.cli.terminal import echo, exit_code_of
from roundoff.console import columns
from roundoff.words import plural

if TYPE_CHECKING:
    from roundoff.runs import Metrics
    from roundoff.train import TrainResult


@click.command(name="train", epilog="Example: roundoff train --data digits --recipe fp32 --epochs 3")
@click.option(
    "--data", default="digits", show_default=True, help="digits, fashion-mnist, idx:PATH, folder:PATH, text:PATH."
)
@click.option(
    "--model",
    help="resnet-small, resnet20, resnet18, resnet50, gpt-small, moe-small, hf:CONFIG.  "
    "[default: one that suits the data]",
)
@click.option("--recipe", default="fp32", show_default=True, help="A recipe's name, or a TOML file.")
@click.option("--wide", metavar="LIST", help="Layers that stay in fp32 whatever the recipe: any of router,head.")
@click.option(
    "--loss-scale",
    metavar="SCALE",
    help="dynamic (or 0), dynamic:torch and other flavours, a number (static), none.  [default: the recipe's]",
)
@click.option(
    "--loss-factor", type=float, default=1.0, help="Multiply the loss before backward: shows gradient underflow."
)
@click.option("--epochs", type=int, default=10, show_default=True, help="Number of passes over the data.")
@click.option("--steps", type=int, help="Stop after this many steps; the schedule still follows --epochs.")
@click.option("--batch-size", type=int, default=64, show_default=True, help="Samples per step, over all ranks.")
@click.option("--accumulate", type=int, default=1, help="Split each step into this many microbatches.")
@click.option("--optimizer", help="sgd, adam, adamw, bert-adam, rmsprop, ...  [default: sgd; adamw for text]")
@click.option("--lr", type=float, help="Learning rate for a batch of 256.  [default: sgd 0.1, text 0.005, else 0.001]")
@click.option("--no-lr-scaling", is_flag=True, help="Use --lr as it is, without the linear scaling rule.")
@click.option(
    "--warmup",
    type=float,
    default=0.0,
    metavar="EPOCHS",
    help="Increase the learning rate linearly over this many epochs.",
)
@click.option("--schedule", default="cosine", show_default=True, help="step, cosine, linear or constant.")
@click.option("--momentum", type=float, default=0.9, show_default=True, help="Momentum of sgd and rmsprop.")
@click.option("--eps", type=float, help="Epsilon of adam and its variants.  [default: the optimizer's]")
@click.option(
    "--weight-decay", type=float, default=1e-4, show_default=True, help="Weight decay, except for biases and norms."
)
@click.option("--label-smoothing", type=float, default=0.0, help="Label smoothing factor.")
@click.option("--loss-reduction", default="mean", show_default=True, help="mean or sum over the batch.")
@click.option("--clip", type=float, metavar="NORM", help="Clip the global gradient norm.")
@click.option("--ema", type=float, metavar="DECAY", help="Evaluate a moving average of the weights.")
@click.option("--mixup", type=float, default=0.0, metavar="ALPHA", help="Mix pairs of images (mixup).")
@click.option("--augment", metavar="LIST", help="Any of crop,flip,jitter, or none.  [default: depends on the data]")
@click.option("--width", type=int, help="Width of resnet-small and resnet20 (16), gpt-small and moe-small (128).")
@click.option("--context", type=int, default=128, show_default=True, help="Context length of a text model, in bytes.")
@click.option("--image-size", type=int, default=224, show_default=True, help="Side length of images from folders.")
@click.option("--shrink", type=int, default=1, help="Downscale IDX images by this factor.")
@click.option("--input-gain", type=float, default=1.0, help="Multiply images by this.")
@click.option("--limit", type=int, metavar="N", help="Train on the first N samples only.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of weights, data order and augmentation.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, or a torch device.")
@click.option("--workers", type=int, default=0, show_default=True, help="Data loader processes per rank.")
@click.option("--threads", type=int, help="Threads per rank.")
@click.option("--procs", type=int, default=1, show_default=True, help="Ranks to start on this machine.")
@click.option("--world-size", type=int, help="Ranks over all machines.")
@click.option("--rank", type=int, default=0, help="First rank of this machine.")
@click.option("--dist-url", metavar="URL", help="Rendezvous address: tcp://HOST:29500.")
@click.option("--dist-backend", help="gloo, nccl, ...  [default: depends on the device]")
@click.option(
    "--timeout", "timeout_seconds", type=float, default=600.0, metavar="SECONDS", help="Timeout of collectives."
)
@click.option("--find-unused-parameters", is_flag=True, help="Needed for models that do not use all of their weights.")
@click.option("--sync-bn", is_flag=True, help="Synchronize batch norm over all ranks.")
@click.option("--fsdp", is_flag=True, help="Shard the weights over the ranks.")
@click.option("--resume", type=PATH, metavar="RUN", help="Resume from a run folder or its checkpoint.")
@click.option("--eval-only", is_flag=True, help="Evaluate without training.")
@click.option(
    "--save-every", type=int, metavar="STEPS", help="Save a checkpoint every STEPS steps, besides every epoch."
)
@name_option("run", default="train-1, train-2, ...")
@runs_option()
@click.option("--tensorboard", type=PATH, metavar="FOLDER", help="Also write scalars and histograms for TensorBoard.")
@json_option()
def train_command(as_json: bool, **options: Any) -> None:
    """Train a model and print how good it is.

    Metrics and a checkpoint are written to a run folder. The learning rate is --lr * batch / 256, unless
    --no-lr-scaling is given.

    Several ranks: --procs 2, or: torchrun --nproc-per-node 2 -m roundoff train ...

    Exits with 1 if the last loss or the evaluation is NaN or infinite.
    """
    from roundoff.record.process_info import rank
    from roundoff.train import TrainConfig, train

    config = TrainConfig(**settings_of(options))
    result = train(config, progress=not as_json)
    if rank() == 0 and config.rank == 0:
        if as_json:
            echo_json("train", result.to_object())
        else:
            echo(_text(result))
    sys.exit(exit_code_of(result.ended_nonfinite))


def settings_of(options: dict[str, Any]) -> dict[str, Any]:
    """Turn options, as click has read them, into fields of a config; those that are None keep its defaults."""
    settings = {name: value for name, value in options.items() if value is not None}
    is_text = options["data"].startswith("text:")
    settings.setdefault("model", "gpt-small" if is_text else "resnet-small")
    settings.setdefault("optimizer", "adamw" if is_text else "sgd")
    if "no_lr_scaling" in settings:
        settings["lr_scaling"] = not settings.pop("no_lr_scaling")
    if "loss_scale" in settings:
        settings["loss_scale"] = _loss_scale(settings["loss_scale"])
    for name in ("augment", "wide"):
        if name in settings:
            settings[name] = tuple(settings[name].split(","))
    return settings


def _loss_scale(text: str) -> float | str | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        return text


def _text(result: TrainResult) -> str:
    """Describe the result: the verdict first, then notes, then where the run is."""
    from roundoff.report.loss_curve import curve_lines

    quality = f"top-1 {100 * result.top1:.2f} %  top-5 {100 * result.top5:.2f} %"
    if result.perplexity is not None:
        quality = f"perplexity {result.perplexity:.3f}"
    lines = [f"{quality}  eval loss {result.eval_loss:.4f}"]
    if result.num_steps:
        lines[0] += f"  after {plural(result.num_steps, 'step')} in {result.seconds:.1f} s"
    if result.num_skipped:
        lines.append(f"loss scaling skipped {result.num_skipped} of them")
    lines += result.notes
    lines += curve_lines(_metrics(result), width=columns())
    if result.folder is not None:
        lines.append(f"run    {result.folder}")
    if result.first_nonfinite_step is not None:
        lines.append(f"next   {_how_to_look(result.first_nonfinite_step)}")
    return "\n".join(lines)


def _metrics(result: TrainResult) -> list[Metrics]:
    """Return the metrics of all steps; without a run folder only their losses are known."""
    from roundoff.runs import Metrics, Run

    if result.folder is not None:
        return Run.open(result.folder).metrics()
    return [Metrics(step=step, loss=loss) for step, loss in enumerate(result.losses, result.first_step)]


def _how_to_look(step: int) -> str:
    """Return the command that repeats the training and records the step of the first bad loss and the one before."""
    words = sys.argv[sys.argv.index("train") :] if "train" in sys.argv else ["train", "..."]
    return f"roundoff record --steps {max(0, step - 1)}-{step} -m roundoff {shlex.join(words)}"

"""Guises in which a framework trains: accelerate, Lightning, the Trainer of Hugging Face, and two ranks under DDP."""

from __future__ import annotations

import ast
import random

from tests.faults.guises.training_loop import (
    PlainTraining,
    backward_call,
    is_call_of,
    leaves_the_loop,
    names_stored,
    parse,
    plain_training,
    split_imports,
)


def with_accelerate(tree: ast.Module, _: random.Random) -> ast.Module | None:
    """Let an Accelerator prepare the model and the optimizer, and call backward."""
    training = plain_training(tree)
    if training is None:
        return None
    _call_backward_of("accelerator", training)
    prepared = f"{training.model}, {training.optimizer} = accelerator.prepare({training.model}, {training.optimizer})"
    tree.body[training.made + 1 : training.made + 1] = parse(prepared)
    first, rest = split_imports(tree)
    tree.body = [*first, *parse("from accelerate import Accelerator\naccelerator = Accelerator(cpu=True)"), *rest]
    return tree


def _call_backward_of(owner: str, training: PlainTraining, method: str = "backward") -> None:
    """Turn `loss.backward(...)` into `owner.backward(loss, ...)`."""
    call = backward_call(training.loop.body[training.backward])
    assert call is not None
    call.args = [training.loss, *call.args]
    made = parse(f"{owner}.{method}()")[0]
    assert isinstance(made, ast.Expr)
    assert isinstance(made.value, ast.Call)
    call.func = made.value.func


_LIGHTNING = """
import lightning.pytorch
class Task(lightning.pytorch.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = {model}

    def training_step(self, given_batch, given_index):
        pass

    def configure_optimizers(self):
        return {optimizer}

lightning.pytorch.Trainer(
    max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
).fit(Task(), ())
"""


def with_lightning(tree: ast.Module, _: random.Random) -> ast.Module | None:
    """Make the loop the `training_step` of a LightningModule, which calls backward and step itself."""
    training = plain_training(tree)
    if training is None or leaves_the_loop(training.loop.body):
        return None
    _call_backward_of("self", training, "manual_backward")
    made = parse(_LIGHTNING.format(model=training.model, optimizer=training.optimizer))
    task, fitting = made[1], made[2]
    assert isinstance(task, ast.ClassDef)
    step = task.body[1]
    assert isinstance(step, ast.FunctionDef)
    step.body = _as_function(training.loop, training.loop.body, "given_batch")
    assert isinstance(fitting, ast.Expr)
    assert isinstance(fitting.value, ast.Call)
    fitting.value.args[1] = training.loop.iter
    tree.body[training.index : training.index + 1] = made
    return tree


def _as_function(loop: ast.For, body: list[ast.stmt], item: str) -> list[ast.stmt]:
    """Return the body of a function that does what one turn of the loop does, on names of the module."""
    names = sorted(names_stored([loop]))
    taken = parse(f"_ = {item}")[0]
    assert isinstance(taken, ast.Assign)
    taken.targets = [loop.target]
    return [*(parse(f"global {', '.join(names)}") if names else ()), taken, *body]


_TRAINER = """
import torch
import transformers
class Task(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = {model}

    def forward(self, given):
        pass

class Steps(torch.utils.data.IterableDataset):
    def __iter__(self):
        torch.set_rng_state(state_before_training)
        for number, item in enumerate(batches):
            taken[number] = item
            yield {{"place": torch.tensor([number])}}

class Training(transformers.Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(taken.pop(int(inputs["place"])))

batches = ()
taken = {{}}
state_before_training = torch.get_rng_state()
Training(
    Task(),
    transformers.TrainingArguments(
        "trainer", max_steps=len(batches), per_device_train_batch_size=1, max_grad_norm=0.0, use_cpu=True,
        report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False,
        dataloader_pin_memory=False,
    ),
    train_dataset=Steps(),
    data_collator=lambda items: items[0],
    optimizers=({optimizer}, torch.optim.lr_scheduler.LambdaLR({optimizer}, lambda _: 1.0)),
).train()
"""


def with_trainer(tree: ast.Module, _: random.Random) -> ast.Module | None:
    """Let the Trainer of Hugging Face clear, call backward and step; the rest of the loop is a model with a loss."""
    training = plain_training(tree)
    if training is None or leaves_the_loop(training.loop.body) or not _is_canonical(training):
        return None
    kept = [node for node in training.loop.body[: training.backward] if not _clears(node, training)]
    returned = parse("return 0")[0]
    assert isinstance(returned, ast.Return)
    returned.value = training.loss
    made = parse(_TRAINER.format(model=training.model, optimizer=training.optimizer))
    task, batches = made[2], made[5]
    assert isinstance(task, ast.ClassDef)
    forward = task.body[1]
    assert isinstance(forward, ast.FunctionDef)
    forward.body = _as_function(training.loop, [*kept, returned], "given")
    assert isinstance(batches, ast.Assign)
    batches.value = training.loop.iter
    tree.body[training.index : training.index + 1] = made
    return tree


def _clears(statement: ast.stmt, training: PlainTraining) -> bool:
    return any(is_call_of(statement, name, "zero_grad") for name in (training.optimizer, training.model))


def _is_canonical(training: PlainTraining) -> bool:
    """Say whether the loop clears, calls backward and steps, once each, and does nothing after backward but print."""
    body, backward = training.loop.body, training.backward
    before, after = body[:backward], body[backward + 1 :]
    steps = [node for node in after if is_call_of(node, training.optimizer, "step")]
    others = [node for node in after if node not in steps and not _clears(node, training)]
    call = backward_call(body[backward])
    return (
        call is not None
        and not call.args
        and not call.keywords
        and len(steps) == 1
        and sum(_clears(node, training) for node in body) == 1
        and not any(is_call_of(node, training.optimizer, "step") for node in before)
        and all(isinstance(node, ast.Expr) and ast.unparse(node).startswith("print(") for node in others)
        and training.optimizer not in {name for node in others for name in _names(node)}
    )


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


_DRAWN = {"randn", "rand", "randint", "randperm", "normal", "randn_like", "multinomial"}


def on_two_ranks(tree: ast.Module, _: random.Random) -> ast.Module | None:
    """Train on two ranks under DDP, each with batches of its own; where the loop draws them and calls the model."""
    training = plain_training(tree)
    if training is None or not _is_parallel(training):
        return None
    wrapped = (
        f"{training.model} = torch.nn.parallel.DistributedDataParallel({training.model}, find_unused_parameters=True)\n"
        "torch.manual_seed(1000 + torch.distributed.get_rank())"
    )
    tree.body[training.index : training.index] = parse(wrapped)
    first, rest = split_imports(tree)
    start = parse("import torch\nimport torch.distributed\ntorch.distributed.init_process_group('gloo')")
    tree.body = [*first, *start, *rest, *parse("torch.distributed.destroy_process_group()")]
    return tree


def _is_parallel(training: PlainTraining) -> bool:
    """Say whether the loop draws random numbers, and does nothing with the model but to call it."""
    calls = [node for node in ast.walk(training.loop) if isinstance(node, ast.Call)]
    draws = any(isinstance(call.func, ast.Attribute) and call.func.attr in _DRAWN for call in calls)
    called = sum(isinstance(call.func, ast.Name) and call.func.id == training.model for call in calls)
    used = sum(isinstance(node, ast.Name) and node.id == training.model for node in ast.walk(training.loop))
    harmless = sum(
        ast.unparse(call.func) in {f"{training.model}.{name}" for name in ("parameters", "train", "zero_grad")}
        for call in calls
    )
    return draws and called > 0 and used == called + harmless

"""What the loop calls, in which order, and how fast it goes."""

from roundoff.diagnose.explained.explanation import Explanation, Family

LOOP = Family(
    title="The training loop",
    explanations={
        "step-on-scaled-gradients": Explanation(
            means="The loss was scaled, and the optimizer stepped without unscaling: its gradients are as many times "
            "too large as the scale says.",
            detected="The order of calls: a scaled loss went backward, and the optimizer stepped before anything "
            "unscaled its gradients.",
            fix="Step through the scaler: `scaler.step(optimizer)`, then `scaler.update()`.",
        ),
        "clip-before-unscale": Explanation(
            means="Gradients were clipped while they were still multiplied by the loss scale, so that nearly nothing "
            "is left of them after unscaling.",
            detected="The order of calls: clipping came between a scaled backward and the unscaling.",
            fix="Call `scaler.unscale_(optimizer)`, then clip, then `scaler.step(optimizer)`.",
        ),
        "zero-grad-before-step": Explanation(
            means="`zero_grad` stands between backward and step, so that the optimizer never sees a gradient.",
            detected="The order of calls, and the gradient norm at the step, which is 0, in half of the steps or more.",
            fix="Move `zero_grad` before backward, or behind the step.",
        ),
        "missing-zero-grad": Explanation(
            means="Gradients are never cleared: each step uses the sum of all gradients so far.",
            detected="When backward begins, parameters still have the gradient that the last step used, in half of "
            "the steps or more.",
            fix="Call `optimizer.zero_grad()` once per step.",
        ),
        "double-step": Explanation(
            means="The optimizer steps twice on the same gradients. Often the loss even looks better for a while, "
            "because the learning rate is in effect doubled.",
            fix="Leave one of the two calls out; with a GradScaler only `scaler.step(optimizer)` steps.",
        ),
        "missing-step": Explanation(
            means="Backward gives gradients, and nobody steps: the weights never change.",
            fix="Call `optimizer.step()` after backward; if gradients are accumulated, see that the step is reached.",
        ),
        "scheduler-before-step": Explanation(
            means="The schedule steps before the optimizer does: its first learning rate is never used.",
            detected="The order of calls: the schedule was stepped before the first step of its optimizer.",
            fix="Call `scheduler.step()` after `optimizer.step()`.",
        ),
        "scheduler-rate": Explanation(
            means="A schedule that counts epochs is stepped with every batch, and the learning rate falls to nothing "
            "within a fraction of an epoch.",
            detected="The schedule is stepped with every batch, and the learning rate falls to a small part of its "
            "peak within a small part of an epoch.",
            fix="Step it once per epoch, or give it its length in steps.",
        ),
        "eval-mode-training": Explanation(
            means="Training steps ran with the model in eval mode: dropout is off and norms do not learn statistics. "
            "Mostly `train()` was not called after an evaluation.",
            fix="Call `model.train()` after each evaluation.",
        ),
        "lr-zero": Explanation(
            means="The learning rate is exactly 0 in steps that ought to train.",
            fix="Look at how the schedule computes its factor: an integer division gives 0 below the end of a warm-up.",
        ),
        "lr-too-high": Explanation(
            means="Updates are as large as the weights themselves, and the loss became worse or never better.",
            fix="Lower the learning rate ten- or a hundredfold; updates of a thousandth of the weights are usual.",
        ),
        "lr-too-low": Explanation(
            means="Gradients are there, but updates are so small that the loss stays where it is.",
            fix="Raise the learning rate; updates of a thousandth of the weights are usual.",
        ),
        "norm-weight-decay": Explanation(
            means="The weights of norms shrink step by step by what weight decay takes, and nothing holds against it.",
            fix="Leave norms and biases out of weight decay: a second group with `weight_decay=0`.",
        ),
        "loss-sum-reduction": Explanation(
            means="The loss is a sum over the batch: loss, gradients and the right learning rate grow with its size.",
            fix='Use `reduction="mean"`, or divide by the number of samples.',
        ),
        "accumulation-not-averaged": Explanation(
            means="The gradients of several batches are added up and not averaged, so that the right learning rate "
            "depends on their number.",
            fix="Divide each loss by the number of batches in a step.",
        ),
        "loss-unbounded-below": Explanation(
            means="The loss falls below what its criterion can reach: a sign is turned round, or a log is missing.",
            fix="Look at the sign of the loss and at what the criterion expects: log-probabilities, logits, targets.",
        ),
        "loss-spike": Explanation(
            means="The loss jumped far above its neighbours. Replays with another batch, and from an earlier state, "
            "tell whether this batch, this state or both together are to blame.",
            fix="For a batch: look at its samples. For a state: lower the learning rate, clip gradients, or go back.",
        ),
        "loss-exploded": Explanation(
            means="The loss ended far above where it began, and no other rule knows why.",
            detected="The losses of the first steps are compared with those of the last.",
            fix="Lower the learning rate, clip gradients, and compare with a run that works: `roundoff compare`.",
        ),
        "loss-rising": Explanation(
            means="The loss ended clearly above where it began, and no other rule knows why.",
            detected="The losses of the first steps are compared with those of the last and of the second half.",
            fix="Try a tenth of the learning rate; look whether data or target change in the course of the training.",
        ),
        "loss-flat": Explanation(
            means="The loss is not below where it began, and no other rule knows why.",
            detected="The training is cut into tenths: none of them is better than the beginning by more than the "
            "noise.",
            fix="Overfit a single batch first. If that works, look at the data; if not, at the model and the loss.",
        ),
    },
)

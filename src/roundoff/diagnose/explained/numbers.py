"""NaN, infinity, and numbers that their format cannot hold."""

from roundoff.diagnose.explained.explanation import Explanation, Family

NUMBERS = Family(
    title="Numbers",
    explanations={
        "overflow": Explanation(
            means="An op made a result that is too large for its format, though its inputs were finite. The infinity "
            "reached a loss, a gradient or a weight; what follows it is its consequence.",
            detected="A bad step is replayed op by op. The origin is the first op with good inputs and a bad result "
            "whose value arrives in a loss, a gradient, a weight or a statistic. It is caught with its real "
            "inputs and run again in fp64: where the result is finite there, the format was too narrow.",
            fix="Compute this op in fp32, by a cast or by an override of the recipe, or make its inputs smaller before "
            "it, not its result after it. The verdict shows how.",
        ),
        "loss-scale-overflow": Explanation(
            means="The gradients are finite by themselves and infinite once they are multiplied by the loss scale.",
            detected="The origin lies in backward, in a narrow format, and what overflowed there is finite when it is "
            "divided by the loss scale.",
            fix="Use a dynamic scale, which backs off by itself, or a smaller static one with steps that are skipped "
            "when gradients are not finite.",
        ),
        "domain-error": Explanation(
            means="An op was asked for something that has no answer: the logarithm of 0, 0/0, the root of a negative "
            "number. No format is wide enough for it.",
            detected="As for an overflow, but the op that made the bad value gives one in fp64, too; its arguments "
            "say what was asked of it.",
            fix="Keep the argument inside the domain before the op: `log_softmax` instead of `log(softmax)`, an `eps` "
            "inside the root, and a safe argument in the branch that `where` does not take.",
        ),
        "masked-softmax": Explanation(
            means="A row of an attention is masked as a whole, and a softmax over nothing but -inf is 0/0.",
            detected="The origin is a softmax with a row of nothing but -inf.",
            fix="Leave one position of every row unmasked, or mask with a large negative number instead of -inf.",
        ),
        "nonfinite-update": Explanation(
            means="Gradients were finite, and the optimizer made weights of them that are not. In fp16 the usual eps "
            "of 1e-8 is 0, so that Adam divides by 0.",
            detected="The origin is an op of the optimizer: gradients and weights before it were finite.",
            fix='Keep fp32 master weights, `apply_recipe(model, optimizer, "O2")`, give the optimizer an eps that the '
            "format can hold, or lower the learning rate.",
        ),
        "nonfinite-input": Explanation(
            means="NaN or infinity was in the batch already, before any layer saw it.",
            detected="The first bad tensor of the replayed step is an input of the model that no op made.",
            fix="Clean the sample that the verdict names, and check samples where they are read.",
        ),
        "norm-statistics-nonfinite": Explanation(
            means="The running statistics of a norm took up NaN or infinity from a bad batch. The step may have been "
            "skipped; the buffer keeps it, and every evaluation is broken from then on.",
            detected="Buffers of norms are looked at after a step whose batch was bad, also if a scaler skipped the "
            "step.",
            fix="Put the buffers back when a step is skipped (recipes do so), and load or reset the broken ones.",
        ),
        "no-valid-targets": Explanation(
            means="Every target of a batch is `ignore_index`, so that the mean of the losses is 0/0. The gradients are "
            "0 and the weights are fine.",
            detected="The origin is a loss over targets whose weights add up to 0.",
            fix="Leave such batches out, or divide the sum of the losses by at least 1.",
        ),
        "step-on-nonfinite-gradients": Explanation(
            means="Gradients were not finite and the optimizer stepped all the same: the weights are lost.",
            detected="Gradients were not finite when the optimizer stepped; nothing skipped or undid the step.",
            fix="Look at the gradient norm before each step and skip the step if it is not finite; a GradScaler and "
            "our recipes do that. Then find out where the gradients came from.",
        ),
        "loss-nonfinite": Explanation(
            means="A loss was NaN or infinite, and no op is to blame with certainty: there was no snapshot to replay "
            "the step from, or the replay came out differently.",
            detected="Every loss is looked at; this is what is left to say when no replay leads to an op.",
            fix="Give snapshots more memory with `--snapshot-memory`, or record the step: `roundoff record --steps`.",
        ),
        "loss-scale-collapsed": Explanation(
            means="The scaler skips step after step and halves its scale for nothing: something is not finite whatever "
            "the scale is. A scale below 1 is worse than none.",
            fix="Keep the op that the verdict names in fp32, or find the batch that is not finite.",
        ),
        "consumed-overflow": Explanation(
            means="An op overflowed and the next one divided by its infinity, which gives 0. No NaN ever shows, and "
            "nothing is learnt through these zeros.",
            fix="Compute both ops in fp32, or divide by the largest magnitude before squares and sums.",
        ),
        "cancellation": Explanation(
            means="Two nearly equal numbers were subtracted. What is left is mostly their rounding errors, and a root "
            "or a quotient makes much of it.",
            fix="Rearrange it: subtract the mean before squaring, use `x.var()`, or compute both operands in fp64.",
        ),
        "ids-through-float": Explanation(
            means="Whole numbers, such as token ids, went through a format that rounds them: above 2048 fp16 holds "
            "only every second one. The model reads other tokens than the text has.",
            fix="Keep ids in an integer dtype; cast only tensors with `x.is_floating_point()`.",
        ),
        "saturated-softmax": Explanation(
            means="Each row of an attention has all its weight in one place from the start. No gradient comes back "
            "through such a softmax.",
            fix="Divide the logits by the root of the head's width, start queries and keys smaller, or normalise them.",
        ),
        "gradient-underflow": Explanation(
            means="Many gradient elements are 0 in their format that would not be in a wide one. These weights hear "
            "nothing from the loss.",
            fix="Scale the loss: `torch.amp.GradScaler`, or a recipe that does so; or use bf16, which has the range of "
            "fp32.",
        ),
        "update-below-ulp": Explanation(
            means="Weights in a narrow format have gradients and do not change: the updates are smaller than half the "
            "distance to the next number that the format has.",
            fix='Keep fp32 master weights, `apply_recipe(model, optimizer, "O2")`, or round weights stochastically.',
        ),
    },
)

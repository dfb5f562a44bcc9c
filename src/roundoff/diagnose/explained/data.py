"""What comes into the model, and what is asked of it."""

from roundoff.diagnose.explained.explanation import Explanation, Family

DATA = Family(
    title="The data",
    explanations={
        "input-scale": Explanation(
            means="An input is far from the size that start values and learning rates are made for, and meets the "
            "first weights as it is.",
            fix="Normalise it: `(x - mean) / std` with those of the training set, or `x / 255` for raw pixels.",
        ),
        "constant-input": Explanation(
            means="An input is the same number throughout, or the same for every sample: it teaches nothing.",
            fix="Look at what the data set returns: a buffer never filled, a transform that clamps, the wrong column.",
        ),
        "single-class": Explanation(
            means="All labels of the data set are the same.",
            fix="Look at where labels come from: a column of one value, a filter, a file name that is parsed wrongly.",
        ),
        "label-leak": Explanation(
            means="The target is an input of the model: it learns to copy. Reconstruction and next-token prediction "
            "are left alone.",
            fix="Take the column out of the inputs, or shift the target.",
        ),
        "padding-collision": Explanation(
            means="`padding_idx` of an embedding is a token of the text: its row is never trained.",
            fix="Give padding an id of its own, or leave `padding_idx` out.",
        ),
        "labels-independent": Explanation(
            means="The loss stays at chance, while the same model and optimizer learn any one batch by heart: labels "
            "and inputs do not belong together.",
            fix="Look at some samples with their labels: files sorted differently, inputs shuffled alone, an index off "
            "by one.",
        ),
        "dataset-mutated": Explanation(
            means="The data set holds other numbers in the next epoch: whoever reads a sample writes into it.",
            fix="Work on copies: `x = x.clone()` first in `__getitem__`, and `x = x - mean` instead of `x -= mean`.",
        ),
        "duplicate-samples": Explanation(
            means="Samples come several times within an epoch, though the sampler does not draw with replacement.",
            fix="Look at the sampler: each index should come once; if repetition is meant, say so with its class.",
        ),
        "data-not-shuffled": Explanation(
            means="The batches come in the same order in every epoch. That is a note: sometimes it is meant.",
            fix="`DataLoader(..., shuffle=True)`.",
        ),
    },
)

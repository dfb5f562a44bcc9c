"""What only a comparison with another run can tell."""

from roundoff.diagnose.explained.explanation import Explanation, Family

REFERENCE = Family(
    title="Against a reference",
    explanations={
        "first-divergence": Explanation(
            means="Of all ops of the two runs this is the first that makes more difference than its format explains, "
            "given its own inputs. Everything after it differs because of it.",
            detected="Two runs are compared op by op: how far the results of an op are apart, how much of that its "
            "own inputs explain, and how much rounding in its format allows.",
            fix="Look at the op and at the settings that the finding names: another epsilon, another kernel, another "
            "seed. Formats alone are never reported as a difference.",
        ),
        "config-difference": Explanation(
            means="The two runs were told different things: hyperparameters, modules, data, seeds, packages.",
            detected="What the two runs wrote down about themselves is compared: loss, hyperparameters, modules, "
            "calls, data, seeds, environment.",
            fix="Make them equal one by one, the most suspicious, which stands first, first.",
        ),
    },
)

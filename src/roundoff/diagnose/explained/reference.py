"""What only a comparison with another run can tell."""

from roundoff.diagnose.explained.explanation import Explanation, Family

REFERENCE = Family(
    title="Against a reference",
    explanations={
        "first-divergence": Explanation(
            means="Of all ops of the two runs this is the first that makes more difference than its format explains, "
            "given its own inputs. Everything after it differs because of it.",
            fix="Look at the op and at the settings that the finding names: another epsilon, another kernel, another "
            "seed. Formats alone are never reported as a difference.",
        ),
        "config-difference": Explanation(
            means="The two runs were told different things: hyperparameters, modules, data, seeds, packages.",
            fix="Make them equal one by one, the most suspicious, which stands first, first.",
        ),
    },
)

"""Several processes that train one model."""

from roundoff.diagnose.explained.explanation import Explanation, Family

RANKS = Family(
    title="Several ranks",
    explanations={
        "unused-parameter": Explanation(
            means="No loss depends on some parameters of a parallel model, and the exchange waits for their gradients.",
            fix="Use them, remove them or freeze them before wrapping; or `find_unused_parameters=True`.",
        ),
        "rank-init-mismatch": Explanation(
            means="Ranks start from different weights. Adding up their gradients does not make them one model.",
            detected="Mean, spread and largest magnitude of every parameter at the start are compared between ranks, "
            "and weights do not agree later either.",
            fix="Seed all ranks alike before the model is built, or broadcast the weights from rank 0.",
        ),
        "module-replaced-after-wrap": Explanation(
            means="A layer was replaced after the model was wrapped: its gradients are not exchanged.",
            detected="In the first step the gradients of some parameters differ between ranks after backward, and all "
            "others agree.",
            fix="Change the model first, and wrap it then.",
        ),
        "gradients-not-reduced": Explanation(
            means="Each rank steps on the gradients of its own data: the exchange never happens. Often `model.module` "
            "is called instead of the wrapped model.",
            detected="Hashes of the gradients that the optimizer uses are compared between ranks: they differ right "
            "after backward.",
            fix="Call the wrapped model itself, outside of `no_sync`.",
        ),
        "rank-clip-mismatch": Explanation(
            means="Gradients agree after the exchange and differ after clipping: not every rank clips, or by other "
            "limits.",
            detected="Gradients agree after backward and differ when the optimizer uses them, and the ranks clipped "
            "differently.",
            fix="Clip on all ranks, with the same limit, after the exchange.",
        ),
        "rank-gradient-divergence": Explanation(
            means="A rank uses another gradient than the others, though they were exchanged: something changed it "
            "afterwards.",
            detected="Gradients agree after backward and differ when the optimizer uses them, and clipping does not "
            "explain it.",
            fix="Look for hooks and code after backward that depend on the rank.",
        ),
        "rank-data-duplicate": Explanation(
            means="Two ranks are given the same batches: the second computes nothing that the first does not.",
            detected="Hashes of the inputs are the same on two ranks in every step that was looked at.",
            fix="Give the DataLoader a DistributedSampler, or shard the data by rank.",
        ),
        "epoch-order-repeated": Explanation(
            means="A DistributedSampler was never told of a new epoch, so that each has the same order.",
            detected="The batches of an epoch have the hashes of the epoch before, and the sampler's epoch has not "
            "moved.",
            fix="Call `sampler.set_epoch(epoch)` at the start of every epoch.",
        ),
        "rank-buffers-differ": Explanation(
            means="Buffers such as running statistics differ between ranks when a forward uses them.",
            fix="Let DistributedDataParallel broadcast buffers, its default, or use SyncBatchNorm.",
        ),
        "collective-mismatch": Explanation(
            means="A rank took fewer steps than another, which waits for a partner that never comes. Since then each "
            "exchange mixed gradients of different steps.",
            fix="Let every rank take every step: equal numbers of batches, no `continue` that depends on the rank's "
            "data; or `torch.distributed.algorithms.Join`.",
        ),
    },
)

"""What a model is made of, how it starts, and how it behaves in evaluation."""

from roundoff.diagnose.explained.explanation import Explanation, Family

MODEL = Family(
    title="The model",
    explanations={
        "stale-optimizer-parameters": Explanation(
            means="A layer was replaced after the optimizer was built: the optimizer trains the old one, which nobody "
            "uses any more.",
            detected="Parameters with gradients that no optimizer holds, while an optimizer holds as many others that "
            "no loss depends on.",
            fix="Build the optimizer after the last change of the model, or add the new parameters to it.",
        ),
        "unregistered-parameter": Explanation(
            means="Tensors that learn lie in a plain list, dict or attribute. `model.parameters()` does not list them: "
            "no optimizer trains them, no checkpoint holds them.",
            detected="The leaves of the autograd graph are compared with `model.parameters()`; those that lie in "
            "attributes of modules are named.",
            fix="Use `nn.ModuleList`, `nn.ModuleDict` and `nn.Parameter`.",
        ),
        "not-in-optimizer": Explanation(
            means="Parameters get gradients in every backward and are in no optimizer: they keep their start values.",
            detected="Parameters with gradients are compared with the groups of all optimizers.",
            fix="Give the optimizer `model.parameters()`, or freeze them on purpose.",
        ),
        "frozen": Explanation(
            means="Parameters do not ask for gradients. That is a note: in fine-tuning it is meant so.",
            detected="Parameters with `requires_grad` False.",
            fix="Nothing, if it is meant so; else `parameter.requires_grad_(True)` before the optimizer is built.",
        ),
        "graph-cut": Explanation(
            means="The autograd graph ends between the loss and some parameters: a `detach`, a `.data`, a `no_grad` or "
            "a detour through numpy. They never get a gradient.",
            fix="Take the cut out, or move it behind the part that is to learn.",
        ),
        "tie-broken": Explanation(
            means="A head starts with the very values of the embedding in memory of its own: the two were to be one "
            "parameter and drift apart.",
            fix="Assign the parameter itself, after the last change to either: `head.weight = embedding.weight`.",
        ),
        "checkpoint-not-loaded": Explanation(
            means="A load with `strict=False` loaded nothing, or all but nothing: the names do not fit.",
            fix="Rename the keys (the verdict names the prefix that would fit), and look at what the load returns.",
        ),
        "optimizer-state-lost": Explanation(
            means="Weights were loaded to go on with, and the optimizer's averages start from 0.",
            fix="Save `optimizer.state_dict()` with the weights and load it, too.",
        ),
        "ema-broken": Explanation(
            means="The average of the weights is none: it shares its memory with them, or it never moves.",
            fix="Average into clones: `average.lerp_(weight, 1 - decay)`.",
        ),
        "double-softmax": Explanation(
            means="Probabilities go into a loss that takes logits. The loss cannot come near 0, gradients are small.",
            fix="Give the loss the values before the softmax.",
        ),
        "zero-init": Explanation(
            means="Weights start at 0 and stay there, because no gradient can move them.",
            detected="Weights that are all 0 at the start and still so after the first updates.",
            fix="Start weights at random; only biases, or a last layer alone, may start at 0.",
        ),
        "symmetric-init": Explanation(
            means="The rows of a weight start equal, get equal gradients and stay equal: many units compute one thing.",
            detected="Weights whose rows are bit for bit equal at the start and after the first updates.",
            fix="Start weights at random: `nn.init.kaiming_uniform_` instead of a constant.",
        ),
        "dead-units": Explanation(
            means="Units give 0 for every sample of every step that was looked at: nothing gets through them, forward "
            "or backward.",
            fix="Look at the start values before them: a bias near 0, weights at random; or use a leaky gate.",
        ),
        "exploding-activations": Explanation(
            means="Activations grow by a factor with every layer from the first step on.",
            detected="In the recorded step 0 the size of each layer's results is compared with that of the layer "
            "before: at least 1.5 times with every layer, and a thousandfold in all.",
            fix="Start weights smaller, with a variance of 2 / inputs for ReLU, or put norms between the layers.",
        ),
        "vanishing-gradients": Explanation(
            means="Gradients shrink by a factor with every layer on their way back: the first layers do not learn.",
            detected="In the first steps the size of a gradient element is compared from layer to layer: less than "
            "0.3 with each, and less than 1e-5 from the last to the first.",
            fix="Use ReLU or GELU instead of sigmoid or tanh, matching start values, residual connections, or norms.",
        ),
        "initial-loss": Explanation(
            means="The first loss is far above what guessing costs, because the head starts too large. The first "
            "hundreds of steps only make it smaller.",
            fix="Start the head with a standard deviation of 1 / sqrt(inputs) or below.",
        ),
        "batch-mixing": Explanation(
            means="The output for one sample depends on other samples of the batch, in eval mode: a reshape or a "
            "recurrent layer takes the batch for another dimension.",
            fix="Leave the dimension of the batch alone; permute before reshape; `batch_first=True`.",
        ),
        "wrong-backward": Explanation(
            means="An autograd function of your own has a backward that is not the derivative of its forward. Such "
            "a training often learns something all the same.",
            fix="Hold it against `torch.autograd.gradcheck` with fp64 inputs.",
        ),
        "affine-network": Explanation(
            means="Layers follow each other without a nonlinearity: together they can learn no more than one layer.",
            fix="Put a nonlinearity between them, such as `nn.ReLU()`.",
        ),
        "running-stats-frozen": Explanation(
            means="A norm never learns its running statistics: momentum 0, or eval mode while the model trains.",
            fix="Give it a momentum, or call `model.train()` after everything that calls `eval()`.",
        ),
        "running-stats-lost": Explanation(
            means="A norm learns its statistics in every forward, and somebody writes the old ones back.",
            fix="Keep the buffers that the forward leaves; put them back only when a step is skipped.",
        ),
        "tiny-norm-batch": Explanation(
            means="A norm over the batch takes its statistics from two samples or a handful of numbers: they are "
            "noise.",
            fix="Use a larger batch, SyncBatchNorm, or a norm that does not look at other samples.",
        ),
        "stochastic-eval": Explanation(
            means="The model draws random numbers in eval mode, so that its loss is another one each time.",
            fix="Hand the mode on: `F.dropout(x, p, training=self.training)`, or use `nn.Dropout`.",
        ),
        "train-eval-gap": Explanation(
            means="The same batch, with the same weights, is much worse in eval mode than in train mode.",
            fix="Look at the running statistics of the norms, and at code that asks for `self.training`.",
        ),
        "eval-loss-rising": Explanation(
            means="The evaluation loss rises while the training loss falls. That is a note, for overfitting is no "
            "fault; it is an error where the evaluation is not finite.",
            fix="Stop at the step that the finding names, or regularise. Where it is not finite: look at the data of "
            "the evaluation and at what the model does in eval mode only.",
        ),
    },
)

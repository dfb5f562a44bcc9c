"""Deaths of the process, memory, steps that do not repeat."""

from roundoff.diagnose.explained.explanation import Explanation, Family

PROCESS = Family(
    title="The process",
    explanations={
        "native-crash": Explanation(
            means="Native code ended the process with a signal such as SIGSEGV. The finding holds what was running, "
            "with the Python stack and, where gdb is installed, the native one.",
            detected="The parent process sees the signal that the child died of. What the child was doing is in a "
            "file mapped into memory that outlives it.",
            fix="Check what the named line passes on: shapes, indices, dtypes, memory that was freed. `--ops` names "
            "the very op, `--valgrind` the first bad access.",
        ),
        "killed": Explanation(
            means="The process got SIGKILL. A lack of memory is named only where there is evidence of one.",
            detected="The child got SIGKILL. Its size, the memory that was left and the kernel's count of such kills "
            "tell whether memory was short.",
            fix="Use less memory: a smaller batch, fewer workers, checkpointing; or ask who sent the signal.",
        ),
        "hang": Explanation(
            means="There was no progress for as long as `--hang-after` says. Of ranks that hang, the one is named that "
            "the others wait for.",
            detected="The process shows no progress for as long as `--hang-after` says; then its stacks are taken.",
            fix="Look at the stack: an op that never returns, a DataLoader worker, a collective that one rank missed.",
        ),
        "interrupted": Explanation(
            means="The training was asked to end from outside, by Ctrl-C or a scheduler.",
            detected="The signal that ended the child is one that asks for an end.",
            fix="Nothing, if that was wanted.",
        ),
        "invalid-access": Explanation(
            means="Under `--valgrind`: native code read or wrote memory that was never allocated or has been freed.",
            detected="Memcheck runs under the script; its reports are sorted by the first native frame that is not of "
            "the allocator.",
            fix="Mend the native frame that is named; the stack is among the evidence.",
        ),
        "native-leak": Explanation(
            means="Under `--valgrind`: native code lost memory that nothing points to any more.",
            detected="The same, from what memcheck counts as lost when the process ends.",
            fix="Free what the named frame allocates.",
        ),
        "exception": Explanation(
            means="An exception that nobody caught ended the training. Shapes, dtypes, devices and lack of memory are "
            "told apart, with the line of yours that it came through.",
            fix="See the finding: it depends on the kind. The step and its batch are saved for `roundoff replay`.",
        ),
        "graph-leak": Explanation(
            means="Tensors of past steps are kept together with their graphs and all activations in them.",
            detected="The memory of the process is followed; where it grows, containers and variables that grow with "
            "it are looked at, and these hold tensors with a graph.",
            fix="Keep numbers, not tensors: `loss.item()` or `loss.detach()`.",
        ),
        "memory-growth": Explanation(
            means="The memory of the process grows steadily, and not by graphs.",
            detected="The same, where no tensor with a graph is among what grows.",
            fix="Look at the lines that the finding names: lists that grow, caches without a limit.",
        ),
        "nondeterministic-step": Explanation(
            means="A step that was replayed from the same state, batch and generators came out differently: something "
            "draws on randomness or data that nobody seeded, or adds up in an order that changes.",
            fix="Draw from torch, numpy or random; `torch.use_deterministic_algorithms(True)` names ops whose order "
            "changes.",
        ),
    },
)

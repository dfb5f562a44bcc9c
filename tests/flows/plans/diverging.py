"""A small transformer that fp16 spoils twice: one attention overflows, and one loss has gradients that vanish.

The second attention multiplies queries and keys before it divides their product. The auxiliary loss is in square
metres, of lengths of some millimetres, and its head learns at a rate that fits that.
"""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import roundoff

VOCABULARY, WIDTH, LENGTH, BATCH = 16, 32, 12, 32


class Attention(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = (self.gain * q) @ (self.gain * k).transpose(1, 2)
        return self.out((scores / self.gain**2).softmax(-1) @ v)


class Block(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(WIDTH), Attention(gain)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class LengthLoss(nn.Module):
    """How far the predicted lengths are off, in square metres."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor, millimetres: Tensor) -> Tensor:
        return (1e-3 * (self.head(x.mean(1)) - millimetres)).square().mean()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(Block(1.0), Block(500.0), Block(1.0))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.length_loss = LengthLoss()

    def forward(self, tokens: Tensor, millimetres: Tensor) -> tuple[Tensor, Tensor]:
        x = self.blocks(self.embed(tokens))
        return self.head(x), self.length_loss(x.detach(), millimetres)


def main(num_steps: int) -> None:
    net = Net()
    others = [parameter for name, parameter in net.named_parameters() if not name.startswith("length_loss")]
    groups = [{"params": others}, {"params": net.length_loss.parameters(), "lr": 4e4}]
    net, optimizer = roundoff.apply_recipe(net, torch.optim.SGD(groups, lr=0.1, momentum=0.9), "half")
    off = torch.zeros(())
    for _ in range(num_steps):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
        millimetres = 3.0 + tokens[:, :8].float() / VOCABULARY
        logits, off = net(tokens, millimetres)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.roll(1, dims=1).flatten()) + off.float()
        optimizer.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    print(f"lengths are off by {1e3 * off.item() ** 0.5:.3f} mm")


main(int(sys.argv[1]))

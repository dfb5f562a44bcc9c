"""Small language models, a trainer that scores whole samples, and a second engine that makes them token by token.

The engine is another program: it has weights of its own in another format, a cache of keys and values, and decodes
batches with padding at the left. `write_pair` lets it sample, has the trainer score that, and writes both tables.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from roundoff.compare.logprobs.save_logprobs import save_logprobs

VOCAB, WIDTH, HEADS, EXPERTS, LONGEST = 64, 48, 4, 4, 128


class LoraLinear(nn.Module):
    """A linear layer with an adapter of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora_B(self.lora_A(x))

    def merged(self) -> nn.Linear:
        """Return one layer that computes the same."""
        layer = copy.deepcopy(self.base_layer)
        layer.weight.data += self.lora_B.weight @ self.lora_A.weight
        return layer


class Experts(nn.Module):
    """Two of four small networks for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(EXPERTS)
        )
        self.chosen: Tensor | None = None
        self.router_dtype: torch.dtype | None = None

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x)
        if self.router_dtype is not None:
            scores = F.linear(x.to(self.router_dtype), self.router.weight.to(self.router_dtype)).to(x.dtype)
        top, self.chosen = scores.topk(2, dim=-1)
        shares = torch.zeros_like(scores).scatter(-1, self.chosen, top.softmax(-1))
        return sum(shares[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class Block(nn.Module):
    """Attention with an optional cache, and a network."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv: nn.Module = nn.Linear(WIDTH, 3 * WIDTH)
        if kind == "lora":
            self.qkv = LoraLinear(self.qkv)
        self.proj = nn.Linear(WIDTH, WIDTH)
        mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.mlp = Experts() if kind == "moe" else mlp

    def forward(self, x: Tensor, mask: Tensor, cache: list[Tensor] | None) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min).softmax(-1)
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class SmallModel(nn.Module):
    """A decoder: `dense`, `moe` or `lora`."""

    def __init__(self, kind: str, num_layers: int = 3) -> None:
        super().__init__()
        self.kind = kind
        self.embed, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block(kind) for _ in range(num_layers))
        self.norm, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.15)
        nn.init.normal_(self.lm_head.weight, std=3.0 / math.sqrt(WIDTH))

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, caches: list[list[Tensor]] | None = None
    ) -> Tensor:
        x = self.embed(tokens) + self.places(positions)
        for number, block in enumerate(self.blocks):
            x = block(x, mask, None if caches is None else caches[number])
        return self.lm_head(self.norm(x).to(self.lm_head.weight.dtype)).float()

    def routing(self) -> Tensor | None:
        """Return the experts of the last call: samples by tokens by layers by two."""
        if self.kind != "moe":
            return None
        return torch.stack([block.mlp.chosen for block in self.blocks], dim=2)


@dataclass
class EngineSettings:
    """How the second engine computes, and what is wrong with it."""

    dtype: torch.dtype = torch.float32
    head_dtype: torch.dtype | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    batch_size: int = 4
    num_alone: int = 3
    attends_padding: bool = False
    mixes_batch: bool = False
    router_dtype: torch.dtype | None = None
    shift: int = 0
    retokenises: bool = False


@dataclass
class Sample:
    """What the engine made of one prompt."""

    prompt: list[int]
    padding: int
    batch_size: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    routing: list[Tensor] = field(default_factory=list)


def engine_weights(model: SmallModel, settings: EngineSettings, *, merges: bool = True) -> SmallModel:
    """Return the model as the engine has it: adapters merged, in its own format."""
    found = copy.deepcopy(model)
    for block in found.blocks:
        if isinstance(block.qkv, LoraLinear):
            block.qkv = block.qkv.merged() if merges else block.qkv.base_layer
        if isinstance(block.mlp, Experts):
            block.mlp.router_dtype = settings.router_dtype
    found = found.to(settings.dtype)
    found.lm_head.to(settings.head_dtype or settings.dtype)
    return found


@torch.no_grad()
def sample_all(model: SmallModel, prompts: list[list[int]], num_new: int, settings: EngineSettings) -> list[Sample]:
    """Let the engine continue every prompt: the first ones alone, the others batch by batch."""
    found: list[Sample] = []
    for prompt in prompts[: settings.num_alone]:
        found += _sample_batch(model, [prompt], num_new, settings)
    for begin in range(settings.num_alone, len(prompts), settings.batch_size):
        found += _sample_batch(model, prompts[begin : begin + settings.batch_size], num_new, settings)
    return found


def _sample_batch(model: SmallModel, prompts: list[list[int]], num_new: int, settings: EngineSettings) -> list[Sample]:
    longest = max(map(len, prompts))
    samples = [Sample(prompt, longest - len(prompt), len(prompts)) for prompt in prompts]
    padding = torch.tensor([sample.padding for sample in samples])
    tokens = torch.tensor([[0] * sample.padding + sample.prompt for sample in samples])
    caches: list[list[Tensor]] = [[] for _ in model.blocks]
    column = torch.arange(longest + num_new)
    is_real = column[None] >= padding[:, None]
    if settings.attends_padding:
        is_real = torch.ones_like(is_real)
    begin, end = 0, longest
    for _ in range(num_new):
        causal = column[None, :end] <= column[begin:end, None]
        mask = causal[None] & is_real[:, None, :end]
        mask[:, torch.arange(end - begin), torch.arange(begin, end)] = True
        positions = (column[begin:end] - padding[:, None]).clamp(min=0)
        logits = model(tokens[:, begin:end], positions, mask, caches)[:, -1]
        if settings.mixes_batch and len(samples) > 1:
            logits = 0.8 * logits + 0.2 * logits.mean(0)
        routing = model.routing()
        chosen = _choose(logits, samples, settings)
        for number, sample in enumerate(samples):
            sample.logits.append(logits[number].clone())
            if routing is not None:
                sample.routing.append(routing[number, -1].clone())
        tokens = torch.cat([tokens, chosen[:, None]], 1)
        begin, end = end, end + 1
    return samples


def _choose(logits: Tensor, samples: list[Sample], settings: EngineSettings) -> Tensor:
    """Process the logits as engines do, draw a token for each sample, and note its log-probability."""
    logits = logits.clone()
    for row, sample in zip(logits, samples, strict=True):
        counts = torch.bincount(torch.tensor(sample.tokens, dtype=torch.long), minlength=VOCAB)
        row -= settings.presence * (counts > 0) + settings.frequency * counts
        penalised = torch.where(row > 0, row / settings.repetition, row * settings.repetition)
        row.copy_(torch.where(counts > 0, penalised, row))
    logits /= settings.temperature
    if settings.top_k:
        logits[logits < logits.topk(settings.top_k).values[:, -1:]] = -math.inf
    if settings.top_p < 1:
        ordered, order = logits.sort(descending=True)
        sums = ordered.softmax(-1).cumsum(-1)
        cut = (sums - ordered.softmax(-1)) >= settings.top_p
        logits = ordered.masked_fill(cut, -math.inf).gather(-1, order.argsort(-1))
    logprobs = logits.log_softmax(-1)
    chosen = torch.multinomial(logprobs.exp(), 1)[:, 0]
    for number, sample in enumerate(samples):
        sample.tokens.append(int(chosen[number]))
        sample.logprobs.append(float(logprobs[number, chosen[number]]))
    return chosen


@torch.no_grad()
def score(model: SmallModel, sample: Sample) -> tuple[Tensor, Tensor | None]:
    """Return the trainer's logits for each new token, from one pass over the whole sample, and its experts."""
    tokens = torch.tensor([[*sample.prompt, *sample.tokens[:-1]]])
    length = tokens.shape[1]
    logits = model(tokens, torch.arange(length)[None], torch.ones(length, length).tril().bool()[None])
    routing = model.routing()
    begin = len(sample.prompt) - 1
    return logits[0, begin:], None if routing is None else routing[0, begin:]


def make_prompts(num: int, generator: torch.Generator) -> list[list[int]]:
    """Return prompts of several lengths."""
    lengths = torch.randint(3, 14, (num,), generator=generator).tolist()
    return [torch.randint(0, VOCAB, (length,), generator=generator).tolist() for length in lengths]


def write_pair(
    folder: Path,
    *,
    kind: str = "dense",
    seed: int = 0,
    settings: EngineSettings | None = None,
    engine: SmallModel | None = None,
    model: SmallModel | None = None,
    trainer_dtype: torch.dtype = torch.float32,
    detail: str = "logits",
    num_samples: int = 17,
    num_new: int = 32,
    trainer_version: int | None = None,
    engine_version: int | None = None,
    has_weights: bool = False,
    merges: bool = True,
    suffixes: tuple[str, str] = (".parquet", ".jsonl"),
) -> tuple[Path, Path]:
    """Let the engine sample, score the samples in the trainer, and write both tables.

    Args:
        folder: for the tables.
        kind: of model.
        seed: of weights, prompts and samples.
        settings: of the engine.
        engine: its weights; by default those of the model.
        model: the trainer's; by default a new one.
        trainer_dtype: what it computes in.
        detail: what else both tables hold: `logits`, `top` or nothing.
        num_samples: how many.
        num_new: how many tokens each gets.
        trainer_version: of its weights.
        engine_version: of its weights.
        has_weights: whether fingerprints are written.
        merges: whether the engine merges adapters.
        suffixes: of the tables.
    """
    torch.manual_seed(seed)
    settings = settings or EngineSettings()
    model = model or SmallModel(kind)
    trainer = copy.deepcopy(model).to(trainer_dtype)
    served = engine or engine_weights(model, settings, merges=merges)
    samples = sample_all(served, make_prompts(num_samples, torch.Generator().manual_seed(seed)), num_new, settings)
    trainer_path, rollout_path = folder / f"trainer{suffixes[0]}", folder / f"rollout{suffixes[1]}"
    scored = [score(trainer, sample) for sample in samples]
    tokens = torch.tensor([sample.tokens for sample in samples])
    logits = torch.stack([each for each, _ in scored])
    names = list(range(len(samples)))
    save_logprobs(
        trainer_path, tokens, logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0], sample=names,
        version=trainer_version, routing=torch.stack([each for _, each in scored]) if kind == "moe" else None,
        model=trainer, weights=trainer if has_weights else None, **_detail(detail, logits),
    )  # fmt: skip
    logits = torch.stack([torch.stack(sample.logits) for sample in samples])
    logprobs = torch.tensor([sample.logprobs for sample in samples]).roll(-settings.shift, 1)
    if settings.retokenises:
        tokens[::2, 10:] = torch.cat([(tokens[::2, 10:11] + 1) % VOCAB, tokens[::2, 10:-1]], 1)
    save_logprobs(
        rollout_path, tokens, logprobs, sample=names, version=engine_version,
        padding=[sample.padding for sample in samples], batch_size=[sample.batch_size for sample in samples],
        routing=torch.stack([torch.stack(sample.routing) for sample in samples]) if kind == "moe" else None,
        model=served, weights=served if has_weights else None, **_detail(detail, logits),
    )  # fmt: skip
    return trainer_path, rollout_path


def _detail(detail: str, logits: Tensor) -> dict[str, Any]:
    if detail == "logits":
        return {"logits": logits}
    if detail == "top":
        values, ids = logits.log_softmax(-1).topk(16)
        return {"top_tokens": ids, "top_logprobs": values}
    return {}


@torch.no_grad()
def train_a_little(model: SmallModel, *, size: float = 0.02, seed: int = 1) -> SmallModel:
    """Return the model after updates that move every weight by this part of its norm."""
    generator = torch.Generator().manual_seed(seed)
    found = copy.deepcopy(model)
    for parameter in found.parameters():
        change = torch.randn(parameter.shape, generator=generator)
        parameter += size * parameter.norm() / change.norm() * change
    return found

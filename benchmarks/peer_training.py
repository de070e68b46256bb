"""The training loops for comparison: a plain GPT as nanoGPT trains it, and a LLaMA of `transformers`.

Both are written from the behaviour of those projects, with torch and numpy (the second also with `transformers`):
pre-norm blocks with LayerNorm, learned positions, exact GELU and a tied head; batches cut at random places of one file
of tokens; AdamW with decay for matrices, clipping at 1.0, a warm-up and a cosine; on a GPU bfloat16 autocast and
torch.compile.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """A network and its batch.

    Attributes:
        n_layer, n_head, d_model, vocab_size, context: shape of the network; the head has vocab_size rows.
        rows: sequences per batch.
    """

    n_layer: int
    n_head: int
    d_model: int
    vocab_size: int
    context: int
    rows: int

    @property
    def tokens(self) -> int:
        """Tokens per batch."""
        return self.rows * self.context


@dataclass(frozen=True)
class Recipe:
    """Settings of the loop; the defaults are nanoGPT's for a small network on characters.

    Attributes:
        fused: use the fused AdamW kernel; nanoGPT does so on a GPU only.
    """

    steps: int = 2000
    lr: float = 1e-3
    min_lr: float = 1e-4
    warmup: int = 100
    beta2: float = 0.99
    weight_decay: float = 0.1
    fused: bool = False


class PlainBlock(nn.Module):
    """Attention and feed-forward, each with pre-norm and a residual connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d = shape.d_model
        self.n_head = shape.n_head
        self.norm_1, self.norm_2 = nn.LayerNorm(d, bias=False), nn.LayerNorm(d, bias=False)
        self.qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n_rows, n_tokens, d = x.shape
        parts = self.qkv(self.norm_1(x)).split(d, dim=2)
        q, k, v = (part.view(n_rows, n_tokens, self.n_head, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).contiguous().view(n_rows, n_tokens, d))
        grown: Tensor = x + self.down(F.gelu(self.up(self.norm_2(x))))
        return grown


class PlainGPT(nn.Module):
    """A GPT that maps token ids and next ids to the mean loss."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab_size, shape.d_model)
        self.places = nn.Embedding(shape.context, shape.d_model)
        self.blocks = nn.ModuleList(PlainBlock(shape) for _ in range(shape.n_layer))
        self.norm = nn.LayerNorm(shape.d_model, bias=False)
        self.head = nn.Linear(shape.d_model, shape.vocab_size, bias=False)
        self.tokens.weight = self.head.weight
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                writes = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * shape.n_layer) if writes else 0.02)

    def logits(self, ids: Tensor) -> Tensor:
        """Return the logits of the next id at every position."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(self.norm(x))
        return found

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        logits = self.logits(ids)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class LlamaLoss(nn.Module):
    """A LLaMA of `transformers` with the width of a shape, as a loss."""

    def __init__(self, shape: Shape, d_ff: int) -> None:
        super().__init__()
        import transformers

        config = transformers.LlamaConfig(
            vocab_size=shape.vocab_size, hidden_size=shape.d_model, intermediate_size=d_ff,
            num_hidden_layers=shape.n_layer, num_attention_heads=shape.n_head,
            max_position_embeddings=shape.context, rms_norm_eps=1e-6, tie_word_embeddings=True,
            attn_implementation="sdpa",
        )  # fmt: skip
        self.network = transformers.LlamaForCausalLM(config)

    def logits(self, ids: Tensor) -> Tensor:
        """Return the logits of the next id at every position."""
        found: Tensor = self.network(ids, use_cache=False).logits
        return found

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        logits = self.logits(ids)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class PlainLoop:
    """The training loop.

    Args:
        network: maps (ids, targets) to the mean loss.
        tokens: file of uint16 token ids.
        shape: rows and context of a batch.
        recipe: settings of the loop.
        device: "cpu" or "cuda".
    """

    def __init__(self, network: nn.Module, tokens: Path, shape: Shape, recipe: Recipe, device: str = "cpu") -> None:
        self.shape, self.recipe, self.device, self.tokens = shape, recipe, device, tokens
        self.network = network.to(device).train()
        self.loss: Any = torch.compile(self.network) if device == "cuda" else self.network
        matrices = [one for one in self.network.parameters() if one.dim() >= 2]
        vectors = [one for one in self.network.parameters() if one.dim() < 2]
        groups = [
            {"params": matrices, "weight_decay": recipe.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        how: dict[str, bool] = {"fused": True} if recipe.fused or device == "cuda" else {}
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, recipe.beta2), **how)
        self.random = torch.Generator().manual_seed(1337)
        self.done = 0

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return rows from random places of the file, which is mapped at each call as in nanoGPT."""
        data = np.memmap(self.tokens, dtype=np.uint16, mode="r")
        context = self.shape.context
        starts = torch.randint(len(data) - context, (self.shape.rows,), generator=self.random).tolist()
        ids, targets = (
            torch.stack([torch.from_numpy(data[start + shift :][:context].astype(np.int64)) for start in starts])
            for shift in (0, 1)
        )
        if self.device == "cuda":
            return tuple(one.pin_memory().to(self.device, non_blocking=True) for one in (ids, targets))  # type: ignore[return-value]
        return ids, targets

    def learning_rate(self, done: float) -> float:
        """Return the learning rate after `done` steps."""
        recipe = self.recipe
        if done < recipe.warmup:
            return recipe.lr * (done + 1) / (recipe.warmup + 1)
        progress = min(1.0, (done - recipe.warmup) / max(1, recipe.steps - recipe.warmup))
        return recipe.min_lr + 0.5 * (1 + math.cos(math.pi * progress)) * (recipe.lr - recipe.min_lr)

    def step(self, batch: tuple[Tensor, Tensor] | None = None, lr: float | None = None) -> float:
        """Take one step; returns its loss."""
        ids, targets = self.batch() if batch is None else batch
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(self.done) if lr is None else lr
        with self._autocast():
            loss = self.loss(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.done += 1
        return float(loss.detach())

    @torch.no_grad()
    def evaluate(self, ids: np.ndarray) -> float:
        """Return the mean loss over windows (n, context + 1)."""
        losses = []
        for first in range(0, len(ids), self.shape.rows):
            rows = torch.from_numpy(ids[first : first + self.shape.rows].astype(np.int64)).to(self.device)
            with self._autocast():
                losses.append(float(self.network(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())) * len(rows))
        return sum(losses) / len(ids)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast("cuda", torch.bfloat16) if self.device == "cuda" else contextlib.nullcontext()

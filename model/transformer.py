"""A decoder-only Transformer: token ids in, logits of the next token out.

Pre-norm blocks with a final LayerNorm, fused query-key-value projection, GELU feed-forward, learned or
sinusoidal positions, tied or untied head. Attention goes through torch's scaled_dot_product_attention with
is_causal and no explicit mask wherever that is possible, because only then the fast kernels are chosen on
every device.

Shapes in comments: B rows, T tokens, D d_model, H heads, V vocabulary.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cache import CacheStep, KVCache
from .config import ModelConfig


def sinusoidal_table(n_positions: int, d_model: int, base: float = 10000.0) -> Tensor:
    """Fixed position vectors (Vaswani et al. 2017, section 3.5).

    Column 2i is sin(p / base^(2i / d_model)), column 2i+1 the cosine of the same angle; computed in float64,
    because a float32 angle of a late position has already lost digits.

    Returns:
        (n_positions, d_model) float32.
    """
    position = torch.arange(n_positions, dtype=torch.float64)[:, None]
    frequency = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(base) / d_model))
    angle = position * frequency  # (n_positions, D/2)
    return torch.stack((angle.sin(), angle.cos()), dim=2).reshape(n_positions, d_model).float()


class Attention(nn.Module):
    """Causal multi-head self-attention: (B, T, D) -> (B, T, D)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model, bias=config.bias)
        self.proj = nn.Linear(config.d_model, config.d_model, bias=config.bias)

    def forward(self, x: Tensor, layer: int, cache: KVCache | None, step: CacheStep | None) -> Tensor:
        n_rows, n_new, width = x.shape
        heads = self.qkv(x).view(n_rows, n_new, 3, self.n_head, width // self.n_head)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # each (B, H, T, D/H)
        mask = None
        if cache is not None and step is not None:
            k, v = cache.write(layer, step, k, v)
            mask = step.mask
        mixed = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask is None,
        )
        return self.proj(mixed.transpose(1, 2).reshape(n_rows, n_new, width))


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them: (B, T, D) -> (B, T, D)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.d_model, config.ff_dim, bias=config.bias)
        self.down = nn.Linear(config.ff_dim, config.d_model, bias=config.bias)
        self.approximate = "tanh" if config.act == "gelu_tanh" else "none"

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class Block(nn.Module):
    """Attention and feed-forward, each behind a LayerNorm and beside a residual path."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.d_model, eps=config.norm_eps, bias=config.bias)
        self.attention = Attention(config)
        self.norm_mlp = nn.LayerNorm(config.d_model, eps=config.norm_eps, bias=config.bias)
        self.mlp = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, layer: int, cache: KVCache | None, step: CacheStep | None) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_attention(x), layer, cache, step))
        return x + self.dropout(self.mlp(self.norm_mlp(x)))


class Transformer(nn.Module):
    """The network.

    Args:
        config: its shape. Initial weights are drawn from torch's global generator; seed that for a given
            start.
    """

    position_table: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        if config.pos == "learned":
            self.position_table = nn.Parameter(torch.empty(config.max_seq_len, config.d_model))
        else:
            table = sinusoidal_table(config.max_seq_len, config.d_model, config.pos_base)
            self.register_buffer("position_table", table, persistent=False)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps, bias=config.bias)
        # A tied head is no module of its own, so that the shared matrix is stored once.
        self.untied_head = None if config.tie_weights else nn.Linear(config.d_model, config.vocab_size, bias=False)
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        std = self.config.init_std
        # Each block adds two branches to the residual stream; this keeps its variance independent of depth
        # (Radford et al. 2019, section 2.3).
        residual_std = std / math.sqrt(2 * self.config.n_layer)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue  # LayerNorms start at gain 1 and shift 0 already, biases are set below
            is_residual = name.endswith(("attention.proj.weight", "mlp.down.weight"))
            parameter.normal_(0.0, residual_std if is_residual else std)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()

    def forward(self, ids: Tensor, *, cache: KVCache | None = None, lengths: Tensor | None = None) -> Tensor:
        """Logits of the next token at every position.

        Args:
            ids: (B, T) int64 token ids.
            cache: keys and values read so far; the ids continue each row at that row's own length.
            lengths: (B,) valid ids of each row where rows are right-padded; only with a cache. Logits at
                padding mean nothing.

        Returns:
            (B, T, V) logits.

        Raises:
            ValueError: the sequence is longer than max_seq_len or than the cache has room for.
        """
        return self.head(self.features(ids, cache=cache, lengths=lengths))

    def features(self, ids: Tensor, *, cache: KVCache | None = None, lengths: Tensor | None = None) -> Tensor:
        """The normalised hidden states (B, T, D) that the head reads; arguments as for forward."""
        n_rows, n_new = ids.shape
        if n_new > self.config.max_seq_len:
            raise ValueError(
                f"a sequence of {n_new} tokens is longer than max_seq_len={self.config.max_seq_len}; "
                f"cut it, or train a model with a longer context"
            )
        step = None if cache is None else cache.plan(n_rows, n_new)
        positions = self.position_table[:n_new] if step is None else self.position_table[step.positions]
        x = self.dropout(self.token_embedding(ids) + positions)  # (B, T, D)
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, cache, step)
        if cache is not None:
            cache.advance(n_new, lengths)
        return self.norm(x)

    def head(self, features: Tensor) -> Tensor:
        """Logits (..., V) of hidden states (..., D)."""
        return F.linear(features, self.head_weight)

    @property
    def head_weight(self) -> Tensor:
        """The head's matrix (V, D): the token embedding's if they are tied."""
        return self.token_embedding.weight if self.untied_head is None else self.untied_head.weight

"""Configuration of the network, one frozen dataclass for all architectures; `presets` has the well-known ones."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Self

from .config import Settings, check_number, setting

DEFAULT_POS_BASE = 10000.0
# fields that `ModelConfig.stretched` may change
STRETCH_FIELDS = ("max_seq_len", "pos_base", "rope_scaling", "rope_factor", "rope_original_len", "rope_ramp")


@dataclasses.dataclass(frozen=True)
class ModelConfig(Settings):
    """The shape of a decoder-only Transformer.

    A field whose default is None is derived from the others where it has an effect, and refused where it has none.

    Args:
        vocab_size: number of token ids.
        max_seq_len: longest sequence (context), in tokens, at least 2.
        n_layer: number of blocks.
        n_head: attention (query) heads per block.
        d_model: width of the residual stream.
        d_ff: width inside the feed-forward layer; None means 4 * d_model.
        n_kv_head: heads of keys and values, shared by groups of query heads; divides n_head. None means n_head.
        head_dim: width of a head; None means d_model / n_head.
        pos: "learned" or "sinusoidal" positions added to the embedding, "rope" (queries and keys are
            rotated, Su et al. 2021) or "none".
        pos_base: base of the wavelengths of sinusoidal and rotary positions; None means 10000.
        rope_layout: columns of a head that form a rotated pair: "half" (i and i + rope_dim / 2, as in most published
            checkpoints) or "interleaved" (2i and 2i + 1). None means "half".
        rope_dim: rotated columns of each head, the first ones, an even number; None means all.
        rope_scaling: stretching of the wavelengths for longer contexts: "none", "linear" (all of them, Chen et al.
            2023), "ntk" (by a larger base), "yarn" (Peng et al. 2023) or "llama3" (the long ones, Llama 3.1).
        rope_factor: factor of that stretching, above 1 with any scaling.
        rope_original_len: context before scaling; needed by "yarn" and "llama3".
        unrotated_every: every so many layers one has no positions at all, the last of them; None means that all have.
        rope_ramp: turns within rope_original_len below which a pair is fully stretched and above which not at all; None
            means (1, 32) for "yarn" and (1, 4) for "llama3".
        norm: kind of norm, "layernorm" or "rmsnorm".
        norm_order: "pre" (a branch reads the normalised stream), "post" (the sum is normalised, as in 2017) or "both"
            (as "pre", and the output of a branch is normalised before it is added, as in Gemma 3).
        norm_eps: epsilon inside the norms' root.
        norm_bias: bias of each LayerNorm; None means True for "layernorm".
        final_norm: norm before the head.
        qk_norm: RMSNorm on each head's queries and keys.
        window: size of the sliding attention window in tokens, the token itself included; None means no window.
        full_every: every so many layers one has no window, the last of them; None means that all have it.
        window_pos_base: base of the rotary positions of layers with a window, which are not scaled; None means that all
            layers have the same positions.
        act: activation of the feed-forward layer, "gelu" (exact, by erf), "gelu_tanh" (its tanh approximation), "relu",
            "relu2" (squared), "swiglu" or "geglu" (gated by SiLU or gelu_tanh).
        attn_bias: biases in the four projections of attention.
        qkv_bias: biases of queries, keys and values, where they differ from the output's; None means attn_bias.
        ffn_bias: biases in the feed-forward layer.
        head_bias: a bias on the logits.
        embed_scale: the token embedding is multiplied by sqrt(d_model).
        tie_weights: the output head shares the token embedding's matrix.
        vocab_multiple: multiple to which the rows of the token tables are padded; padded logits are -inf.
        drop_embed: dropout of the embedding with its position.
        drop_attn: dropout of the attention weights.
        drop_ffn: dropout after the feed-forward activation.
        drop_resid: dropout of the attention branch before it joins the residual stream, and of the feed-forward branch.
        drop_resid_mlp: dropout of the feed-forward branch, where it differs; None means drop_resid.
        init: initial weights, "normal", "xavier" (Glorot and Bengio 2010; embeddings stay normal) or "inverse_cdf"
            (normal, by the inverse of the cumulative distribution at uniform numbers).
        init_std: standard deviation of normal initial weights.
        init_residual_scaling: divide the two projections that write to the residual stream by sqrt(2 * n_layer).
    """

    vocab_size: int = setting(dataclasses.MISSING, ge=1)
    max_seq_len: int = setting(256, ge=2)
    n_layer: int = setting(4, ge=1)
    n_head: int = setting(4, ge=1)
    d_model: int = setting(128, ge=1)
    d_ff: int = setting(ge=1)
    n_kv_head: int = setting(ge=1)
    head_dim: int = setting(ge=1)
    pos: str = setting("learned", choices=("learned", "sinusoidal", "rope", "none"))
    pos_base: float = setting(gt=1)
    rope_layout: str = setting(choices=("half", "interleaved"))
    rope_dim: int = setting(ge=2)
    rope_scaling: str = setting("none", choices=("none", "linear", "ntk", "yarn", "llama3"))
    rope_factor: float = 1.0
    rope_original_len: int = setting(ge=1)
    rope_ramp: tuple[float, float] = setting()
    unrotated_every: int | None = setting(ge=2)
    norm: str = setting("layernorm", choices=("layernorm", "rmsnorm"))
    norm_order: str = setting("pre", choices=("pre", "post", "both"))
    norm_eps: float = setting(1e-5, gt=0, le=1)
    norm_bias: bool = setting()
    final_norm: bool = True
    qk_norm: bool = False
    window: int | None = setting(ge=1)
    full_every: int | None = setting(ge=2)
    window_pos_base: float | None = setting(gt=1)
    act: str = setting("gelu", choices=("gelu", "gelu_tanh", "relu", "relu2", "swiglu", "geglu"))
    attn_bias: bool = True
    qkv_bias: bool = setting()
    ffn_bias: bool = True
    head_bias: bool = False
    embed_scale: bool = False
    tie_weights: bool = True
    vocab_multiple: int = setting(1, ge=1)
    drop_embed: float = setting(0.0, ge=0, lt=1)
    drop_attn: float = setting(0.0, ge=0, lt=1)
    drop_ffn: float = setting(0.0, ge=0, lt=1)
    drop_resid: float = setting(0.0, ge=0, lt=1)
    drop_resid_mlp: float | None = setting(ge=0, lt=1)
    init: str = setting("normal", choices=("normal", "xavier", "inverse_cdf"))
    init_std: float = setting(0.02, gt=0)
    init_residual_scaling: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.resolve("qkv_bias", self.attn_bias)
        self.resolve("d_ff", 4 * self.d_model)
        self._check_heads()
        self._check_positions()
        if self.norm == "rmsnorm":
            self.refuse(["norm_bias"], "norm='rmsnorm' has a gain only")
        else:
            self.resolve("norm_bias", True)
        if self.window is not None and self.window > self.max_seq_len:
            raise ValueError(
                f"window={self.window} is longer than max_seq_len={self.max_seq_len} and would mask nothing; leave it "
                f"out"
            )

        if self.window is None:
            self.refuse(["full_every"], "no layer has a window")
        if self.full_every is None:
            self.refuse(["window_pos_base"], "no layers differ by a window")

    @property
    def is_gated(self) -> bool:
        """True if the feed-forward layer has a third matrix."""
        return self.act in ("swiglu", "geglu")

    def has_window(self, layer: int) -> bool:
        """Return True if a layer, counted from 0, attends within the window."""
        return self.window is not None and (self.full_every is None or (layer + 1) % self.full_every > 0)

    def is_rotated(self, layer: int) -> bool:
        """Return True if a layer, counted from 0, has rotary positions."""
        return self.pos == "rope" and (self.unrotated_every is None or (layer + 1) % self.unrotated_every > 0)

    def _check_heads(self) -> None:
        if self.head_dim is None and self.d_model % self.n_head:
            raise ValueError(
                f"d_model={self.d_model} is not divisible by n_head={self.n_head}; choose a d_model that is a multiple "
                f"of n_head, or give head_dim"
            )
        self.resolve("head_dim", self.d_model // self.n_head)
        self.resolve("n_kv_head", self.n_head)
        if self.n_head % self.n_kv_head:
            raise ValueError(
                f"n_head={self.n_head} query heads cannot share n_kv_head={self.n_kv_head} heads evenly; choose an "
                f"n_kv_head that divides n_head"
            )

    def _check_positions(self) -> None:
        if self.pos in ("learned", "none"):
            self.refuse(["pos_base"], f"pos={self.pos!r} has no wavelengths")
        else:
            self.resolve("pos_base", DEFAULT_POS_BASE)
        if self.pos == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"d_model={self.d_model} is odd, but sinusoidal positions come in pairs; use an even d_model"
            )
        if self.pos != "rope":
            rope = ["rope_layout", "rope_dim", "rope_scaling", "rope_factor", "rope_original_len", "rope_ramp"]
            rope += ["unrotated_every", "window_pos_base"]
            self.refuse(rope, f"nothing is rotated with pos={self.pos!r}")
            return
        self.resolve("rope_layout", "half")
        if self.rope_dim is None and self.head_dim % 2:
            raise ValueError(
                f"head_dim={self.head_dim} is odd, but rotation needs pairs; use an even head_dim, or set "
                f"rope_dim={self.head_dim - 1} to leave the last column as it is"
            )
        self.resolve("rope_dim", self.head_dim)
        if self.rope_dim % 2 or self.rope_dim > self.head_dim:
            raise ValueError(
                f"rope_dim={self.rope_dim}; expected an even number up to head_dim={self.head_dim}, because "
                f"columns are rotated in pairs"
            )
        self._check_rope_scaling()

    def _check_rope_scaling(self) -> None:
        if self.rope_scaling == "none":
            self.refuse(["rope_factor", "rope_original_len", "rope_ramp"], "rope_scaling='none' stretches nothing")
            return
        check_number("rope_factor", self.rope_factor, 1.0, math.inf, open_low=True)
        if self.rope_scaling in ("linear", "ntk"):
            self.refuse(["rope_original_len", "rope_ramp"], f"rope_scaling={self.rope_scaling!r} has no ramp")
            if self.rope_scaling == "ntk" and self.rope_dim == 2:
                raise ValueError(
                    "rope_scaling='ntk' stretches all pairs but the first, and rope_dim=2 has only that one"
                )
            return
        if self.rope_original_len is None:
            raise ValueError(
                f"rope_scaling={self.rope_scaling!r} needs rope_original_len, the context the weights were trained with"
            )
        self.resolve("rope_ramp", (1.0, 32.0) if self.rope_scaling == "yarn" else (1.0, 4.0))
        ramp = self.rope_ramp
        if not isinstance(ramp, list | tuple) or len(ramp) != 2:
            raise ValueError(f"rope_ramp={ramp!r}; expected two numbers of turns such as (1.0, 32.0)")
        check_number("rope_ramp", ramp[0], 0.0, math.inf, open_low=True)
        check_number("rope_ramp", ramp[1], ramp[0], math.inf, open_low=True)
        object.__setattr__(self, "rope_ramp", tuple(ramp))

    def stretched(self, **changes: Any) -> Self:
        """Return this configuration with another context length, for the same weights.

        Args:
            changes: values of STRETCH_FIELDS. With rope_scaling, rope_original_len defaults to the context before any
                scaling, and rope_factor to the new context divided by it.

        Raises:
            ValueError: the positions are learned, so that each is a row of weights, or a value is not allowed.
        """
        if self.pos == "learned" and changes.get("max_seq_len", self.max_seq_len) != self.max_seq_len:
            raise ValueError(
                f"max_seq_len={changes['max_seq_len']}, but there are weights for max_seq_len={self.max_seq_len} "
                f"learned positions; only positions that are computed can be stretched"
            )
        scaling: dict[str, Any] = {}
        if kind := changes.get("rope_scaling"):
            original = self.rope_original_len or round(self.max_seq_len / self.rope_factor)
            factor = changes.get("max_seq_len", self.max_seq_len) / original
            scaling = {"rope_factor": 1.0 if kind == "none" else factor, "rope_ramp": None}
            scaling["rope_original_len"] = original if kind in ("yarn", "llama3") else None
        if self.window is not None:  # a shorter context may be below it
            scaling["window"] = min(self.window, changes.get("max_seq_len", self.max_seq_len))
        return dataclasses.replace(self, **{**scaling, **changes})

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the token table."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

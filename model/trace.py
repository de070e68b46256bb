"""All intermediate values of one sequence, the network's operators by name, and the local gain of each component.

The network is described as a system whose state is the residual stream: h_0 = position(embedding(ids)),
h_l = block_l(h_l-1) and logits = out(norm(h_L)). Values are recorded during a real forward pass, except scores and
weights of attention, which fused kernels do not hold and which are computed by the formula. Mode, gradients, random
state and weights of the network are not changed.

Shapes in comments: T tokens, D d_model, H query heads, K key-value heads, E head_dim, V vocabulary, L blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from .metrics import NllSum
from .transformer import Block, Transformer, evaluating

# Memory of scores and weights is quadratic in the length.
MAX_TRACED_TOKENS = 256

State = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Step:
    """One intermediate value.

    Attributes:
        block: number of its block, from 1; None outside the blocks.
        kind: name within the block, such as "weights".
        tensor: the value, without a batch axis.
    """

    block: int | None
    kind: str
    tensor: Tensor

    @property
    def name(self) -> str:
        """Full name, such as "embedding" or "block_1.weights"."""
        return self.kind if self.block is None else f"block_{self.block}.{self.kind}"


@dataclass(frozen=True)
class Trace:
    """Intermediate values and predictions of one sequence.

    Attributes:
        ids: (T,) int64.
        steps: all intermediate values, in the order of computation.
        mask: (T, T) bool, True where a token (row) attends to another (column), in any layer.
        hidden: (L + 1, T, D) states h_0 to h_L of the residual stream.
        log_probs: (T, V) float64 log-probabilities of the next token at every position.
        conditionals: (T - 1,) float64 log-probability of each id after the first.
    """

    ids: Tensor
    steps: list[Step]
    mask: Tensor
    hidden: Tensor
    log_probs: Tensor
    conditionals: Tensor

    def __getitem__(self, name: str) -> Tensor:
        """Return the value of a step by its name."""
        for step in self.steps:
            if step.name == name:
                return step.tensor
        raise KeyError(f"no step {name!r}; there are {', '.join(step.name for step in self.steps)}")

    @property
    def weights(self) -> Tensor:
        """(L, H, T, T) attention weights of every block and head."""
        return torch.stack([step.tensor for step in self.steps if step.kind == "weights"])

    @property
    def increments(self) -> Tensor:
        """(L, T, D) change of the residual stream by each block, h_l - h_l-1."""
        return self.hidden[1:] - self.hidden[:-1]

    @property
    def score(self) -> NllSum:
        """Negative log-likelihood of the sequence given its first id: the negative sum of the conditionals."""
        return NllSum(-float(self.conditionals.sum()), len(self.conditionals))

    def top(self, position: int, n: int) -> tuple[Tensor, Tensor]:
        """Return the n likeliest next ids at a position and their log-probabilities, best first."""
        found = self.log_probs[position].topk(min(n, self.log_probs.shape[1]))
        return found.indices, found.values


def operators(model: Transformer, n_tokens: int) -> dict[str, State]:
    """Return the network as a chain of functions by name: embedding, position, block_1 .. block_L, norm, out.

    Their composition on ids (B, n_tokens) gives the model's logits, bit for bit in evaluation mode. "norm" is the
    identity in a network without final norm.

    Args:
        model: the network.
        n_tokens: length T of the sequences, which determines positions and mask.

    Raises:
        ValueError: n_tokens is above max_seq_len.
    """
    device = model.token_embedding.weight.device
    ctx = model.plan(torch.zeros(1, n_tokens, dtype=torch.int64, device=device))
    blocks = {f"block_{n}": partial(block, layer=n - 1, ctx=ctx.of(n - 1)) for n, block in enumerate(model.blocks, 1)}
    place = partial(model.place, ctx=ctx)
    return {"embedding": model.embed, "position": place, **blocks, "norm": model.norm, "out": model.head}


def trace(model: Transformer, ids: Sequence[int] | Tensor) -> Trace:
    """Run the network over one sequence in evaluation mode and keep every intermediate value.

    Args:
        model: the network, in any mode.
        ids: (T,) token ids.

    Raises:
        ValueError: there are no ids or more than MAX_TRACED_TOKENS or max_seq_len, or one is outside the vocabulary.
    """
    tokens = traceable_ids(model, ids)
    steps = [Step(None, "ids", tokens)]

    def keep(layer: int | None, kind: str, value: Tensor) -> None:
        batched = layer is not None or kind not in ("position", "rotation")  # position tables have no batch axis
        steps.append(Step(None if layer is None else layer + 1, kind, (value[0] if batched else value).detach()))

    with evaluating(model), torch.no_grad():
        logits = model.head(model.features(tokens[None], record=keep))[0]
        ctx = model.plan(tokens[None])
        masks = [own.mask for own in ctx.layers or (ctx,)]
        log_probs = logits[:, : model.config.vocab_size].double().log_softmax(dim=-1)
        keep(None, "logits", logits[None])
        keep(None, "probabilities", log_probs.exp()[None])
    seen = torch.ones(len(tokens), len(tokens), dtype=torch.bool, device=tokens.device).tril()
    if all(isinstance(mask, Tensor) for mask in masks):
        seen = torch.stack([mask == 0 for mask in masks if isinstance(mask, Tensor)]).any(0)
    first = next(step.tensor for step in steps if step.kind == "sum")
    states = [first, *(step.tensor for step in steps if step.kind == "output")]
    conditionals = log_probs[:-1].gather(1, tokens[1:, None])[:, 0]
    return Trace(tokens, steps, seen, torch.stack(states), log_probs, conditionals)


def traceable_ids(model: Transformer, ids: Sequence[int] | Tensor) -> Tensor:
    """Return the ids as a tensor (T,) on the model's device.

    Raises:
        ValueError: as for `trace`.
    """
    tokens = torch.as_tensor(ids, dtype=torch.int64, device=model.token_embedding.weight.device)
    if tokens.dim() != 1 or not len(tokens):
        raise ValueError(f"found ids of the shape {tuple(tokens.shape)}; a trace needs one sequence of at least one id")
    limit = min(MAX_TRACED_TOKENS, model.config.max_seq_len)
    if len(tokens) > limit:
        raise ValueError(
            f"the sequence has {len(tokens)} tokens; a trace takes at most {limit} (the model's context, and "
            f"{MAX_TRACED_TOKENS} in any case): cut it"
        )
    if int(tokens.min()) < 0 or int(tokens.max()) >= model.config.vocab_size:
        raise ValueError(
            f"the ids lie between {int(tokens.min())} and {int(tokens.max())}, but vocab_size is "
            f"{model.config.vocab_size}; the ids were made with another tokeniser than the model's"
        )
    return tokens


@dataclass(frozen=True)
class Gain:
    """Local gain of one component f of the network for a perturbation u of its input x.

    Attributes:
        component: name, such as "block_1.attention".
        direction: "state" (u along x) or "random" (a fixed random u).
        gain: |J u| / |u| with the Jacobian J of f at x.
        deviation: |f(x + u) - f(x) - J u| relative to the larger of |J u| and |f(x + u) - f(x)|; 0 for a linear
            component.
        nonlinear: nonlinear operations in the component.
    """

    component: str
    direction: str
    gain: float
    deviation: float
    nonlinear: tuple[str, ...]


def local_gains(model: Transformer, ids: Sequence[int] | Tensor, seed: int = 0, step: float = 0.1) -> list[Gain]:
    """Return gain and linearity of every component at this sequence, by forward-mode differentiation.

    Norms are taken over all tokens together. Each component is perturbed along its input and along a random direction.

    Args:
        model: the network.
        ids: (T,) token ids, as for trace.
        seed: seed of the random directions.
        step: |u| / |x| of the perturbation.

    Returns:
        Two gains for each of position, the attention branch, feed-forward branch and whole of each block, norm, out,
        and the map from h_0 to the logits.
    """
    tokens = traceable_ids(model, ids)
    generator = torch.Generator().manual_seed(seed)
    found = []
    with evaluating(model), torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        # the other kernels have no forward-mode derivatives
        for name, function, x, nonlinear in _components(model, tokens):
            noise = torch.randn(x.shape, generator=generator).to(x)
            for direction, along in (("state", x), ("random", noise)):
                perturbation = along * (step * x.norm() / along.norm().clamp_min(1e-30))
                gain, deviation = _gain_and_deviation(function, x, perturbation)
                found.append(Gain(name, direction, gain, deviation, nonlinear))
    return found


def _components(model: Transformer, tokens: Tensor) -> Iterator[tuple[str, State, Tensor, tuple[str, ...]]]:
    """Yield name, function, input at this sequence and nonlinear operations of each component."""
    config, ctx = model.config, model.plan(tokens[None])
    embedding, position, *blocks, norm, out = operators(model, len(tokens)).values()
    norms = ("RMSNorm" if config.norm == "rmsnorm" else "LayerNorm",)
    mixing = (*(("RMSNorm of queries and keys",) if config.qk_norm else ()), "softmax")
    acting = ({"swiglu": "SiLU gate", "geglu": "GELU gate"}.get(config.act, config.act),)
    before = () if config.norm_order == "post" else norms
    inside = (*norms, *mixing, *acting)

    def branch(its_norm: nn.Module, part: nn.Module, norm_out: nn.Module | None, layer: int) -> State:
        def added(x: Tensor) -> Tensor:
            y: Tensor = part(its_norm(x) if before else x, layer, ctx.of(layer))
            return y if norm_out is None else norm_out(y)

        return added

    x = embedding(tokens[None])
    yield "position", position, x, ()
    first = x = position(x)
    for layer, (operator, block) in enumerate(zip(blocks, model.blocks, strict=True)):
        assert isinstance(block, Block)
        name, attend = (
            f"block_{layer + 1}",
            branch(block.norm_attention, block.attention, block.norm_attention_out, layer),
        )
        yield f"{name}.attention", attend, x, (*before, *mixing)
        between = x + attend(x) if before else block.norm_attention(x + attend(x))
        yield f"{name}.ffn", branch(block.norm_mlp, block.mlp, block.norm_mlp_out, layer), between, (*before, *acting)
        yield name, operator, x, inside
        x = operator(x)
    if config.final_norm:
        yield "norm", norm, x, norms

    # without padding, whose logits are -inf: their differences would be NaN
    def logits(features: Tensor) -> Tensor:
        return out(features)[..., : config.vocab_size]

    yield "out", logits, norm(x), ()

    def whole(state: Tensor) -> Tensor:
        for operator in blocks:
            state = operator(state)
        return logits(norm(state))

    yield "model", whole, first, inside


def _gain_and_deviation(function: Callable[[Tensor], Tensor], x: Tensor, perturbation: Tensor) -> tuple[float, float]:
    """Return `Gain.gain` and `Gain.deviation` for a perturbation."""
    at, linear = torch.func.jvp(function, (x,), (perturbation,))[:2]
    change = function(x + perturbation) - at
    size = max(float(linear.norm()), float(change.norm()))
    # changes below the rounding error of f(x) count as 0
    rounding = 16 * torch.finfo(at.dtype).eps * float(at.norm())
    gain = float(linear.norm()) / max(float(perturbation.norm()), 1e-30)
    return gain, 0.0 if size <= rounding else float((change - linear).norm()) / size

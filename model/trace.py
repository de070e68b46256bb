"""Looking inside: every intermediate value of one sequence, the named operators, and how strongly each part reacts to a
small change of its input.

The network is seen as a system whose state is the residual stream: h_0 = position(embedding(ids)), then
h_l = block_l(h_l-1), and logits = out(norm(h_L)). The network itself tells its values while it runs, so that what is
shown is what happened; attention then goes by the formula, because the fast kernels never hold scores and weights.
Nothing is changed: mode, gradients, random state and weights are afterwards what they were before.

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

# Scores and weights of all heads are quadratic in it, and a person reads no more.
MAX_TRACED_TOKENS = 256

State = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Step:
    """One intermediate value.

    Attributes:
        block: number of the block it belongs to, from 1; None outside of the blocks.
        kind: such as "embedding" or "weights".
        tensor: the value, without a batch axis.
    """

    block: int | None
    kind: str
    tensor: Tensor

    @property
    def name(self) -> str:
        """Such as "embedding" or "block_1.weights"."""
        return self.kind if self.block is None else f"block_{self.block}.{self.kind}"


@dataclass(frozen=True)
class Trace:
    """What happened to one sequence.

    Attributes:
        ids: (T,) int64.
        steps: all intermediate values, in the order in which they arise.
        mask: (T, T) bool, True where a token (row) may look at another (column).
        hidden: (L + 1, T, D) the states h_0 to h_L of the residual stream.
        log_probs: (T, V) float64 log-probabilities of the next token at every position.
        conditionals: (T - 1,) float64 log-probability of each id but the first, which nothing predicts.
    """

    ids: Tensor
    steps: list[Step]
    mask: Tensor
    hidden: Tensor
    log_probs: Tensor
    conditionals: Tensor

    def __getitem__(self, name: str) -> Tensor:
        """The value of a step."""
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
        """(L, T, D) what each block adds to the stream: block_l(x) - x, so that h_L = h_0 + their sum."""
        return self.hidden[1:] - self.hidden[:-1]

    @property
    def score(self) -> NllSum:
        """Likelihood of the sequence given its first id, by the chain rule: the sum of the conditionals."""
        return NllSum(-float(self.conditionals.sum()), len(self.conditionals))

    def top(self, position: int, n: int) -> tuple[Tensor, Tensor]:
        """The n likeliest next ids at a position, and their log-probabilities, best first."""
        found = self.log_probs[position].topk(min(n, self.log_probs.shape[1]))
        return found.indices, found.values


def operators(model: Transformer, n_tokens: int) -> dict[str, State]:
    """The network as a chain of functions by name: embedding, position, block_1 .. block_L, norm, out.

    Applied one after the other to ids (B, n_tokens) they give the model's own logits, bit for bit in evaluation mode;
    "norm" is the identity where the network has no final norm.

    Args:
        model: the network.
        n_tokens: length of the sequences, on which positions and the mask depend.

    Raises:
        ValueError: n_tokens is above max_seq_len.
    """
    device = model.token_embedding.weight.device
    now = model.plan(torch.zeros(1, n_tokens, dtype=torch.int64, device=device))
    blocks = {f"block_{n}": partial(block, layer=n - 1, now=now) for n, block in enumerate(model.blocks, 1)}
    place = partial(model.place, now=now)
    return {"embedding": model.token_embedding, "position": place, **blocks, "norm": model.norm, "out": model.head}


def trace(model: Transformer, ids: Sequence[int] | Tensor) -> Trace:
    """Run the network over one sequence and keep every intermediate value.

    Args:
        model: the network, in any mode; it is asked in evaluation mode.
        ids: (T,) token ids.

    Raises:
        ValueError: there are no ids or more than MAX_TRACED_TOKENS or max_seq_len, or one is outside the vocabulary.
    """
    tokens = traceable_ids(model, ids)
    steps = [Step(None, "ids", tokens)]

    def keep(layer: int | None, kind: str, value: Tensor) -> None:
        batched = layer is not None or kind not in ("position", "rotation")  # a table of positions is one for all rows
        steps.append(Step(None if layer is None else layer + 1, kind, (value[0] if batched else value).detach()))

    with evaluating(model), torch.no_grad():
        logits = model.head(model.features(tokens[None], record=keep))[0]
        mask = model.plan(tokens[None]).mask
        log_probs = logits[:, : model.config.vocab_size].double().log_softmax(dim=-1)
        keep(None, "logits", logits[None])
        keep(None, "probabilities", log_probs.exp()[None])
    seen = torch.ones(len(tokens), len(tokens), dtype=torch.bool, device=tokens.device).tril()
    if mask is not None:
        assert isinstance(mask, Tensor)
        seen = mask == 0
    first = next(step.tensor for step in steps if step.kind == "sum")
    states = [first, *(step.tensor for step in steps if step.kind == "output")]
    conditionals = log_probs[:-1].gather(1, tokens[1:, None])[:, 0]
    return Trace(tokens, steps, seen, torch.stack(states), log_probs, conditionals)


def traceable_ids(model: Transformer, ids: Sequence[int] | Tensor) -> Tensor:
    """The ids on the model's device.

    Raises:
        ValueError: they cannot be traced.
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
    """Gain of one part of the network: output change over input change, for a small change u of its input x.

    Attributes:
        component: such as "block_1.attention".
        direction: "state" (u along x itself) or "random" (a fixed random u).
        gain: |J u| / |u| with the Jacobian J at x: how much longer or shorter the change comes out.
        deviation: |f(x + u) - f(x) - J u| relative to the larger of |J u| and |f(x + u) - f(x)|, for a u of a tenth of
            x's length: 0 for a linear part.
        nonlinear: what makes the part nonlinear; empty if nothing does.
    """

    component: str
    direction: str
    gain: float
    deviation: float
    nonlinear: tuple[str, ...]


def local_gains(model: Transformer, ids: Sequence[int] | Tensor, seed: int = 0, step: float = 0.1) -> list[Gain]:
    """Gain and linearity of every part at the point that this sequence leads to, by forward-mode differentiation.

    Lengths are taken over all tokens together. Each part is pushed along its own input and along a random direction;
    a norm, for example, hardly answers to the first, because it divides the length out again.

    Args:
        model: the network.
        ids: (T,) token ids, as for trace.
        seed: of the random directions.
        step: length of the finite push behind `deviation`, relative to the input's.

    Returns:
        Two gains per part: position, per block its attention branch, feed-forward branch and itself, norm, out, and
        last all parts from h_0 to the logits as one.
    """
    tokens = traceable_ids(model, ids)
    generator = torch.Generator().manual_seed(seed)
    found = []
    with evaluating(model), torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        # the other kernels have no formula for forward-mode derivatives
        for name, function, x, nonlinear in _components(model, tokens):
            noise = torch.randn(x.shape, generator=generator).to(x)
            for direction, along in (("state", x), ("random", noise)):
                gain, deviation = _reaction(function, x, along * (step * x.norm() / along.norm().clamp_min(1e-30)))
                found.append(Gain(name, direction, gain, deviation, nonlinear))
    return found


def _components(model: Transformer, tokens: Tensor) -> Iterator[tuple[str, State, Tensor, tuple[str, ...]]]:
    """Each part with its input at this sequence and the names of what is nonlinear in it."""
    config, now = model.config, model.plan(tokens[None])
    embedding, position, *blocks, norm, out = operators(model, len(tokens)).values()
    norms = ("RMSNorm" if config.norm == "rmsnorm" else "LayerNorm",)
    mixing = (*(("RMSNorm of queries and keys",) if config.qk_norm else ()), "softmax")
    acting = ("SiLU gate" if config.act == "swiglu" else config.act,)
    before = () if config.norm_order == "post" else norms
    inside = (*norms, *mixing, *acting)

    def branch(its_norm: nn.Module, part: nn.Module, layer: int) -> State:
        return lambda x: part(its_norm(x) if before else x, layer, now)

    x = embedding(tokens[None])
    yield "position", position, x, ()
    first = x = position(x)
    for layer, (operator, block) in enumerate(zip(blocks, model.blocks, strict=True)):
        assert isinstance(block, Block)
        name, attend = f"block_{layer + 1}", branch(block.norm_attention, block.attention, layer)
        yield f"{name}.attention", attend, x, (*before, *mixing)
        between = x + attend(x) if before else block.norm_attention(x + attend(x))
        yield f"{name}.ffn", branch(block.norm_mlp, block.mlp, layer), between, (*before, *acting)
        yield name, operator, x, inside
        x = operator(x)
    if config.final_norm:
        yield "norm", norm, x, norms

    # ids that only fill the table up have the logit -inf, from which nothing can be subtracted
    def logits(features: Tensor) -> Tensor:
        return out(features)[..., : config.vocab_size]

    yield "out", logits, norm(x), ()

    def whole(state: Tensor) -> Tensor:
        for operator in blocks:
            state = operator(state)
        return logits(norm(state))

    yield "model", whole, first, inside


def _reaction(function: Callable[[Tensor], Tensor], x: Tensor, push: Tensor) -> tuple[float, float]:
    """Gain along the push, and deviation from the linear answer to it."""
    at, linear = torch.func.jvp(function, (x,), (push,))[:2]
    change = function(x + push) - at
    size = max(float(linear.norm()), float(change.norm()))
    # what is smaller than the rounding of f(x) itself is no answer at all
    rounding = 16 * torch.finfo(at.dtype).eps * float(at.norm())
    gain = float(linear.norm()) / max(float(push.norm()), 1e-30)
    return gain, 0.0 if size <= rounding else float((change - linear).norm()) / size

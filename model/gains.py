"""How strongly each part of the network answers to a small change of its input, and how far from linear it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .trace import operators, traceable_ids, undisturbed
from .transformer import Block, Pass, Transformer


@dataclass(frozen=True)
class Gain:
    """How one part of the network reacts to a small change u of its input x.

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
    with undisturbed(model), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        # the other kernels have no formula for forward-mode derivatives
        for name, function, x, nonlinear in _components(model, tokens):
            noise = torch.randn(x.shape, generator=generator).to(x)
            for direction, along in (("state", x), ("random", noise)):
                gain, deviation = _reaction(function, x, along * (step * x.norm() / along.norm().clamp_min(1e-30)))
                found.append(Gain(name, direction, gain, deviation, nonlinear))
    return found


Component = tuple[str, Callable[[Tensor], Tensor], Tensor, tuple[str, ...]]


def _components(model: Transformer, tokens: Tensor) -> Iterator[Component]:
    """Each part with its input at this sequence and the names of what is nonlinear in it."""
    now = model.plan(tokens[None])
    embedding, position, *blocks, norm, out = operators(model, len(tokens))
    x = embedding(tokens[None])
    yield "position", position, x, ()
    first = x = position(x)
    everything: list[str] = []
    for layer, (operator, block) in enumerate(zip(blocks, model.blocks, strict=True)):
        assert isinstance(block, Block)
        attend, feed, between = _branches(block, layer, now)
        norms, softmax, act = (type(block.norm_attention).__name__,), ("softmax",), (_activation(model),)
        before = () if block.post_norm else norms
        qk_norm = ("RMSNorm of queries and keys",) if block.attention.norm_q is not None else ()
        yield f"{operator.name}.attention", attend, x, (*before, *qk_norm, *softmax)
        yield f"{operator.name}.ffn", feed, between(x), (*before, *act)
        inside = (*norms, *qk_norm, *softmax, *act)
        yield operator.name, operator, x, inside
        everything += inside
        x = operator(x)
    if model.config.final_norm:
        yield "norm", norm, x, (type(model.norm).__name__,)
        everything.append(type(model.norm).__name__)

    # ids that only fill the table up have the logit -inf, from which nothing can be subtracted
    def logits(features: Tensor) -> Tensor:
        return out(features)[..., : model.config.vocab_size]

    yield "out", logits, norm(x), ()

    def whole(state: Tensor) -> Tensor:
        for operator in blocks:
            state = operator(state)
        return logits(norm(state))

    yield "model", whole, first, tuple(dict.fromkeys(everything))


State = Callable[[Tensor], Tensor]


def _branches(block: Block, layer: int, now: Pass) -> tuple[State, State, State]:
    """A block's attention branch, its feed-forward branch, and what the second one reads, as functions of its input."""

    def attend(x: Tensor) -> Tensor:
        result: Tensor = block.attention(x if block.post_norm else block.norm_attention(x), layer, now)
        return result

    def feed(x: Tensor) -> Tensor:
        result: Tensor = block.mlp(x if block.post_norm else block.norm_mlp(x), layer, now)
        return result

    def between(x: Tensor) -> Tensor:
        summed = x + attend(x)
        return block.norm_attention(summed) if block.post_norm else summed

    return attend, feed, between


def _activation(model: Transformer) -> str:
    return "SiLU gate" if model.config.act == "swiglu" else model.config.act


def _reaction(function: Callable[[Tensor], Tensor], x: Tensor, push: Tensor) -> tuple[float, float]:
    """Gain along the push, and deviation from the linear answer to it."""
    at, linear = torch.func.jvp(function, (x,), (push,))[:2]
    change = function(x + push) - at
    size = max(float(linear.norm()), float(change.norm()))
    # what is smaller than the rounding of f(x) itself is no answer at all
    rounding = 16 * torch.finfo(at.dtype).eps * float(at.norm())
    gain = float(linear.norm()) / max(float(push.norm()), 1e-30)
    return gain, 0.0 if size <= rounding else float((change - linear).norm()) / size

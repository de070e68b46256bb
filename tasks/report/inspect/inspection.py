"""Everything that a network does with one prompt: measured for the page, as JSON, and in a few lines."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from model.gains import Gain, local_gains
from model.trace import MAX_TRACED_TOKENS, Trace, trace
from storage.errors import UserError
from tasks.report.inspect.architecture import Subject, control_elements, described
from tasks.report.vocabulary import Spelling

COLUMNS = 4  # of each value that JSON and the page show
NEXT_TOKENS = 10  # likeliest next tokens at each position in JSON


class InspectError(UserError):
    """A prompt that cannot be looked at."""


@dataclass(frozen=True)
class Inspection:
    """All that a prompt leads to.

    Attributes:
        prompt: the text.
        spelling: readable text of each id.
        planes: projections of the tokens' vectors by name.
        distances: (T, T) between the token vectors.
    """

    subject: Subject
    prompt: str
    spelling: Spelling
    trace: Trace
    gains: list[Gain]
    planes: dict[str, Plane]
    distances: Tensor

    @property
    def labels(self) -> list[str]:
        """Readable texts of the T tokens."""
        return [self.spelling.text_of(index) for index in self.trace.ids.tolist()]

    @property
    def n_tokens(self) -> int:
        """T."""
        return len(self.trace.ids)


@dataclass(frozen=True)
class Plane:
    """The two directions in which vectors differ most.

    Attributes:
        points: (T, 2).
        shares: of the variance, along each of the two.
    """

    points: Tensor
    shares: tuple[float, float]


def inspect_prompt(subject: Subject, prompt: str, seed: int = 0) -> Inspection:
    """Run a prompt through a network and measure everything that the report shows.

    Args:
        subject: the network and its tokeniser.
        prompt: any text; up to 256 tokens, and no more than the network's context.
        seed: of the random directions of the local gains.

    Raises:
        InspectError: the prompt is empty, too long, or no valid text.
    """
    ids = _encode(subject, prompt)
    found = trace(subject.model, ids)
    planes = {"token vectors": project(found["embedding"]), "token and position": project(found["sum"])}
    vectors = found["embedding"].double()
    return Inspection(
        subject=subject,
        prompt=prompt,
        spelling=Spelling(subject.tokenizer),
        trace=found,
        gains=local_gains(subject.model, ids, seed),
        planes=planes,
        distances=(vectors[:, None] - vectors[None]).norm(dim=-1),
    )


def _encode(subject: Subject, prompt: str) -> list[int]:
    if not prompt:
        raise InspectError('the prompt is empty; give a text to look at, such as --prompt "Hello World"')
    if any("\ud800" <= char <= "\udfff" for char in prompt):
        raise InspectError("the prompt holds a lone surrogate (U+D800 to U+DFFF), which is no character; take it out")
    ids: list[int] = subject.tokenizer.encode([prompt])[0].tolist()
    start = subject.tokenizer.start_id
    if subject.bos and start is not None:
        ids = [start, *ids]
    limit = min(MAX_TRACED_TOKENS, subject.config.max_seq_len)
    if len(ids) > limit:
        why = "more cannot be shown" if limit == MAX_TRACED_TOKENS else "that is the model's context"
        raise InspectError(f"the prompt has {len(ids)} tokens; at most {limit} are expected ({why}): shorten it")
    return ids


def project(vectors: Tensor) -> Plane:
    """Principal components of vectors, equal ones counted once, so that a frequent token does not pull the plane.

    Args:
        vectors: (T, D).
    """
    wide = vectors.double()
    distinct = torch.unique(wide, dim=0)
    centre = distinct.mean(0)
    _, sizes, axes = torch.linalg.svd(distinct - centre, full_matrices=False)
    axes = torch.nn.functional.pad(axes[:2], (0, 0, 0, max(0, 2 - len(axes))))
    # an axis has no sign of its own; the first large coordinate settles it, so that reports can be compared
    largest = axes.abs().argmax(dim=1, keepdim=True)
    axes = axes * torch.where(axes.gather(1, largest) < 0, -1.0, 1.0)
    total = float(sizes.square().sum())
    shares = [float(size) ** 2 / total if total else 0.0 for size in sizes[:2]] + [0.0, 0.0]
    return Plane((wide - centre) @ axes.T, (shares[0], shares[1]))


def rounded(value: Any, digits: int = 4) -> Any:
    """A tensor or nested list as lists of rounded numbers; what JSON has no number for becomes None."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [rounded(item, digits) for item in value]
    if isinstance(value, float):
        return round(value, digits) if abs(value) < float("inf") else None
    return value


def to_json(inspection: Inspection) -> dict[str, Any]:
    """The inspection for machines."""
    found, subject = inspection.trace, inspection.subject
    return {
        "model": {
            "name": subject.name,
            "parameters": subject.n_parameters,
            "trained": not subject.fresh,
            "config": dataclasses.asdict(subject.config),
        },
        "prompt": inspection.prompt,
        "tokens": [
            {"position": place, "id": index, "text": text}
            for place, (index, text) in enumerate(zip(found.ids.tolist(), inspection.labels, strict=True))
        ],
        "steps": [
            {
                "name": step.name,
                "what": described(step, subject.config)[1],
                "shape": list(step.tensor.shape),
                "first_columns": rounded(step.tensor[..., :COLUMNS] if step.tensor.dim() > 1 else step.tensor),
            }
            for step in found.steps
        ],
        "attention": rounded(found.weights),
        "mask": found.mask.tolist(),
        "projections": {
            name: {"points": rounded(plane.points), "variance_shares": rounded(list(plane.shares))}
            for name, plane in inspection.planes.items()
        },
        "distances": rounded(inspection.distances),
        "hidden_norms": rounded(found.hidden.norm(dim=-1)),
        "hidden_first_columns": rounded(found.hidden[..., :COLUMNS]),
        "increment_norms": rounded(found.increments.norm(dim=-1)),
        "next": [next_tokens(inspection, place, NEXT_TOKENS) for place in range(inspection.n_tokens)],
        "sequence": {
            "conditionals": rounded(found.score.log_probs),
            "log_probability": rounded(found.score.total),
            "nll": rounded(found.score.nll),
            "perplexity": rounded(found.score.perplexity),
        },
        "gains": [
            {name: rounded(value) for name, value in dataclasses.asdict(gain).items()} for gain in inspection.gains
        ],
        "elements": [vars(item) for item in control_elements(subject)],
    }


def next_tokens(inspection: Inspection, position: int, n: int) -> list[dict[str, Any]]:
    """The likeliest next tokens at a position, best first."""
    logits = inspection.trace["logits"][position]
    ids, log_probs = inspection.trace.top(position, n)
    return [
        {
            "id": index,
            "text": inspection.spelling.text_of(index),
            "logit": rounded(float(logits[index])),
            "probability": rounded(probability, 6),
        }
        for index, probability in zip(ids.tolist(), log_probs.exp().tolist(), strict=True)
    ]


def inspection_text(found: Inspection) -> str:
    """Tokens, lengths of states, likelihood and likeliest next tokens of an inspected prompt, for a terminal."""
    score, states = found.trace.score, found.trace.hidden.norm(dim=-1).mean(dim=1).tolist()
    lines = ["tokens:   " + " ".join(found.labels[:40]) + (" …" if found.n_tokens > 40 else "")]
    lines.append("states:   " + " → ".join(f"{length:.3g}" for length in states) + "  (mean length, h0 to the last)")
    if len(score.log_probs):
        lines.append(f"prompt:   {score.nll:.3f} nats per token, perplexity {score.perplexity:.4g}")
    likely = next_tokens(found, found.n_tokens - 1, n=5)
    return "\n".join([*lines, "next:", *(f"  {item['probability']:6.1%}  {item['text']}" for item in likely)])

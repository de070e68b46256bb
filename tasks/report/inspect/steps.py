"""What each step of the trace does, in one plain sentence that follows the architecture."""

from __future__ import annotations

from model import ModelConfig
from model.trace import Step

_ACTIVATIONS = {
    "gelu": "GELU",
    "gelu_tanh": "GELU (tanh form)",
    "relu": "ReLU",
    "relu2": "squared ReLU",
    "swiglu": "a SiLU gate",
}

TITLES = {
    "ids": "Token ids",
    "embedding": "Embedding",
    "position": "Position",
    "rotation": "Rotations",
    "sum": "State h₀",
    "norm_attention": "Norm before attention",
    "q": "Queries",
    "k": "Keys",
    "v": "Values",
    "scores": "Scores",
    "weights": "Attention weights",
    "mixed": "Mixed values",
    "attention": "Attention output",
    "sum_attention": "Sum after attention",
    "norm_mlp": "Norm before feed-forward",
    "hidden": "Feed-forward, wide",
    "ffn": "Feed-forward output",
    "sum_ffn": "Sum after feed-forward",
    "output": "Block output",
    "norm": "Final norm",
    "logits": "Logits",
    "probabilities": "Probabilities",
}


def title(step: Step, config: ModelConfig) -> str:
    """A short name of the step."""
    if step.kind == "norm_attention" and config.norm_order == "post":
        return "Norm after attention"
    return f"Block output h{step.block}" if step.kind == "output" else TITLES.get(step.kind, step.kind)


def sentence(step: Step, config: ModelConfig) -> str:
    """What the step does."""
    width, norm = config.d_model, "LayerNorm" if config.norm == "layernorm" else "RMSNorm"
    shared = config.n_head // config.n_kv_head
    of_heads = f"{config.n_kv_head} heads" + (f", each shared by {shared} query heads" if shared > 1 else "")
    prepared = [*(["normalised"] if config.qk_norm else []), *(["rotated"] if config.pos == "rope" else [])]
    ready = f", {' and '.join(prepared)}" if prepared else ""
    reach = f", and not more than {config.window - 1} tokens back" if config.window else ""
    regulated = "to mean 0 and variance 1" if config.norm == "layernorm" else "to root mean square 1"
    said = {
        "ids": "The tokeniser turns the text into one number per token.",
        "embedding": f"Each id picks its row of {width} numbers from the token table.",
        "position": _position(config),
        "rotation": "Cosine and sine of each pair's angle at each place; queries and keys are turned by them.",
        "sum": "The state that enters the first block: "
        + ("token vector plus position vector." if config.pos in ("learned", "sinusoidal") else "the token vector."),
        "norm_attention": f"{norm} brings each token's state {regulated}, then applies its learned gain.",
        "q": f"What each token asks for, in {config.n_head} heads of {config.head_dim} columns{ready}.",
        "k": f"What each token offers to be found by, in {of_heads}{ready}.",
        "v": f"What each token hands over when it is looked at, in {of_heads}.",
        "scores": f"Each query times each key, divided by √{config.head_dim}; later tokens are not masked yet.",
        "weights": f"The mask forbids what comes later{reach}; softmax makes each row add to one.",
        "mixed": "Each token's average of the values, by its weights.",
        "attention": f"The heads side by side, brought back to {width} columns by the output projection.",
        "sum_attention": "Attention's output is added to the state that came in.",
        "norm_mlp": f"{norm} again, before the feed-forward layer.",
        "hidden": f"Up to {config.d_ff} columns and through {_ACTIVATIONS[config.act]}.",
        "ffn": f"Back down to {width} columns.",
        "sum_ffn": "The feed-forward output is added to its own input.",
        "output": "The state that leaves the block"
        + (f", after the second {norm}." if config.norm_order == "post" else ": the sum plus the feed-forward output."),
        "norm": f"{norm} once more, before the head reads the state.",
        "logits": f"One number per token of the vocabulary, from the head ({_head(config)}).",
        "probabilities": "Softmax of the logits: how likely each token is to come next.",
    }
    return said.get(step.kind, "")


def _position(config: ModelConfig) -> str:
    if config.pos == "learned":
        return "Each place picks its row from the learned position table."
    return f"Sines and cosines of each place, with wavelengths from 2π to nearly {config.pos_base:g}·2π tokens."


def _head(config: ModelConfig) -> str:
    return "the token table itself" if config.tie_weights else "a matrix of its own"

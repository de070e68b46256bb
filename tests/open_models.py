"""Folders in Hugging Face's layouts with random weights, a byte-level tokeniser and a template of chats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from model import ModelConfig, Transformer, to_hf
from tasks.tokens.tokenizer import learn_merges

LLAMA = {"pos": "rope", "norm": "rmsnorm", "act": "swiglu", "attn_bias": False, "ffn_bias": False}
GEMMA = {**LLAMA, "act": "geglu", "embed_scale": True}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"act": "gelu_tanh"},
    "llama": LLAMA,
    "mistral": {**LLAMA, "window": 20},
    "qwen2": {**LLAMA, "qkv_bias": True},
    "qwen3": {**LLAMA, "qk_norm": True},
    "smollm3": {**LLAMA, "unrotated_every": 2},
    "gemma": GEMMA,
    "gemma3_text": {
        **GEMMA,
        **{"qk_norm": True, "norm_order": "both", "window": 20, "full_every": 2, "window_pos_base": 1000.0},
    },
}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def open_model(folder: Path, layout: str, context: int = 64) -> Path:
    """A folder in Hugging Face's layout with a byte-level tokeniser and a template of chats."""
    learned = learn_merges(["The shepherd counts the sheep at dusk.\n" * 8], 300).record()["spec"]
    first = max(learned["model"]["vocab"].values()) + 1
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    names = ("<|im_start|>", "<|im_end|>")
    learned["added_tokens"] = [{"id": first + n, "content": name, **flags} for n, name in enumerate(names)]
    with torch.random.fork_rng():
        torch.manual_seed(5)
        shape = {"max_seq_len": context, "n_layer": 2, "n_head": 2, "d_model": 32, **SHAPES[layout]}
        to_hf(Transformer(ModelConfig(first + 2, **shape)), folder, layout, eos_id=first + 1)
    (folder / "tokenizer.json").write_text(json.dumps(learned))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": names[1], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder

"""Bits per byte of a model with its weights in the types of a GGUF file.

    python -m benchmarks.quantisation MODEL CORPUS

MODEL is a model folder, CORPUS one that `benchmarks.corpora` wrote; its validation texts are scored. The interval is
that of the paired difference to float32. Inputs of the products stay float32, which llama.cpp rounds too for q8_0 and
q4_0.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.corpora import read
from benchmarks.recipe import document_nats
from model.metrics import bits_per_byte
from tasks.evaluation.compare import paired_bootstrap
from tasks.evaluation.evaluate import encode_documents
from tasks.tokens.tokenise import TokeniseSettings
from tasks.training.bundle import Bundle
from tasks.training.gguf_file import export_gguf
from tasks.training.gguf_types import TYPES, round_weights


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("corpus", type=Path)
    asked = parser.parse_args()
    whole = Bundle(asked.model)
    texts = encode_documents(whole.tokenizer, TokeniseSettings(bos=whole.bos, eos=whole.eos), read(asked.corpus)[1])
    n_bytes = int(texts.n_bytes.sum())
    exact = document_nats(whole.model, texts, whole.model_config.max_seq_len)
    print("| type | MB | bits per byte | more than f32 | 95 % interval |")
    print("|---|---|---|---|---|", flush=True)
    for kind in TYPES:
        bundle = Bundle(asked.model)
        round_weights(bundle.model, kind)
        nats = document_nats(bundle.model, texts, bundle.model_config.max_seq_len)
        lost = paired_bootstrap(nats, exact, texts.n_bytes)
        with tempfile.TemporaryDirectory() as folder:
            export_gguf(asked.model, Path(folder, "model.gguf"), kind)
            size = Path(folder, "model.gguf").stat().st_size / 1e6
        value = bits_per_byte(float(nats.sum()), n_bytes)
        print(
            f"| {kind} | {size:.2f} | {value:.4f} | {lost.value:.5f} | {lost.low:.5f} to {lost.high:.5f} |", flush=True
        )


if __name__ == "__main__":
    main()

"""The comparison of our recipe with plain loops, on corpora of a few kilobytes."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import corpora, recipe

WORDS = ["sheep", "fold", "hay", "wool", "ram", "lamb", "field", "gate", "barn", "dog", "hill", "rain", "wind", "sun"]


def text_of(seed: int, n_bytes: int) -> str:
    """Return lines of random words."""
    generator, lines = random.Random(seed), list[str]()
    while sum(map(len, lines)) < n_bytes:
        lines.append(" ".join(generator.choices(WORDS, k=8)) + f" {seed}")
    return "\n".join(lines) + "\n"


def test_a_corpus_holds_each_document_once_and_validation_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "VALIDATION", (8_000, 8_000))
    source = tmp_path / "source"
    for number in range(40):
        path = source / f"package{number}" / f"{number}.txt"
        path.parent.mkdir(parents=True)
        path.write_text(text_of(number, 2_000))
        (path.parent / "copy.txt").write_text(text_of(number, 2_000))
    kinds = {"prose": lambda: source.rglob("*.txt")}
    train, held = corpora.corpus(0.03, tmp_path / "corpus", kinds)
    assert sum(map(len, train)) >= 30_000
    assert 8_000 <= sum(map(len, held)) < 12_000
    assert len({*train, *held}) == len(train) + len(held)
    with pytest.raises(RuntimeError, match="expected 1 MB"):
        corpora.corpus(1, tmp_path / "large", kinds)


def test_a_manual_page_loses_its_macros() -> None:
    found = corpora.manual_text('.TH LS 1\n.SH NAME\nls \\- list \\fBfiles\\fR\n.\\" comment\n.B "\\-\\-all"\n')
    assert found == "NAME\nls - list files\n--all\n"


def test_uniform_logits_cost_the_logarithm_of_the_vocabulary_at_every_token() -> None:
    texts = recipe.Texts("t", [text_of(2, 3_000)], [text_of(2, 3_000), "λf"])
    tokenizer = texts.tokenizer("char", 0)
    _, held = texts.ids(tokenizer)
    n = tokenizer.vocab_size
    found = recipe.document_nats(lambda ids: torch.zeros(*ids.shape, n), held, 16)
    lost = np.array([0, 2]) * 8 * math.log(2)
    assert held.lost_bytes.tolist() == [0, 2]
    assert found == pytest.approx((held.lengths - 1) * math.log(n) + lost)


@pytest.mark.full
def test_every_arm_reports_the_same_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for part, numbers in (("train", range(20)), ("validation", range(20, 24))):
        (tmp_path / "small" / part).mkdir(parents=True)
        for number in numbers:
            (tmp_path / "small" / part / f"{number}.txt").write_text(text_of(number, 12_000))
    network = {"preset": "modern-200k", "max_seq_len": 64}
    settings = {f"model.{name}": value for name, value in network.items()}
    settings |= {"tokenizer.vocab_size": 300, "train.batch_size": 2, "train.max_steps": 5}
    out = tmp_path / "out.jsonl"
    small = {name: replace(peer, n_layer=1, d_model=16, rows=2) for name, peer in recipe.PEERS.items()}
    monkeypatch.setattr(recipe, "PEERS", small)
    options = ["--source", str(tmp_path / "small"), "--minutes", "0.01", "--threads", "1", "--out", str(out)]
    options += ["--arms", "ours,nanogpt,5-gram"]  # `transformers` takes seconds to import
    monkeypatch.setattr("sys.argv", ["recipe", *options, "--recipe", json.dumps(settings)])
    recipe.main()
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [item["arm"] for item in found] == ["ours", "nanogpt-char", "nanogpt-bpe", "5-gram"]
    assert {len(item["nats"]) for item in found} == {4}
    assert all(0 < item["bits_per_byte"] < 12 for item in found)
    table = capsys.readouterr().out
    assert table.count("(best plain loop)") == 1
    assert len(table.splitlines()) == 6
    recipe.main()  # from the file
    assert capsys.readouterr().out == table
    assert len(out.read_text().splitlines()) == 4


@pytest.mark.full
def test_a_llama_of_transformers_learns_the_words() -> None:
    texts = recipe.Texts("t", [text_of(number, 12_000) for number in range(20)], [text_of(20, 12_000)])
    found = recipe.plain("llama", texts, 0.02, 1)
    assert found.nats[0] < 12_000 * math.log(2) * 6
    assert found.seconds > 0
    assert "steps" in found.about

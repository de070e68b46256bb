"""From numbers of training sequences to the documents and paths behind them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_run import Ran, home_at, run_prepare, text_of, tiny_settings, write_texts

from storage.lineage import manifest_of
from storage.manifest import ArtifactRef
from tasks.lineage.training_data import documents_in, name_documents
from tasks.tokens.index import load_index
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE, load_tokenizer


def dataset_of(ran: Ran) -> ArtifactRef:
    return ran.prepared.dataset


def text_of_sequence(ran: Ran, sequence: int) -> str:
    """Return the text of a training sequence, read as in training."""
    index = load_index(ran.folder(dataset_of(ran)), "train")
    shards = {ref.key: ref for ref in manifest_of(ran.run.store, dataset_of(ran)).input_refs("tokens")}
    pieces = range(index.offsets[sequence], index.offsets[sequence + 1])
    ids: list[int] = []
    for piece in pieces:
        ref = shards[index.shards[index.shard[piece]]]
        shard = np.load(ran.run.store.folder(ref) / "tokens.npy", allow_pickle=False)
        ids += shard[index.start[piece] :][: index.length[piece]].tolist()
    return load_tokenizer(ran.folder(ran.prepared.tokenizer) / TOKENIZER_FILE).decode(ids)


def test_each_sequence_stands_in_the_file_it_is_blamed_on(tiny: Ran, tiny_source: Path) -> None:
    n = len(load_index(tiny.folder(dataset_of(tiny)), "train"))
    for sequence in range(n):
        (culprit,) = documents_in(tiny.run.store, dataset_of(tiny), [sequence])
        text = (tiny_source / culprit.path).read_text(encoding="utf-8")
        assert text_of_sequence(tiny, sequence).strip() in text
        assert culprit.sequences == (sequence,)


@pytest.mark.full
def test_a_sequence_of_several_documents_names_them_all(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "texts")
    ran = run_prepare(home_at(tmp_path / "home"), source, tiny_settings("dataset.packing=concat"))
    n = len(load_index(ran.folder(dataset_of(ran)), "train"))
    culprits = documents_in(ran.run.store, dataset_of(ran), range(n))
    assert sorted({sequence for one in culprits for sequence in one.sequences}) == list(range(n))
    shared = [s for s in range(n) if sum(s in one.sequences for one in culprits) > 1]
    assert shared
    first = documents_in(ran.run.store, dataset_of(ran), shared[:1])
    assert len(first) > 1
    spelled = text_of_sequence(ran, shared[0])
    opening = (source / first[1].path).read_text(encoding="utf-8")[:8]
    assert opening in spelled


def test_a_document_at_two_paths_has_the_first_one(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "texts", range(6))
    (source / "again.txt").write_text(text_of(3), encoding="utf-8")
    ran = run_prepare(home_at(tmp_path / "home"), source)
    n = len(load_index(ran.folder(dataset_of(ran)), "train"))
    paths = {Path(one.path).name for one in documents_in(ran.run.store, dataset_of(ran), range(n))}
    assert "text-03.txt" not in paths
    assert all(paths)


def test_a_sentence_names_the_first_few(tiny: Ran) -> None:
    n = len(load_index(tiny.folder(dataset_of(tiny)), "train"))
    everything = documents_in(tiny.run.store, dataset_of(tiny), range(n))
    sentence = name_documents(tiny.run.store, dataset_of(tiny), range(n))
    assert len(everything) > 5
    assert sentence.count("document ") == 5
    assert sentence.endswith(f" and {len(everything) - 5} more.")
    assert everything[0].path in sentence and everything[0].doc_id[:12] in sentence
    assert name_documents(tiny.run.store, dataset_of(tiny), []) == ""

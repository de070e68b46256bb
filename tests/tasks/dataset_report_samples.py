"""Small prepared corpora made by hand: real token shards, an index of them, and the account that belongs to it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from corpus_report_samples import CORPUS, Row, Sample
from rows import row

from storage import schemas
from storage.catalog import Catalog, corpus_ref
from storage.digest import sha256_json
from storage.manifest import ArtifactRef, Manifest
from storage.tables import write_table
from tasks.tokens.tokenizer import learn_merges
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE, BpeTokenizer, CharTokenizer, Tokenizer

HOSTILE = "<img src=x onerror=hit=1>\n\u202egnp\x00 שלום é 漢 </style></title><script>hit=1</script>&amp;\"'|`*"


class Prepared(Sample):
    """A corpus that is put together text by text, in one segment, and cut into chunks.

    Attributes:
        texts: by id, in order.
        settings: of the artefact of the dataset.
        notes, groups, mix: what `dataset.json` says beside the account; without groups there is one of all.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer | None = None, seq_len: int = 8) -> None:
        super().__init__(folder)
        self.tokenizer = tokenizer
        self.seq_len = seq_len
        self.texts: dict[str, tuple[str, str]] = {}
        self.notes: list[str] = []
        self.groups: list[dict[str, Any]] = []
        self.mix: dict[str, Any] | None = None
        self.tools = {"engine": "tokenizers", "engine_reason": "asked for"}

    def text(self, doc_id: str, text: str, split: str = "train", path: str = "", **more: Any) -> None:
        """A document with a text of its own."""
        self.document(doc_id, path or f"{doc_id}.txt", split=split, n_bytes=len(text.encode()), **more)
        self.texts[doc_id] = (text, split)

    def ids_of(self, doc_id: str) -> list[int]:
        """A document as the shard holds it."""
        tokenizer = self._fitted()
        (ids,) = tokenizer.encode([self.texts[doc_id][0]])
        return [tokenizer.bos_id, *ids.tolist(), tokenizer.eos_id]

    def _fitted(self) -> Tokenizer:
        if self.tokenizer is None:
            self.tokenizer = CharTokenizer.fit([text for text, _ in self.texts.values()])
        return self.tokenizer

    def catalog(self) -> Catalog:
        """Write it all and open it."""
        super().catalog()
        state = {name: list(refs) for name, refs in (self.store.read_ref(corpus_ref(CORPUS)) or {}).items()}
        for name, ref in self._artefacts().items():
            state[name] = [asdict(ref)]
        self.store.write_ref(corpus_ref(CORPUS), state)
        return Catalog(self.store, CORPUS)

    def _artefacts(self) -> dict[str, ArtifactRef]:
        tokenizer = self._fitted()
        ids = {doc_id: self.ids_of(doc_id) for doc_id in self.texts}
        flat = np.array([index for sequence in ids.values() for index in sequence], np.uint16)
        offsets = dict(zip(ids, np.cumsum([0, *map(len, ids.values())]).tolist(), strict=False))
        tokens = [
            row(schemas.TOKENS, doc_id=doc_id, offset=offsets[doc_id], length=len(sequence),
                n_bytes=len(self.texts[doc_id][0].encode()),
                lost_bytes=tokenizer.lost_bytes(self.texts[doc_id][0], np.array(sequence[1:-1])))
            for doc_id, sequence in ids.items()
        ]  # fmt: skip
        choice = {"kind": tokenizer.kind, "why": "the test says so", "vocab_size": tokenizer.vocab_size}
        return {
            "tokenizer": self._write("tokenizer", {"choice.json": json.dumps(choice)}),
            "tokenise": self._write("tokenise", {"tokens.npy": flat, "tokens.parquet": (schemas.TOKENS, tokens)}),
            "dataset": self._write("dataset", self._cut(ids, offsets)),
        }

    def _cut(self, ids: dict[str, list[int]], offsets: dict[str, int]) -> dict[str, Any]:
        """Every document in chunks of its own."""
        pieces: list[Row] = []
        counts = np.zeros(self._fitted().vocab_size, np.int64)
        accounts = {}
        for split in ("train", "validation"):
            chosen = [doc_id for doc_id in sorted(ids) if self.texts[doc_id][1] == split]
            first = len(pieces)
            for doc_id in chosen:
                length = len(ids[doc_id])
                for start in range(0, length, self.seq_len):
                    ahead = int(length - start > self.seq_len)
                    pieces.append(
                        row(schemas.SEQUENCES, sequence=len(pieces), split=split, doc_id=doc_id, shard="shard",
                            start=offsets[doc_id] + start, length=min(length - start, self.seq_len + 1), ahead=ahead)
                    )  # fmt: skip
                if split == "train":
                    counts += np.bincount(ids[doc_id][1:], minlength=len(counts))
            kept, sequences = sum(len(ids[doc_id]) for doc_id in chosen), len(pieces) - first
            accounts[split] = {
                "documents": len(chosen),
                "ids": kept,
                "n_bytes": sum(len(self.texts[doc_id][0].encode()) for doc_id in chosen),
                "sequences": sequences,
                "kept": kept,
                "repeated": 0,
                "padded": sequences * self.seq_len - kept,
                "cut": 0,
                "labels": kept - len(chosen),
            }
        train = accounts["train"]
        everything = {"name": "all", "first": 0, "count": train["sequences"], "reads": train["sequences"]}
        record = {
            "packing": "chunk", "seq_len": self.seq_len, "stride": self.seq_len, "drop_last": False,
            "splits": accounts, "mix": self.mix, "notes": self.notes,
            "groups": self.groups or [{**everything, "tokens": train["labels"], "documents": train["documents"]}],
        }  # fmt: skip
        return {
            "dataset.json": json.dumps(record),
            "sequences.parquet": (schemas.SEQUENCES, pieces),
            "token_counts.parquet": (
                schemas.TOKEN_COUNTS,
                [{"token": token, "count": int(count)} for token, count in enumerate(counts)],
            ),
        }

    def _write(self, stage: str, files: dict[str, Any]) -> ArtifactRef:
        key = sha256_json(stage)
        with self.store.workspace(stage, key) as workspace:
            for name, content in files.items():
                path = workspace.out / name
                if isinstance(content, str):
                    path.write_text(content)
                elif isinstance(content, np.ndarray):
                    np.save(path, content)
                else:
                    write_table(path, *content)
            if stage == "tokenizer":
                self._fitted().save(workspace.out / TOKENIZER_FILE)
            tools = self.tools if stage == "tokenise" else {}
            settings = {"bos": True, "eos": True} if stage == "tokenise" else {}
            manifest = Manifest(stage, 1, key, key, {}, settings, files=[], tools=tools)
            return self.store.commit(workspace, manifest).ref


def byte_level(*texts: str, vocab_size: int = 300) -> BpeTokenizer:
    """A byte-level tokeniser that is fitted on these texts."""
    return learn_merges(texts, vocab_size)


def rich(folder: Path) -> Prepared:
    """A corpus with something in every section, hostile wherever it can be."""
    prose = "the shepherd counts his sheep at dusk. " * 12
    made = Prepared(folder, byte_level(prose, HOSTILE))
    made.text("a1", prose, path="prose/one.txt", licence="MIT", language="en", file={"source": "books"})
    made.text("a2", prose[:150], path=HOSTILE, language="de", file={"source": HOSTILE})
    made.text("b1", "def f():\n\treturn 1\n" * 9, kind="code", programming_language="Python", file={"source": "code"})
    made.text("c1", HOSTILE * 3, kind=HOSTILE, language="und", path="hostile.txt", file={"source": "books"})
    made.text("v1", prose[30:200], "validation", path="held.txt", language="en", file={"source": "books"})
    made.file("gone.pdf", "failed", "timeout", f"{HOSTILE} took too long", size=20)
    made.file("copy.txt", "duplicate", "duplicate_bytes", "same bytes as prose/one.txt", doc_id="a1", source="code")
    made.document("d1", "dropped.txt", dropped="too_short", reason=HOSTILE, n_bytes=3)
    made.notes = [f"a note about {HOSTILE}"]
    made.mix = {"by": "kind", "weights": "code=0.5, *=0.5"}
    made.groups = [
        {"name": "code", "first": 0, "count": 20, "reads": 40, "tokens": 100, "documents": 1},
        {"name": HOSTILE, "first": 20, "count": 40, "reads": 20, "tokens": 400, "documents": 3},
    ]
    return made

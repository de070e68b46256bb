"""The stage `tokenise_pairs`: the token shard of a segment's conversations, and which of its ids are learnt.

tokens.npy           token ids of all conversations, concatenated, in the smallest unsigned type
learnt.npy           1 for each id that is learnt: those of answers and of their ends
examples.parquet     offset and length of each conversation
tokens.parquet       offset, length and digest of the conversations of each document, also of those without any
counts.npy           occurrences of each id
chat_template.jinja  form of the chats, which the trained model keeps
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from storage.digest import rows_digest
from storage.manifest import ArtifactRef
from storage.schemas import (
    DOCUMENTS_FILE,
    EXAMPLES,
    EXAMPLES_FILE,
    LEARNT_FILE,
    PAIRS_FILE,
    SHARD_COUNTS_FILE,
    SHARD_FILE,
    TOKENS,
    TOKENS_FILE,
)
from storage.tables import read_columns, stream_rows, unpacked_size, write_table
from tasks.chat.template import ChatError, Template, stopped_clock
from tasks.core.stage import Work, stage
from tasks.tokens.tokenizer_kinds import TOKENIZER_FILE, Tokenizer, load_tokenizer, smallest_dtype
from tasks.training.bundle import CHAT_FILE


@dataclass(frozen=True)
class TokenisePairsSettings:
    """Form of the chats as a Jinja template, and kinds of conversations to take.

    `bos` is recorded for the trained model: True if texts begin with that id, which is the template's to write.
    """

    template: str
    kinds: tuple[str, ...]
    bos: bool = True


@stage("tokenise_pairs", version=1, unit="document", tables={TOKENS_FILE: TOKENS, EXAMPLES_FILE: EXAMPLES})
def tokenise_pairs(
    work: Work, settings: TokenisePairsSettings, *, pairs: ArtifactRef, documents: ArtifactRef, tokenizer: ArtifactRef
) -> str:
    """Encode the conversations of one segment."""
    table = work.folder(pairs) / PAIRS_FILE
    made = work.in_subprocess(
        encode_pairs,
        unpacked_size(table),
        source=table,
        doc_ids=read_columns(work.folder(documents) / DOCUMENTS_FILE, ["doc_id"])["doc_id"],
        tokenizer=work.folder(tokenizer) / TOKENIZER_FILE,
        fingerprint=tokenizer.digest,
        settings=settings,
        out=work.out,
    )
    work.counts.update(rows=made["rows"], units=made["rows"])
    work.counts.update({name: made[name] for name in ("examples", "tokens", "learnt", "refused")})
    if made["reason"]:
        work.tools["refused"] = made["reason"]
    (work.out / CHAT_FILE).write_text(settings.template, encoding="utf-8")
    return str(made["digest"])


def encode_pairs(
    source: Path,
    doc_ids: list[str],
    tokenizer: Path,
    fingerprint: str,
    settings: TokenisePairsSettings,
    out: Path,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Write the shard of a table of conversations; return counts, a digest and the reason of the first refusal."""
    known = load_tokenizer(tokenizer, fingerprint)
    template = Template(settings.template, known, clock=stopped_clock)
    dtype = smallest_dtype(known.vocab_size).newbyteorder("<")
    ids: list[np.ndarray] = [np.zeros(0, dtype)]
    learnt: list[np.ndarray] = [np.zeros(0, np.uint8)]
    examples: list[dict[str, Any]] = []
    # the trained model keeps the template, so that it is part of the digest
    nothing = hashlib.sha256(settings.template.encode())
    found_in = dict.fromkeys(doc_ids, (0, 0, 0, nothing.hexdigest()))
    offset = refused = 0
    reason = ""
    for done, (doc_id, own) in enumerate(groupby(stream_rows(source), key=lambda row: str(row["doc_id"])), 1):
        digest, first, lost = nothing.copy(), offset, 0
        n_examples = len(examples)
        for row in own:
            if row["kind"] not in settings.kinds:
                continue
            try:
                found = template.examples(row["messages"])
            except ChatError as error:
                refused, reason = refused + 1, reason or f"{doc_id[:12]}: {error}"
                continue
            contents = [message["content"] for message in row["messages"]]
            n_bytes, lost = sum(len(content.encode()) for content in contents), lost + _lost_bytes(known, contents)
            for number, (tokens, marks) in enumerate(found):
                ids.append(np.array(tokens, dtype))
                learnt.append(np.array(marks, np.uint8))
                digest.update(ids[-1].tobytes() + learnt[-1].tobytes())
                named = {name: row[name] for name in ("doc_id", "number", "asked_in")}
                place = {**named, "offset": offset, "length": len(tokens)}
                examples.append({**place, "n_bytes": 0 if number else n_bytes, "learnt": int(learnt[-1].sum())})
                offset += len(tokens)
        of_document = sum(example["n_bytes"] for example in examples[n_examples:])
        found_in[doc_id] = offset - first, of_document, lost, digest.hexdigest()
        progress(done, len(doc_ids))
    whole = np.concatenate(ids)
    np.save(out / SHARD_FILE, whole, allow_pickle=False)
    np.save(out / LEARNT_FILE, np.concatenate(learnt), allow_pickle=False)
    np.save(out / SHARD_COUNTS_FILE, np.bincount(whole, minlength=known.vocab_size), allow_pickle=False)
    write_table(out / EXAMPLES_FILE, EXAMPLES, examples)
    names = ("length", "n_bytes", "lost_bytes", "digest")
    listed: list[dict[str, Any]] = []
    begin = 0
    for doc_id, values in found_in.items():  # in the order of the conversations
        listed.append({"doc_id": doc_id, "offset": begin, **dict(zip(names, values, strict=True))})
        begin += values[0]
    return {
        "rows": write_table(out / TOKENS_FILE, TOKENS, listed),
        "examples": len(examples),
        "tokens": offset,
        "learnt": sum(example["learnt"] for example in examples),
        "refused": refused,
        "reason": reason,
        "digest": rows_digest((row["doc_id"], row["digest"]) for row in listed),
    }


def _lost_bytes(tokenizer: Tokenizer, texts: list[str]) -> int:
    if not tokenizer.may_lose:
        return 0
    return sum(tokenizer.lost_bytes(text, ids) for text, ids in zip(texts, tokenizer.encode(texts), strict=True))

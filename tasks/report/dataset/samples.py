"""The beginnings of a few documents, cut into the tokens that a model reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from storage.schemas import SHARD_FILE
from tasks.report.dataset.figures import Piece, Sample
from tasks.report.dataset.vocabulary import Spelling

if TYPE_CHECKING:
    from storage.catalog import Catalog
    from tasks.tokens.tokenizers import Tokenizer

KINDS = 3  # of which a sample is shown
SHOWN_TOKENS = 320  # of a document
ENOUGH_TOKENS = 120  # a shorter document is shown only if its kind has no longer one


def draw_samples(catalog: Catalog, tokenizer: Tokenizer, documents: str) -> list[Sample]:
    """A training document of each of the kinds with the most tokens: of those that are long enough, the lowest id.

    Ids are hashes, so the choice is nobody's, and is the same every time.

    Args:
        documents: name of the table of documents.
    """
    chosen = catalog.query(
        f"with kinds as (select kind, sum(length) as tokens from {documents} where split = 'train' group by 1 "
        f"order by tokens desc, kind limit {KINDS}) select d.kind, d.length as tokens, d.doc_id "
        f"from {documents} d join kinds k using (kind) where d.split = 'train' "
        f"qualify row_number() over (partition by d.kind order by least(d.length, {ENOUGH_TOKENS}) desc, d.doc_id) = 1 "
        "order by k.tokens desc, d.kind"
    )
    spelling = Spelling(tokenizer)
    return [
        Sample(
            row["kind"],
            _path(catalog, row["doc_id"]),
            row["tokens"],
            _pieces(spelling, _ids(catalog, row["doc_id"])),
        )
        for row in chosen
    ]


def _path(catalog: Catalog, doc_id: str) -> str:
    rows = catalog.query(f"select min(path) as path from files where status = 'ok' and doc_id = '{doc_id}'")
    return rows[0]["path"] or ""


def _ids(catalog: Catalog, doc_id: str) -> list[int]:
    """The first ids of a document, from the shard that it is read from."""
    (place,) = catalog.query(
        'select h.filename, a."offset" as first, a.length from holders_tokenise h join all_tokenise a '
        f"on a.doc_id = h.doc_id and a.filename = h.filename where h.doc_id = '{doc_id}'"
    )
    shard = np.load(Path(place["filename"]).with_name(SHARD_FILE), mmap_mode="r", allow_pickle=False)
    first = place["first"]
    ids: list[int] = shard[first : first + min(place["length"], SHOWN_TOKENS)].tolist()
    return ids


def _pieces(spelling: Spelling, ids: list[int]) -> list[Piece]:
    tokens = (spelling.token(index) for index in ids)
    return [Piece(token.index, token.text, token.code, token.index in spelling.special) for token in tokens]

"""A stage of one's own, in a file of one's own: the words of each document, counted once.

    python examples/own_stage.py SOURCE...

The flow ingests the sources, then counts the words of the refined texts, a task for each segment. Run it again: every
task of the graph ends as `Cached`. Add a document: its segment alone is counted. With a team's variables in the shell
(`. .sheepfold/team/environment`) the run appears on the pages of its Prefect server.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from flows.context import flow, open_run
from flows.ingest import ingest_documents
from flows.options import IngestOptions
from flows.report import finish, result_text
from storage.digest import sha256_json
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE
from storage.tables import stream_rows, union_digest, write_table
from tasks.core.stage import Work, stage

WORDS_FILE = "words.parquet"
WORDS = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("n_words", pa.int64(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True)
class WordSettings:
    """Settings of the stage, which are part of the key: the shortest word that is counted, in letters."""

    least_letters: int = 1


@stage("own_word_counts", version=1, unit="document", tables={WORDS_FILE: WORDS})
def word_counts(work: Work, settings: WordSettings, *, documents: ArtifactRef) -> str:
    """Count the words of each document of a segment."""

    def rows() -> Iterator[dict[str, Any]]:
        for row in stream_rows(work.folder(documents) / DOCUMENTS_FILE, ["doc_id", "text"]):
            n_words = sum(len(word) >= settings.least_letters for word in row["text"].split())
            yield {"doc_id": row["doc_id"], "n_words": n_words, "digest": sha256_json(n_words)}

    work.counts["rows"] = work.counts["units"] = write_table(work.out / WORDS_FILE, WORDS, rows())
    return union_digest([work.out / WORDS_FILE])


@flow(IngestOptions)
def count_words(options: IngestOptions) -> dict[str, Any]:
    """Ingest what is new, and count the words of its documents."""
    settings = options.load()
    with open_run(options, settings.limits) as run:
        ingested = ingest_documents(run, options.source, settings)
        counted = ingested.segments.map(run, word_counts, WordSettings(least_letters=2), documents=ingested.refined)
        run.remember(own_word_counts=counted)  # the corpus's name leads to them, so that `gc` keeps them
        return {**finish(run), "words": [str(run.store.folder(ref) / WORDS_FILE) for ref in counted]}


if __name__ == "__main__":
    result = count_words(IngestOptions(source="\n".join(sys.argv[1:])))
    print(result_text(result))
    total = "select count(*) as documents, sum(n_words)::bigint as words from read_parquet($files)"
    print(duckdb.execute(total, {"files": result["words"]}).fetchall())

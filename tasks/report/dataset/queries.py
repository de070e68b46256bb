"""Counts what a dataset report shows, in SQL over the catalogue's views.

What is needed of each document is joined once into a temporary table, without its text and without its ids; everything
else is an aggregate of it, or the first few rows of an order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from storage.store import StoreError
from tasks.report.corpus.queries import live_table
from tasks.report.dataset import artefacts, samples, vocabulary
from tasks.report.dataset.figures import DatasetFigures, Histogram, Lengths, Packed, Slice
from tasks.report.joins import Join, join_in_steps

if TYPE_CHECKING:
    from storage.catalog import Catalog

DOCUMENTS = "dataset_report_documents"
_PER_DECADE = 4  # bins of lengths between a power of ten and the next
_PER_UNIT, _MOST = 4, 6  # bins of bytes a token for each byte, and where they end
_SUMS = (
    "count(*) as documents, coalesce(sum(length), 0)::bigint as tokens, coalesce(sum(n_bytes), 0)::bigint as n_bytes, "
    "coalesce(sum(lost_bytes), 0)::bigint as lost_bytes, "
    "coalesce(sum(length) filter (split = 'validation'), 0)::bigint as held_out"
)


def collect_dataset(catalog: Catalog, corpus: str) -> DatasetFigures:
    """All figures of a corpus's dataset.

    Raises:
        StoreError: if the corpus was not prepared yet.
    """
    missing = [stage for stage in ("tokenizer", "tokenise", "dataset") if not catalog.state.get(stage)]
    if missing:
        raise StoreError(
            f"corpus {corpus!r} has no {missing[0]} artefact yet, so there is no dataset to report on: run `sheepfold "
            "prepare SOURCE` or `run` first"
        )
    with _documents(catalog):
        return _collect(catalog)


@contextmanager
def _documents(catalog: Catalog) -> Iterator[None]:
    """The documents in use, as a temporary table that goes in the end."""
    first = (
        "select s.doc_id, s.split, s.licence, t.length, t.n_bytes, t.lost_bytes "
        f"from all_selection s join {live_table(catalog, 'tokenise')} t using (doc_id) where s.kept"
    )
    joins = (
        Join(f"{live_table(catalog, 'refine')} r", "r.kind, r.redactions"),
        Join(
            f"{live_table(catalog, 'measure')} m",
            "m.language",
            "coalesce(d.licence, m.licence, 'unknown') as licence",  # a folder's before what a text declares
        ),
        Join(f"{live_table(catalog, 'normalise')} n", "n.programming_language"),
        # a document with several paths counts under the first; the others are its duplicates
        Join("(select doc_id, source from files where status = 'ok') f", "coalesce(f.source, 'unknown') as source"),
    )
    try:
        join_in_steps(catalog.connection, DOCUMENTS, first, joins)
        yield
    finally:
        catalog.connection.execute(f"drop table if exists {DOCUMENTS}")


def _collect(catalog: Catalog) -> DatasetFigures:
    (total,) = _slices(catalog, "'all'") or [Slice("all", 0, 0, 0, 0, 0)]
    (kept,) = catalog.query("select count(*) as n from all_selection where kept")
    tokenizer = artefacts.read_tokenizer(catalog)
    packed = artefacts.read_packed(catalog, _indexed(catalog))
    splits = sorted(_slices(catalog, "split"), key=lambda item: (item.name == "validation", item.name))
    return DatasetFigures(
        total=total,
        splits=splits,
        kinds=_slices(catalog, "kind"),
        sources=_slices(catalog, "source"),
        languages=_slices(catalog, "coalesce(language, 'und')", "kind <> 'code'"),
        programming_languages=_slices(catalog, "coalesce(programming_language, 'unknown')", "kind = 'code'"),
        licences=_slices(catalog, "licence"),
        not_encoded=kept["n"] - total.documents,
        redactions=_redactions(catalog),
        lengths=_lengths(catalog, packed),
        packed=packed,
        tokenizer=artefacts.tokenizer_facts(catalog, tokenizer),
        vocabulary=vocabulary.usage(tokenizer, artefacts.read_counts(catalog)),
        samples=samples.draw_samples(catalog, tokenizer, DOCUMENTS),
    )


def _slices(catalog: Catalog, column: str, where: str = "true") -> list[Slice]:
    rows = catalog.query(
        f"select {column} as name, {_SUMS} from {DOCUMENTS} where {where} group by 1 order by tokens desc, name"
    )
    return [Slice(**row) for row in rows]


def _redactions(catalog: Catalog) -> tuple[int, int]:
    (found,) = catalog.query(
        "select coalesce(sum(redactions), 0)::bigint as spans, count(*) filter (redactions > 0) as documents "
        f"from {DOCUMENTS}"
    )
    return found["spans"], found["documents"]


def _indexed(catalog: Catalog) -> dict[str, tuple[int, int]]:
    """Ids at input places, and sequences, of each side as the index has them."""
    rows = catalog.query(
        "select split, sum(length - ahead)::bigint as ids, count(distinct sequence) as sequences from dataset "
        "group by 1"
    )
    return {row["split"]: (row["ids"], row["sequences"]) for row in rows}


def _lengths(catalog: Catalog, packed: Packed) -> Lengths:
    (found,) = catalog.query(
        "select coalesce(max(length), 0) as longest, "
        "coalesce(max(length) filter (split = 'train'), 0) as longest_train, "
        f"count(*) filter (length > {int(packed.seq_len)}) as longer from {DOCUMENTS}"
    )
    ratio = "n_bytes / nullif(length, 0)"
    of_length = f"floor(log10(greatest(length, 1)) * {_PER_DECADE})"
    of_ratio = f"least(floor({ratio} * {_PER_UNIT}), {_MOST * _PER_UNIT - 1})"
    return Lengths(
        tokens=_histogram(catalog, "tokens", "length", of_length, linear=False),
        bytes_per_token=_histogram(catalog, "bytes-a-token", ratio, of_ratio, linear=True),
        **found,
    )


def _histogram(catalog: Catalog, name: str, value: str, bin_: str, *, linear: bool) -> Histogram:
    """Documents by a value.

    Args:
        value, bin_: SQL of the value, and of the number of its bin.
        linear: whether the bins are of one width, and not growing by a factor.
    """
    (middle,) = catalog.query(f"select median({value})::double as value from {DOCUMENTS}")
    rows = catalog.query(
        f"select {bin_}::int as bin, split, count(*) as n from {DOCUMENTS} where {value} is not null group by 1, 2 "
        "order by 1"
    )
    if not rows:
        return Histogram(name, (), (), (), not linear, None)
    first, last = (rows[0]["bin"], rows[-1]["bin"]) if not linear else (0, _MOST * _PER_UNIT - 1)
    counts = {"train": [0] * (last - first + 1), "validation": [0] * (last - first + 1)}
    for row in rows:
        counts[row["split"]][row["bin"] - first] += row["n"]
    bins = range(first, last + 2)
    edges = tuple(place / _PER_UNIT if linear else 10 ** (place / _PER_DECADE) for place in bins)
    return Histogram(name, edges, tuple(counts["train"]), tuple(counts["validation"]), not linear, middle["value"])

"""The catalogue over a tiny store made by hand: which rows its views show, and how queries fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rows import row

from storage import schemas
from storage.catalog import Catalog, QueryError, corpus_ref, read_ids, read_state
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.store import Store, StoreError

Put = Callable[..., ArtifactRef]
VIEWS = {
    "mends",
    "misread",
    "files",
    "pages",
    "documents",
    "measures",
    "near_pairs",
    "clusters",
    "cuts",
    "tokens",
    "dataset",
    "completions",
    "metrics",
    "evaluated",
    "slices",
    "quarantine",
}


def file(path: str, status: str, doc_id: str | None = None, segment: str | None = None, **more: Any) -> dict[str, Any]:
    return row(schemas.FILES, path=path, status=status, doc_id=doc_id, segment=segment, **more)


class Corpus:
    """Six files in two segments: two duplicates, one refused, one dropped; one was read again in the second segment."""

    def __init__(self, store: Store, put: Put) -> None:
        self.state: dict[str, list[ArtifactRef]] = {}
        old = self._segment(put, "old", {"a": "alpha", "b": "beta, read badly", "gone": "removed"})
        new = self._segment(put, "new", {"b": "beta", "c": "gamma"})
        files = [
            file("a.txt", "ok", "a", old),
            file("copy of a.txt", "duplicate", "a", old),
            file("b.txt", "ok", "b", new),
            file("c.txt", "ok", "c", new),
            file("copy of c.txt", "duplicate", "c", new),
            file("broken.pdf", "failed", reason_code="deadline", reason="took longer than 60 s"),
            file("box.zip", "ok"),
            file("box.zip/in.bin", "rejected", container="box.zip", reason_code="binary", reason="no text"),
        ]
        selection = [
            row(schemas.SELECTION, doc_id="a", segment=old, split="train", kept=True, cluster="x"),
            row(schemas.SELECTION, doc_id="b", segment=new, split="validation", kept=True, cluster="y", licence="MIT"),
            row(schemas.SELECTION, doc_id="c", segment=new, split="train", kept=False, cluster="z"),
        ]
        dropped = [row(schemas.DROPPED, doc_id="c", reason_code="too_short", reason="5 characters")]
        self.state["snapshot"] = [put("snapshot", "s", tables={"files.parquet": (schemas.FILES, files)})]
        curated = {
            "selection.parquet": (schemas.SELECTION, selection),
            "dropped.parquet": (schemas.DROPPED, dropped),
            "cuts.parquet": (schemas.CUTS, [row(schemas.CUTS, doc_id="a", length=3, reason_code="evaluation_set")]),
        }
        self.state["curate"] = [put("curate", "c", tables=curated)]
        near = {
            "pairs.parquet": (schemas.NEAR_PAIRS, [row(schemas.NEAR_PAIRS, doc_id="a", other_id="c", similarity=0.9)]),
            "clusters.parquet": (schemas.CLUSTERS, [row(schemas.CLUSTERS, doc_id=name) for name in "abc"]),
        }
        self.state["dedup"] = [put("dedup", "d", tables=near)]
        save(store, self.state)

    def _segment(self, put: Put, name: str, texts: dict[str, str]) -> str:
        pages = [row(schemas.PAGES, doc_id=doc_id, page=1, text=text) for doc_id, text in texts.items()]
        segment = put("extract", name, tables={"pages.parquet": (schemas.PAGES, pages)})
        normalised = [
            row(schemas.NORMALISED, doc_id=doc_id, text=text, n_bytes=len(text), ocr_share=0.5)
            for doc_id, text in texts.items()
        ]
        documents = put(
            "normalise",
            name,
            tables={"documents.parquet": (schemas.NORMALISED, normalised)},
            inputs={"segment": segment},
        )
        measured = [
            row(schemas.MEASURES, doc_id=doc_id, n_chars=len(text), kind="text") for doc_id, text in texts.items()
        ]
        measures = put(
            "measure",
            name,
            tables={"measures.parquet": (schemas.MEASURES, measured)},
            inputs={"documents": documents},
        )
        refined = [
            row(schemas.REFINED, doc_id=doc_id, text=text.upper(), n_bytes=1, redactions=2, cut_chars=3, mends=0)
            for doc_id, text in texts.items()
        ]
        final = put(
            "refine",
            name,
            tables={"documents.parquet": (schemas.REFINED, refined)},
            inputs={"documents": documents, "measures": measures},
        )
        encoded = [row(schemas.TOKENS, doc_id=doc_id, length=len(text)) for doc_id, text in texts.items()]
        tokens = put(
            "tokenise", name, tables={"tokens.parquet": (schemas.TOKENS, encoded)}, inputs={"documents": final}
        )
        made = (segment, documents, measures, final, tokens)
        for stage, ref in zip(("extract", "normalise", "measure", "refine", "tokenise"), made, strict=True):
            self.state.setdefault(stage, []).append(ref)
        return segment.key


def save(store: Store, state: dict[str, list[ArtifactRef]], corpus: str = "letters") -> None:
    store.write_ref(corpus_ref(corpus), {stage: [asdict(ref) for ref in refs] for stage, refs in state.items()})


@pytest.fixture
def catalog(store: Store, put: Put) -> Catalog:
    Corpus(store, put)
    return Catalog(store, "letters")


def test_the_state_of_a_corpus_reads_back_as_references(store: Store, put: Put) -> None:
    state = Corpus(store, put).state
    assert read_state(store, "letters") == state
    assert read_state(store, "unknown") == {}


def test_every_path_has_a_row_in_files_duplicates_among_them(catalog: Catalog) -> None:
    assert catalog.query("select status, count(*) as n from files group by 1 order by 1") == [
        {"status": "duplicate", "n": 2},
        {"status": "failed", "n": 1},
        {"status": "ok", "n": 4},
        {"status": "rejected", "n": 1},
    ]


def test_files_have_the_columns_of_their_schema_without_the_segment(catalog: Catalog) -> None:
    names = set(catalog.query("select * from files limit 1")[0])
    assert names == set(schemas.FILES.names) - {"segment"}


def test_a_document_at_two_paths_counts_once_and_one_in_two_segments_is_shown_from_its_live_one(
    catalog: Catalog,
) -> None:
    assert catalog.query("select doc_id, text from pages order by doc_id") == [
        {"doc_id": "a", "text": "alpha"},
        {"doc_id": "b", "text": "beta"},
        {"doc_id": "c", "text": "gamma"},
    ]


def test_documents_and_tokens_are_those_that_curation_kept_with_their_split(catalog: Catalog) -> None:
    expected = [{"doc_id": "a", "split": "train"}, {"doc_id": "b", "split": "validation"}]
    assert catalog.query("select doc_id, split from documents order by 1") == expected
    assert catalog.query("select doc_id, split from tokens order by 1") == expected
    assert catalog.query("select text, cluster, licence from documents where doc_id = 'b'") == [
        {"text": "BETA", "cluster": "y", "licence": "MIT"}
    ]
    assert catalog.query("select length from tokens where doc_id = 'b'") == [{"length": 4}]


def test_documents_carry_the_sizes_of_the_text_that_models_see_and_the_measures_of_the_one_that_was_measured(
    catalog: Catalog,
) -> None:
    assert catalog.query(
        "select n_bytes, n_chars, redactions, cut_chars, ocr_share, kind from documents where doc_id = 'b'"
    ) == [{"n_bytes": 1, "n_chars": 4, "redactions": 2, "cut_chars": 3, "ocr_share": 0.5, "kind": ""}]


def test_measures_are_those_of_every_live_document_the_dropped_among_them(catalog: Catalog) -> None:
    assert catalog.query("select doc_id, n_chars from measures order by 1") == [
        {"doc_id": "a", "n_chars": 5},
        {"doc_id": "b", "n_chars": 4},
        {"doc_id": "c", "n_chars": 5},
    ]


def test_near_pairs_clusters_and_cuts_are_shown(catalog: Catalog) -> None:
    assert catalog.query("select * from near_pairs") == [{"doc_id": "a", "other_id": "c", "similarity": 0.9}]
    assert catalog.query("select doc_id from clusters order by 1") == [{"doc_id": name} for name in "abc"]
    assert catalog.query("select * from cuts") == [
        {"doc_id": "a", "start": 0, "length": 3, "reason_code": "evaluation_set"}
    ]


def test_quarantine_lists_refused_files_and_dropped_documents_each_once(catalog: Catalog) -> None:
    assert catalog.query("select path, stage, reason_code, reason from quarantine order by path") == [
        {"path": "box.zip/in.bin", "stage": "ingest", "reason_code": "binary", "reason": "no text"},
        {"path": "broken.pdf", "stage": "ingest", "reason_code": "deadline", "reason": "took longer than 60 s"},
        {"path": "c.txt", "stage": "curate", "reason_code": "too_short", "reason": "5 characters"},
    ]


def test_a_stage_that_did_not_run_gives_an_empty_view_of_the_right_columns(store: Store, put: Put) -> None:
    files = put("snapshot", "s", tables={"files.parquet": (schemas.FILES, [file("a.txt", "ok", "a", "s1")])})
    save(store, {"snapshot": [files]})
    catalog = Catalog(store, "letters")
    for view in VIEWS - {"files"}:
        assert catalog.query(f"select * from {view}") == []
    described = {entry["column_name"] for entry in catalog.query("describe documents")}
    own = {"cluster", "split", "title", "programming_language", "text", "n_bytes", "redactions", "cut_chars", "mends"}
    own |= {"classifier_score", "error_rate"}
    assert described == (set(schemas.MEASURES.names) | own | {"n_pages", "ocr_share", "ocr_confidence"}) - {"digest"}


def test_a_corpus_without_a_run_is_refused_with_the_names_of_those_that_have_one(store: Store) -> None:
    with pytest.raises(StoreError, match=r"'letters' has no completed run .*corpora with one: none"):
        Catalog(store, "letters")
    save(store, {"snapshot": [ArtifactRef("snapshot", "k", "d")]}, "novels")
    with pytest.raises(StoreError, match=r"corpora with one: novels"):
        Catalog(store, "letters")


def test_an_artefact_that_is_gone_is_named_before_any_query_runs(store: Store) -> None:
    save(store, {"snapshot": [ArtifactRef("snapshot", "0123", "d")]})
    with pytest.raises(StoreError, match="snapshot/0123 is not in the store"):
        Catalog(store, "letters")


@pytest.mark.parametrize("sql", ["select * from nowhere", "selct 1", "select colour from files", "select 'a'::int"])
def test_a_query_that_duckdb_refuses_is_a_query_error(catalog: Catalog, sql: str) -> None:
    with pytest.raises(QueryError, match="Error"):
        catalog.query(sql)


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("null", None),
        ("true", True),
        ("1::hugeint", 1),
        ("1.5::decimal(4, 2)", 1.5),
        ("'nan'::double", None),
        ("'inf'::double", None),
        ("date '2024-02-29'", "2024-02-29"),
        ("timestamp '2024-02-29 12:00:00'", "2024-02-29 12:00:00"),
        ("'\\x00\\xff'::blob", "00ff"),
        ("[1, null, 'nan'::double]", [1.0, None, None]),
        ("{'a': 1.5::decimal(4, 2), 'b': ['x']}", {"a": 1.5, "b": ["x"]}),
        ("map {'k': date '2024-02-29'}", {"k": "2024-02-29"}),
        ("'ÅÖ'", "ÅÖ"),
    ],
)
def test_values_come_as_json_knows_them(catalog: Catalog, sql: str, value: Any) -> None:
    (found,) = catalog.query(f"select {sql} as value")
    assert found == {"value": value} and type(found["value"]) is type(value)


def test_columns_of_one_name_do_not_hide_each_other(catalog: Catalog) -> None:
    assert catalog.query("select 1 as a, 2 as a, 3 as a_1, 4 as a") == [{"a": 1, "a_2": 2, "a_1": 3, "a_3": 4}]


def test_a_store_in_a_folder_whose_name_looks_like_a_pattern_shows_its_own_rows_only(tmp_path: Path) -> None:
    def fill(folder: str, path: str) -> Store:
        from storage.manifest import Manifest
        from storage.tables import write_table

        store = Store(tmp_path / folder)
        with store.workspace("snapshot", "k") as workspace:
            write_table(workspace.out / "files.parquet", schemas.FILES, [file(path, "ok")])
            ref = store.commit(workspace, Manifest("snapshot", 1, "k", "d", {}, {}, files=[])).ref
        save(store, {"snapshot": [ref]})
        return store

    fill("home1", "other.txt")
    odd = fill("home[1*?]'s", "own.txt")
    fill("home1's", "another.txt")
    assert Catalog(odd, "letters").query("select path from files") == [{"path": "own.txt"}]


def test_more_ids_than_a_column_of_lists_may_hold_are_refused_before_they_are_read() -> None:
    with pytest.raises(
        UserError, match=r"2 documents have 2,147,483,648 token ids, and a column holds at most 2,147,483,647"
    ):
        read_ids(pa.array(["nowhere"] * 2), pa.array([0, 2**30]), pa.array([2**30, 2**30]))

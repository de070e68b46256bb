"""Small corpora made by hand, with a row for everything that a corpus report shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from rows import row

from storage import schemas
from storage.catalog import Catalog, corpus_ref
from storage.digest import sha256_json
from storage.manifest import ArtifactRef, Input, Manifest, describe_inputs
from storage.store import Store
from storage.tables import write_table

CORPUS = "sample"
HOSTILE = "<img src=x onerror=hit=1>\n\u202egnp</style></title><script>hit=1</script>&amp;\"'|`*.txt"
LONG = "folder/" * 60 + "end.txt"

Row = dict[str, Any]
Tables = Mapping[str, tuple[pa.Schema, Sequence[Row]]]


class Sample:
    """A corpus that is put together piece by piece, in one segment.

    Attributes:
        files: rows of the snapshot.
        stale: lengths of documents as an older segment has them, by id.
    """

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.files: list[Row] = []
        self._documents: list[tuple[Row, Row, Row, list[Row]]] = []
        self._selected: list[Row] = []
        self._dropped: list[Row] = []
        self._tokens: list[Row] = []
        self.cuts: list[Row] = []
        self.pairs: list[Row] = []
        self.clusters: list[Row] = []
        self.redacted = ["email"]
        self.stale: dict[str, int] = {}

    def file(self, path: str, status: str, code: str = "", reason: str = "", **more: Any) -> None:
        """A file that is no document of its own."""
        self.files.append(row(schemas.FILES, path=path, status=status, reason_code=code, reason=reason, **more))

    def document(
        self,
        doc_id: str,
        path: str,
        *,
        split: str = "train",
        dropped: str = "",
        reason: str = "",
        curated: bool = True,
        pages: Iterable[Mapping[str, Any]] = ({"method": "text", "engine": "decoder"},),
        tokens: int | None = None,
        n_bytes: int = 100,
        cluster: str = "",
        kind: str = "text",
        programming_language: str | None = None,
        licence: str | None = None,
        file: Mapping[str, Any] | None = None,
        **measures: Any,
    ) -> None:
        """A document with its file."""
        self.file(path, "ok", doc_id=doc_id, segment="", size=n_bytes, licence=licence, **(file or {}))
        named = {"doc_id": doc_id, "kind": kind}
        plain = {"language": "en", "language_confidence": 0.9, "n_chars": n_bytes, **measures}
        normalised = row(schemas.NORMALISED, **named, programming_language=programming_language, n_bytes=n_bytes)
        measured = row(schemas.MEASURES, **named, **plain)
        refined = row(schemas.REFINED, **named, text="x" * n_bytes, n_bytes=n_bytes)
        numbered = [row(schemas.PAGES, **{"doc_id": doc_id, "page": n, **page}) for n, page in enumerate(pages, 1)]
        self._documents.append((normalised, measured, refined, numbered))
        if cluster:
            text = f"text of {doc_id}"
            self.clusters.append(row(schemas.CLUSTERS, doc_id=doc_id, cluster=cluster, text_sha256=text))
        if curated:
            chosen = {"cluster": cluster or doc_id, "split": split, "kept": not dropped, "licence": licence}
            self._selected.append(row(schemas.SELECTION, doc_id=doc_id, n_bytes=n_bytes, **chosen))
        if dropped:
            self._dropped.append(row(schemas.DROPPED, doc_id=doc_id, reason_code=dropped, reason=reason))
        if tokens is not None:
            self._tokens.append(row(schemas.TOKENS, doc_id=doc_id, length=tokens, n_bytes=n_bytes))

    def catalog(self) -> Catalog:
        """Write it all and open it."""
        normalised, measured, refined = ([group[n] for group in self._documents] for n in range(3))
        pages = [page for group in self._documents for page in group[3]]
        segment = self._put("extract", {"pages.parquet": (schemas.PAGES, pages)})
        for entry in self.files:
            entry["segment"] = segment.key if entry["doc_id"] else None
        state = {
            "extract": [segment],
            "snapshot": [self._put("snapshot", {"files.parquet": (schemas.FILES, self.files)})],
        }
        state |= self._segment("live", segment, normalised, measured, refined)
        made = state["refine"][0]
        if self.stale:
            old = self._put("extract", {"pages.parquet": (schemas.PAGES, [])}, name="old")
            texts, figures, clean = (
                [row(schema, doc_id=doc_id, **{column: length}) for doc_id, length in self.stale.items()]
                for schema, column in (
                    (schemas.NORMALISED, "n_bytes"), (schemas.MEASURES, "n_chars"), (schemas.REFINED, "n_bytes"),
                )
            )  # fmt: skip
            for stage, refs in self._segment("old", old, texts, figures, clean).items():
                state[stage] = [*refs, *state[stage]]
        if self._selected:
            curated = {
                "selection.parquet": (schemas.SELECTION, self._selected),
                "dropped.parquet": (schemas.DROPPED, self._dropped),
                "cuts.parquet": (schemas.CUTS, self.cuts),
            }
            alike = {
                "pairs.parquet": (schemas.NEAR_PAIRS, self.pairs),
                "clusters.parquet": (schemas.CLUSTERS, self.clusters),
            }
            state["curate"] = [self._put("curate", curated, {"policy": {"preset": "gentle"}})]
            state["dedup"] = [self._put("dedup", alike)]
        if self._tokens:
            encoded = {"tokens.parquet": (schemas.TOKENS, self._tokens)}
            state["tokenise"] = [self._put("tokenise", encoded, documents=made)]
        self.store.write_ref(corpus_ref(CORPUS), {name: [asdict(ref) for ref in refs] for name, refs in state.items()})
        return Catalog(self.store, CORPUS)

    def _segment(
        self, name: str, segment: ArtifactRef, normalised: list[Row], measured: list[Row], refined: list[Row]
    ) -> dict[str, list[ArtifactRef]]:
        """The tables of a segment."""
        texts = {"documents.parquet": (schemas.NORMALISED, normalised)}
        documents = self._put("normalise", texts, name=name, segment=segment)
        measures = {"measures.parquet": (schemas.MEASURES, measured)}
        figures = self._put("measure", measures, name=name, documents=documents)
        clean = {"documents.parquet": (schemas.REFINED, refined)}
        made = self._put("refine", clean, {"redact": self.redacted}, name=name, documents=documents)
        return {"normalise": [documents], "measure": [figures], "refine": [made]}

    def _put(
        self,
        stage: str,
        tables: Tables,
        settings: Mapping[str, Any] | None = None,
        name: str = "",
        **inputs: Input,
    ) -> ArtifactRef:
        key = sha256_json([stage, name])
        with self.store.workspace(stage, key) as workspace:
            for table, (schema, rows) in tables.items():
                write_table(workspace.out / table, schema, rows)
            manifest = Manifest(stage, 1, key, key, describe_inputs(inputs), dict(settings or {}), files=[])
            return self.store.commit(workspace, manifest).ref


def rich(folder: Path, hostile: str = HOSTILE) -> Sample:
    """A corpus with something in every section of the report."""
    sample = Sample(folder)
    ocr = {"method": "ocr", "engine": "tesseract"}
    scans = [{**ocr, "confidence": 0.2 + 0.05 * n, "text": f"read {n} {hostile}"} for n in range(14)]
    failing = [{"method": "none", "engine": "pypdfium2", "error": f"bad page of {hostile}"}]
    sample.document("scan", "scans/one.pdf", pages=[*scans, *failing], kind="pdf", cluster="a")
    sample.document("copy", hostile, dropped="near_duplicate", reason="nearly the same", cluster="a")
    sample.document(
        "code", "code/tool.py", kind="code", programming_language="Python", licence="MIT", comment_share=0.2
    )
    spans = [{"kind": kind, "start": n, "length": 1} for n, kind in enumerate(("email", "email", "phone"))]
    sample.document("long", LONG, pii=spans, language="de", n_bytes=100_000)
    sample.document("held", "held.md", split="validation", language="und", language_confidence=0.0)
    sample.document("short", "tiny.txt", dropped="too_short", reason=f"3 characters of {hostile}", n_bytes=3)
    sample.document("twin", "bag.zip/in.txt", dropped="evaluation_set", file={"container": "bag.zip"}, cluster="a")
    sample.pairs.append(row(schemas.NEAR_PAIRS, doc_id="copy", other_id="scan", similarity=0.95))
    sample.pairs.append(row(schemas.NEAR_PAIRS, doc_id="scan", other_id="twin", similarity=0.85))
    sample.cuts.append(row(schemas.CUTS, doc_id="long", start=5, length=20, reason_code="evaluation_set"))
    sample.file("bag.zip", "ok", media_type="application/zip", size=50)
    sample.file("bag.zip/bad.bin", "skipped", "unsupported", "no text", container="bag.zip", size=7)
    sample.file("copy.md", "duplicate", "duplicate_bytes", "same bytes as held.md", doc_id="held", size=100)
    sample.file("locked.pdf", "rejected", "encrypted", "needs a password", size=10)
    sample.file("slow.pdf", "failed", "timeout", f"{hostile} took too long", size=20)
    return sample

"""The comparison of two models on the same documents: page, table for a terminal and JSON document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from storage.atomic import write_file
from storage.catalog import json_value
from storage.digest import sha256_json
from storage.manifest import ArtifactRef
from storage.store import Store
from tasks.evaluation.compare import Difference, DocumentPair, SlicePair, compare_evaluations
from tasks.lineage.training_data import first_paths
from tasks.report.evaluation import Measured, beginnings, first_completions
from tasks.report.page import render
from tasks.report.queries import Row
from tasks.report.wording import amount, decimals, integer

NAMES = {"top1": "top-1"}
FIRST = ("bits_per_byte", "loss", "perplexity", "top1")  # metrics shown first
_KEY = 8  # characters of each key in the name of a page


def collect_pair(store: Store, a: Measured, b: Measured, notes: Sequence[str] = ()) -> Row:
    """Compare two models that were evaluated on the same documents.

    Args:
        a, b: the models with evaluations, and completions of the same prompts.
        notes: reasons to doubt the comparison.

    Returns:
        The arguments; the `comparison`; `begins` and `paths`, beginnings and known paths of the documents with the
        largest difference, by id; `completions`, pairs for the same prompt.

    Raises:
        UserError: they were evaluated on different documents, or with different settings.
        StoreError: an artefact is missing.
    """
    found = compare_evaluations(store, a.evaluation, b.evaluation)
    doc_ids = [item.doc_id for item in found.documents]
    return Row(
        a=a,
        b=b,
        notes=notes,
        comparison=found,
        begins=beginnings(store, a.evalset, doc_ids),
        paths=first_paths(store, a.evalset, doc_ids),
        completions=list(zip(*(first_completions(store, side.completions) for side in (a, b)), strict=True)),
    )


def write_pair_page(folder: Path, found: Row, corpus: str) -> Path:
    """Write the page and return its path, which contains the keys of models, documents and settings."""
    sides = (found.a, found.b)
    how = [ref.key for side in sides for ref in (side.evaluation, side.completions) if ref is not None]
    keys = [*(side.checkpoint.key for side in sides), found.a.evalset.key, sha256_json(how)]
    page = folder / f"{'-'.join(['comparison', *(key[:_KEY] for key in keys)])}.html"
    folder.mkdir(parents=True, exist_ok=True)
    write_file(page, pair_page(found, corpus).encode())
    return page


def pair_page(found: Row, corpus: str) -> str:
    """Return the page from the result of `collect_pair`."""
    return render("comparison.html", corpus=corpus, **_shown(found))


def pair_table(found: Row) -> str:
    """Return the comparison as Markdown: verdict, figures, slices, documents, completions."""
    return render("comparison.md", **_shown(found)).rstrip()


def _shown(found: Row) -> dict[str, Any]:
    """Return the values of both page and table: `names` of the models, metrics shown `first`, and the `rest`."""
    names = (found.a.model, found.b.model)
    if names[0] == names[1]:
        names = (f"{names[0]} (A)", f"{names[1]} (B)")
    metrics = found.comparison.metrics
    first = [name for name in map("val/{}".format, FIRST) if name in metrics]
    chosen = {"first": first, "rest": [name for name in metrics if name not in first]}
    figures = {part: [_figure(name, *metrics[name]) for name in listed] for part, listed in chosen.items()}
    return {**vars(found), **figures, "names": names}


def _figure(name: str, a: float | None, b: float | None) -> list[str]:
    """Return name, both values and their difference (first minus second) of a metric."""
    whole = name.endswith(("tokens", "bytes", "documents", "_order"))
    one, other = (math.nan if value is None else value for value in (a, b))
    if one == other:
        change = "="
    elif abs(one - other) < 10_000 or math.isnan(one - other):
        change = decimals(one - other, sign=True)
    else:
        change = f"{'+' if one > other else '−'}{amount(abs(one - other))}"
    values = (integer(value) if whole and not math.isnan(value) else decimals(value) for value in (one, other))
    name = name.removeprefix("val/")
    return [NAMES.get(name, name.replace("_", " ")), *values, change]


def pair_document(found: Row) -> dict[str, Any]:
    """Return the comparison as a JSON document; differences are a minus b, in bits per byte."""
    compared = found.comparison
    completions = [
        {"prompt": a.prompt, "a": a.text, "b": b.text, "a_error": a.error or None, "b_error": b.error or None}
        for a, b in found.completions
    ]
    document: dict[str, Any] = {
        "a": _side(found.a),
        "b": _side(found.b),
        "evalset": _address(found.a.evalset),
        "difference": _difference(compared.difference),
        "metrics": {name: {"a": a, "b": b} for name, (a, b) in compared.metrics.items()},
        "slices": [
            {
                "dimension": item.dimension,
                "value": item.value,
                "documents": item.a.documents,
                "bytes": item.a.bytes,
                **_bits_per_byte(item),
                "difference": _difference(item.difference),
            }
            for item in compared.slices
        ],
        "documents": [
            {
                "doc_id": item.doc_id,
                "path": found.paths.get(item.doc_id),
                "bits": item.bits,
                **_bits_per_byte(item),
                "begins": found.begins[item.doc_id],
            }
            for item in compared.documents
        ],
        "completions": completions,
        "notes": list(found.notes),
    }
    finite: dict[str, Any] = json_value(document)
    return finite


def _side(side: Measured) -> dict[str, str]:
    return {"model": side.model, "checkpoint": _address(side.checkpoint), "evaluation": _address(side.evaluation)}


def _address(ref: ArtifactRef) -> str:
    return f"{ref.stage}/{ref.key}"


def _bits_per_byte(item: SlicePair | DocumentPair) -> dict[str, float]:
    return {"a": item.a.bits_per_byte, "b": item.b.bits_per_byte}


def _difference(difference: Difference) -> dict[str, Any]:
    return {**asdict(difference), "clear": difference.is_clear}

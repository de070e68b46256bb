"""Evaluations and comparisons made by hand, with everything in them and hostile words in every place."""

from __future__ import annotations

import math
from dataclasses import replace

from storage.manifest import ArtifactRef
from tasks.evaluation.compare import Comparison, Difference, DocumentPair, SlicePair
from tasks.evaluation.tables import DIMENSIONS, Evaluation, Slice, Sums
from tasks.report.evaluation import Completion, Mark, Measured
from tasks.report.queries import Row

HOSTILE = "<img src=x onerror=hit=1>\n\u202egnp\x00 שלום é 漢 </style></title><script>hit=1</script>&amp;\"'|`*"
CHECKPOINT, EVALSET, REF = (
    ArtifactRef(stage, key * 32, key[::-1] * 32)
    for stage, key in (("train", "ab"), ("evalset", "cd"), ("evaluate", "ef"))
)
BIT = math.log(2)


ASKED = ("val/questions", "val/questions_without_room", "val/exact_match", "val/bits_per_byte")


def sums(bits: float, n_bytes: int = 8_000, documents: int = 4) -> Sums:
    """Sums of so many bits per byte."""
    tokens, nats = n_bytes // 4, bits * n_bytes * BIT
    return Sums(
        documents, tokens, n_bytes, 0, tokens // 3, nats, 0.0, 3 * nats, 2 * nats, 1.2 * nats
    )  # fmt: skip


def evaluation(bits: float = 2.0) -> Evaluation:
    """Figures and slices."""
    total = sums(bits, 40_000, 30)
    metrics = {
        "val/loss": total.loss, "val/perplexity": total.perplexity, "val/bits_per_byte": bits,
        "val/top1": 0.33, "val/tokens": 10_000.0,
        "val/bytes": 40_000.0, "val/lost_bytes": 12.0, "val/documents": 30.0,
        "val/ngram_order": 5.0, "val/ngram_tokens": 2e6,
    }  # fmt: skip
    for name in ("uniform", "unigram", "ngram"):
        metrics[f"val/{name}_loss"] = total.baseline_loss(name) or 0.0
        metrics[f"val/{name}_bits_per_byte"] = total.baseline_bits_per_byte(name) or 0.0
    values = {
        "kind": ("pdf", "code"),
        "source": (f"letters/{HOSTILE}", "a/very/long/folder/" * 4),
    }
    slices = [
        Slice(dimension, value, sums(bits + place))
        for dimension in DIMENSIONS
        for place, value in enumerate(values.get(dimension, ("en", "")))
    ]
    return Evaluation(metrics, slices)


def rich() -> Row:
    """An evaluation with everything beside it."""
    documents = [
        Row(
            doc_id=f"{place:02x}" * 32,
            path=f"letters/{place}/{HOSTILE}",
            kind="pdf",
            sums=sums(place, 900, 1),
            begins=f"{place} {HOSTILE}",
            seen=0.1,
        )
        for place in range(1, 5)
    ]
    marks = [Mark(4, 12, 14, ["songs/one.txt", HOSTILE]), Mark(10, 20, 9), Mark(60, 6, 8)]
    rival = Row(
        name="the champion (version 3)", metrics=evaluation(2.3).metrics, bits={("kind", "pdf"): 2.3},
        difference=Difference(-0.3, -0.4, -0.2, 30),
    )  # fmt: skip
    exposures = [
        Slice("seen", "unseen", sums(2.1, 38_000, 28)),
        Slice("seen", "partly seen", sums(1.1, 2_000, 2)),
        Slice("seen", "mostly seen", Sums()),
    ]
    text = f"and {HOSTILE * 2} the end\n\n\nof a long tail" + " again" * 40
    return Row(
        measured=Measured(f"version 4, champion {HOSTILE}", CHECKPOINT, EVALSET, REF),
        evaluation=evaluation(),
        best=documents[:2],
        worst=documents[2:],
        rival=rival,
        exposures=exposures,
        completions=[
            Completion(f"Once {HOSTILE}", text, marks),
            Completion("Two", "", []),
            Completion("", "", [], f"the prompt is empty, {HOSTILE}"),
        ],
        answering=[
            (name, {"val/format_obedience": share, **dict.fromkeys(ASKED, 1.0)})
            for name, share in (("this model", 0.9), (f"its base {HOSTILE}", 0.0))
        ],
        memorised={
            "completions/memorised_share": 0.5,
            "completions/memorised_chars": 0.2,
            "completions/longest_memorised": 14.0,
        },
        pages=[],
    )  # fmt: skip


def bare() -> Row:
    """An evaluation of one short document, with nothing beside it."""
    found = evaluation()
    metrics = {name: value for name, value in found.metrics.items() if "ngram" not in name}
    alone = Evaluation({**metrics, "val/documents": 1.0}, [])
    return Row(
        measured=Measured("folder", CHECKPOINT, EVALSET, REF), evaluation=alone, best=[], worst=[], rival=None,
        exposures=[], completions=[], memorised={}, answering=[], pages=[],
    )  # fmt: skip


def pair() -> Row:
    """Two models of which each is better somewhere, and a slice of one document."""
    labels = dict.fromkeys(DIMENSIONS, "pdf")
    clear, open_, single = (
        Difference(-0.2, -0.3, -0.1, 20), Difference(0.05, -0.1, 0.2, 9), Difference(0.4, -math.inf, math.inf, 1),
    )  # fmt: skip
    slices = [
        SlicePair("kind", "pdf", sums(2.0), sums(2.2), clear),
        SlicePair("kind", "code", sums(2.1), sums(2.05), open_),
        SlicePair("source", HOSTILE, sums(3.0), sums(2.6), single),
    ]
    documents = [DocumentPair(f"{place:02x}" * 32, labels, sums(2), sums(3), -800.0 * place) for place in (3, 2)]
    one, other = evaluation().metrics, evaluation(2.3).metrics
    metrics = {name: (one[name], other.get(name)) for name in one} | {"val/only_one": (1.0, None)}
    found = Comparison(metrics, clear, slices, documents)
    begins = {item.doc_id: HOSTILE * 4 for item in documents}
    written = Completion(HOSTILE, f"and {HOSTILE}\nmore"), Completion(HOSTILE, "", error=f"the prompt is {HOSTILE}")
    champion = Measured(f"champion {HOSTILE}", CHECKPOINT, EVALSET, REF)
    previous = replace(champion, model="previous", evaluation=replace(REF, key="12" * 32))
    return Row(
        a=champion, b=previous, comparison=found, begins=begins,
        paths={documents[0].doc_id: f"a/{HOSTILE}"}, completions=[written], notes=[HOSTILE],
    )  # fmt: skip


def changed(figures: Row, **values: object) -> Row:
    """The figures with others in place of some."""
    return Row(**vars(figures) | values)

"""The gates: what each measures of real tables, where it holds a model back, and how it says so."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from evaluation_report_samples import HOSTILE, sums
from ingest_run import prose, write
from tiny_run import Ran, direct_run, home_at, run_prepare

from storage.errors import UserError
from storage.manifest import Input, Manifest, RefSet, describe_inputs
from storage.schemas import DROPPED, NORMALISED, SELECTION, VERDICTS
from storage.store import Store
from storage.tables import write_table
from tasks.core.settings import load_settings, parse_assignments
from tasks.evaluation.compare import Comparison, Difference, SlicePair
from tasks.evaluation.gates import (
    GATES,
    VERDICTS_FILE,
    CorpusFacts,
    Facts,
    GateSettings,
    Verdict,
    collect_facts,
    corpus_facts,
    failed,
    judge,
    read_verdicts,
)

Tables = dict[str, tuple[pa.Schema, list[dict[str, Any]]]]
CLEAN = CorpusFacts(files=100, rejected=10, documents=90, repeated=9, ocr_pages=12, ocr_confidence=0.8)
FASTER = GateSettings(min_tokens_per_second=1_000, max_size_mb=10, max_quantisation_loss=0.02)
KEPT = GateSettings(replay="general", max_base_loss=0.02)


def compared(own: float, other: float, low: float, high: float, *slices: SlicePair, documents: int = 30) -> Comparison:
    """Two models on the same documents."""
    metrics: dict[str, tuple[float | None, float | None]] = {"val/bits_per_byte": (own, other)}
    return Comparison(metrics, Difference(own - other, low, high, documents), list(slices), [])


def worse_slice(own: float, other: float, low: float, documents: int = 9) -> SlicePair:
    found = Difference(own - other, low, own - other + 1, documents)
    return SlicePair("kind", HOSTILE, sums(own, documents=documents), sums(other, documents=documents), found)


def on_replay(own: float, base: float, low: float, documents: int = 9) -> SlicePair:
    return replace(worse_slice(own, base, low, documents), dimension="source", value="general")


def facts(comparison: Comparison | None = None, **changes: Any) -> Facts:
    return replace(Facts(CLEAN, 0, 2.0, comparison, 8_000_000, 5_000.0), **changes)


def verdict(gate: str, found: Facts, settings: GateSettings | None = None) -> Verdict:
    (one,) = [item for item in judge(found, settings or GateSettings()) if item.gate == gate]
    return one


BETTER = compared(1.9, 2.0, -0.2, -0.05)


def test_a_clean_and_better_model_passes_every_gate() -> None:
    assert [item.verdict for item in judge(facts(BETTER), FASTER)] == [
        *("passed", "passed", "passed", "passed", "passed"),
        "skipped",  # no slice is large enough
        "skipped",  # no base
        *("skipped", "skipped"),  # it does not answer
        *("passed", "skipped", "passed"),
    ]


@pytest.mark.parametrize(
    ("gate", "found", "number"),
    [
        ("rejected_share", facts(BETTER, corpus=replace(CLEAN, rejected=51)), 0.51),
        ("duplicate_share", facts(BETTER, corpus=replace(CLEAN, repeated=90)), 1.0),
        ("ocr_confidence", facts(BETTER, corpus=replace(CLEAN, ocr_confidence=0.49)), 0.49),
        ("ocr_confidence", facts(BETTER, corpus=replace(CLEAN, ocr_confidence=math.nan)), math.nan),
        ("leaked_documents", facts(BETTER, leaks=1), 1),
        ("bits_per_byte", facts(compared(2.1, 2.0, -0.1, 0.3)), 0.1),
        ("bits_per_byte", facts(compared(2.0, 2.0, 0.0, 0.0)), 0.0),
        ("bits_per_byte", facts(compared(math.nan, 2.0, math.nan, math.nan)), math.nan),
        ("worst_slice", facts(compared(1.9, 2.0, -0.2, -0.1, worse_slice(2.2, 2.0, 0.1))), 0.1),
        ("size_mb", facts(BETTER, size=10_100_000), 10.1),
        ("quantisation_loss", facts(BETTER, quantised=compared(2.06, 2.0, 0.05, 0.07)), 0.03),
        ("tokens_per_second", facts(BETTER, tokens_per_second=999.0), 999.0),
        ("answer_loss", facts(BETTER, base_answers=compared(2.2, 2.0, 0.1, 0.3)), 0.1),
        ("format_obedience", facts(BETTER, obedience=0.89), 0.89),
    ],
)
def test_each_gate_holds_back_what_is_beyond_its_limit_and_no_other_does(
    gate: str, found: Facts, number: float
) -> None:
    (held,) = failed(judge(found, FASTER))
    assert held.gate == gate
    assert held.number == pytest.approx(number, nan_ok=True)
    assert held.sentence


@pytest.mark.parametrize(
    ("gate", "found"),
    [
        ("rejected_share", facts(corpus=replace(CLEAN, rejected=50))),
        ("duplicate_share", facts(corpus=replace(CLEAN, repeated=81))),
        ("ocr_confidence", facts(corpus=replace(CLEAN, ocr_confidence=0.5))),
        ("worst_slice", facts(compared(1.9, 2.0, -0.2, -0.1, worse_slice(2.09, 2.0, 0.05)))),
        ("size_mb", facts(size=10_000_000)),
        ("quantisation_loss", facts(quantised=compared(2.03, 2.0, 0.02, 0.04))),
        ("tokens_per_second", facts(tokens_per_second=1_000.0)),
        ("answer_loss", facts(base_answers=compared(2.2, 2.0, -0.1, 0.5))),
        ("format_obedience", facts(obedience=0.9)),
    ],
)
def test_up_to_its_limit_a_gate_lets_through(gate: str, found: Facts) -> None:
    assert verdict(gate, found, FASTER).verdict == "passed"


@pytest.mark.parametrize(
    ("base", "outcome", "number", "told"),
    [
        (
            on_replay(2.06, 2.0, 0.01),
            "failed",
            0.03,
            "2.0000 to 2.0600 bits per byte on general: 3.0% worse than the base",
        ),
        (on_replay(2.02, 2.0, 0.01), "passed", 0.01, "1.0% worse than the base"),
        (on_replay(2.2, 2.0, -0.01), "passed", 0, "not clearly worse than the base"),
        (
            on_replay(2.0, 2.0, -0.01, documents=7),
            "not_comparable",
            math.nan,
            "has 7 documents,",
        ),
        (None, "not_comparable", math.nan, "has 0 documents, 0 bytes, of gates.replay=general"),
    ],
)
def test_what_a_base_knew_is_kept(base: SlicePair | None, outcome: str, number: float, told: str) -> None:
    found = verdict("base_loss", facts(BETTER, has_base=True, base=base), KEPT)
    assert found.verdict == outcome and told in found.sentence
    assert found.number == pytest.approx(number, nan_ok=True)


def test_without_a_base_or_a_replay_set_nothing_is_compared() -> None:
    worse = on_replay(3.0, 2.0, 0.5)
    assert verdict("base_loss", facts(BETTER, has_base=True, base=worse)).verdict == "skipped"
    assert verdict("base_loss", facts(BETTER), KEPT).verdict == "skipped"


def test_a_speed_that_no_limit_is_set_for_is_not_kept() -> None:
    slow, fast = (verdict("tokens_per_second", facts(tokens_per_second=speed)) for speed in (10.0, 1_000.0))
    assert slow == fast
    assert (slow.verdict, slow.number) == ("skipped", None)


@pytest.mark.parametrize(
    ("low", "own", "high", "rule", "passes"),
    [
        (-0.2, 1.9, -0.05, "better", True),
        (-0.2, 1.9, -0.05, "clearly_better", True),
        (-0.2, 1.9, 0.05, "better", True),
        (-0.2, 1.9, 0.05, "clearly_better", False),
        (-0.05, 2.1, 0.2, "better", False),
        (-0.05, 2.1, 0.2, "not_worse", True),
        (0.05, 2.1, 0.2, "not_worse", False),
        (0.05, 2.1, 0.2, "clearly_better", False),
        (0.0, 2.0, 0.0, "not_worse", False),
    ],
)
def test_the_rule_says_how_much_better_a_model_has_to_be(
    low: float, own: float, high: float, rule: str, passes: bool
) -> None:
    found = verdict("bits_per_byte", facts(compared(own, 2.0, low, high)), GateSettings(rule=rule))
    assert found.verdict == ("passed" if passes else "failed")


@pytest.mark.parametrize("rule", ["better", "clearly_better", "not_worse"])
@pytest.mark.parametrize("own", [1.9, 2.1])
def test_on_one_document_no_difference_is_clear(own: float, rule: str) -> None:
    found = facts(compared(own, 2.0, -math.inf, math.inf, documents=1))
    given = verdict("bits_per_byte", found, GateSettings(rule=rule))
    assert (given.verdict, given.words()) == ("not_comparable", "not_comparable")
    assert "on 1 document, which says nothing of others" in given.sentence
    json.dumps(given.document(), allow_nan=False)


@pytest.mark.parametrize(
    ("own", "low", "high", "outcome"),
    [
        (1.9, -0.31, 0.11, "not_comparable"),
        (1.9, -0.29, 0.09, "passed"),
        (2.1, -0.11, 0.31, "not_comparable"),
        (1.5, -0.99, -0.01, "passed"),
        (2.5, 0.01, 0.99, "failed"),
    ],
)
def test_too_little_text_to_tell_two_models_apart_makes_no_champion(
    own: float, low: float, high: float, outcome: str
) -> None:
    given = verdict("bits_per_byte", facts(compared(own, 2.0, low, high)))
    assert given.verdict == outcome
    assert ("add documents" in given.sentence) == (outcome == "not_comparable")


@pytest.mark.parametrize(
    "item", [worse_slice(2.5, 2.0, -0.1), worse_slice(2.5, 2.0, 0.1, documents=7)], ids=["not-clear", "too-small"]
)
def test_a_slice_that_says_little_holds_nobody_back(item: SlicePair) -> None:
    found = verdict("worst_slice", facts(compared(1.9, 2.0, -0.2, -0.1, item)))
    assert found.verdict != "failed"


def test_what_cannot_be_measured_or_has_no_limit_is_skipped() -> None:
    corpus = CorpusFacts(files=0, rejected=0, documents=0, repeated=0)
    found = judge(Facts(corpus, None, 2.0, None, 8_000_000, None), GateSettings())
    assert {item.verdict for item in found} == {"skipped"}
    assert {item.gate for item in found if item.number is not None} == {"size_mb"}


def test_a_champion_whose_figures_do_not_compare_holds_a_model_back() -> None:
    found = facts(champion_knew=True)
    (held,) = failed(judge(found, FASTER))
    assert (held.gate, held.words()) == ("bits_per_byte", "not_comparable")
    assert held.sentence == (
        "the champion was trained on documents of this evaluation set, so the two cannot be compared "
        "(2.0000 bits per byte); `sheepfold rollback --to VERSION` makes this one champion all the same"
    )
    assert verdict("worst_slice", found).verdict == "skipped"


def test_a_sentence_says_the_numbers() -> None:
    assert verdict("bits_per_byte", facts(BETTER)).sentence == (
        "1.9000 bits per byte are fewer than the champion's 2.0000 (95 % interval of the difference -0.2000 to "
        "-0.0500 on 30 documents)"
    )
    assert (
        verdict("rejected_share", facts()).sentence == "10 of 100 files were refused or failed (10.0%, at most 50.0%)"
    )


def test_verdicts_come_back_from_their_table(tmp_path: Path) -> None:
    made = judge(facts(compared(1.9, 2.0, -math.inf, math.inf, documents=1)), GateSettings(rule="clearly_better"))
    assert write_table(tmp_path / VERDICTS_FILE, VERDICTS, map(asdict, made)) == len(GATES)
    assert [item.document() for item in read_verdicts(tmp_path)] == [item.document() for item in made]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gates.rule=best", "gates.rule is 'best', expected better, clearly_better or not_worse"),
        ("gates.max_rejected_share=1.5", "gates.max_rejected_share is 1.5, expected 0 to 1"),
        ("gates.max_slice_loss=-1", "expected 0 or more"),
        ("gates.slice_documents=1", "gates.slice_documents is 1, expected 2 or more"),
    ],
)
def test_an_impossible_limit_is_refused(setting: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_settings(None, parse_assignments([setting]))


def test_the_facts_of_a_corpus_are_those_of_its_files(tmp_path: Path) -> None:
    texts = {f"{number:02}.txt": prose(number) for number in range(8)}
    source = write(tmp_path / "in", {**texts, "copy.txt": prose(0), "again.txt": prose(3) + "\nand one more line"})
    (source / "broken.pdf").write_bytes(b"%PDF-1.7\nnothing")
    (source / "passed-over.bin").write_bytes(bytes(range(256)) * 8)
    ran = run_prepare(home_at(tmp_path / "home"), source)
    store = ran.run.store
    curated = store.find(ran.ingested.curated.stage, ran.ingested.curated.key)
    assert curated is not None
    found = corpus_facts(store, curated)
    assert (found.documents, found.repeated) == (10, 2)
    assert found.rejected == found.files - 10 >= 1
    assert found.ocr_confidence is None


def test_the_facts_of_a_model_are_those_of_its_artefacts(tiny: Ran) -> None:
    assert tiny.checkpoint is not None and tiny.evaluation is not None and tiny.metrics is not None
    with direct_run(tiny.run.home) as run:
        alone = collect_facts(run.store, tiny.checkpoint, tiny.evaluation)
        beside = collect_facts(run.store, tiny.checkpoint, tiny.evaluation, champion=tiny.evaluation)
    assert alone.comparison is None
    assert beside.comparison is not None and beside.comparison.difference.value == 0
    assert alone.bits_per_byte == tiny.metrics["val/bits_per_byte"]
    assert alone.leaks == 0, "the evaluation set was frozen from the very selection that was trained on"
    assert alone.size == (tiny.folder(tiny.checkpoint) / "model.safetensors").stat().st_size
    assert alone.corpus.documents == 12


def commit(store: Store, stage: str, name: str, inputs: dict[str, Input], tables: Tables, **counts: int) -> Manifest:
    """An artefact with tables made by hand."""
    with store.workspace(stage, name) as workspace:
        for file, (schema, rows) in tables.items():
            write_table(workspace.out / file, schema, rows)
        made = Manifest(stage, 1, name, name, describe_inputs(inputs), {}, files=[], counts=counts)
        return store.commit(workspace, made)


def page_counts(doc_id: str, n_pages: int, share: float, confidence: float | None) -> dict[str, Any]:
    words = {"kind": "pdf", "text": "", "text_sha256": "", "n_bytes": 0, "roles": [], "digest": ""}
    words |= {"title": None, "programming_language": None}
    return {"doc_id": doc_id, "n_pages": n_pages, "ocr_share": share, "ocr_confidence": confidence, **words}


def test_confidence_is_weighed_by_the_pages_that_ocr_read_of_documents_in_use(tmp_path: Path) -> None:
    store = Store(tmp_path)
    listed = commit(store, "snapshot", "listed", {}, {}, status_ok=4, status_rejected=1)
    read = [
        page_counts("half", 4, 0.5, 0.9),
        page_counts("whole", 6, 1.0, 0.5),
        page_counts("text", 50, 0.0, None),
        page_counts("dropped", 90, 1.0, 0.1),
    ]
    texts = commit(store, "normalise", "texts", {}, {"documents.parquet": (NORMALISED, read)})
    selected = [
        {"doc_id": row["doc_id"], "segment": "s", "cluster": "c", "split": "train", "kept": row["doc_id"] != "dropped"}
        for row in read
    ]
    tables: Tables = {
        "selection.parquet": (SELECTION, [{**row, "n_bytes": 0, "licence": None} for row in selected]),
        "dropped.parquet": (DROPPED, [{"doc_id": "dropped", "reason_code": "near_duplicate", "reason": "so"}]),
    }
    inputs: dict[str, Input] = {"snapshot": listed.ref, "documents": RefSet((texts.ref,), "d")}
    found = corpus_facts(store, commit(store, "curate", "chosen", inputs, tables))
    assert found == CorpusFacts(5, 1, 4, 1, ocr_pages=8.0, ocr_confidence=pytest.approx((2 * 0.9 + 6 * 0.5) / 8))
    store.remove("normalise", "texts")
    gone = corpus_facts(store, store.find("curate", "chosen") or pytest.fail("it is there"))
    assert gone.ocr_confidence is None

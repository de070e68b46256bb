"""The stages `classifier` and `score`: train a classifier on the user's good and bad examples, and score documents.

Logistic regression on hashed words and 2-grams of words (Weinberger et al. 2009, "Feature Hashing for Large Scale
Multitask Learning"). A score is the probability that a document is good; the threshold is part of the policy.
scikit-learn is imported only for training: it would cost each scoring process a second and 150 MB.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from storage.digest import sha256_file, sha256_json
from storage.errors import UserError
from storage.manifest import ArtifactRef
from storage.schemas import DOCUMENTS_FILE, SCORES, SCORES_FILE
from storage.tables import count_rows, stream_rows, union_digest, unpacked_size, write_table
from tasks.core.stage import NoSettings, Work, stage
from tasks.curate.settings import given_files, listed_paths
from tasks.readers.decode import decode
from tasks.readers.detect import HEAD_BYTES, JSON_LINES, PARQUET_MEDIA, detect
from tasks.readers.records import ExtractionProblem
from tasks.readers.rows import LINES, PARQUET, TEXT, Columns, Refused, Table, list_columns, read_rows
from tasks.text.cleaning import normalise_text
from tasks.text.minhash import signatures
from tasks.text.near import keep_best, near_pairs
from tasks.text.words import read_batches, word_runs

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from tasks.core.run import Run
    from tasks.curate.settings import ClassifierSettings

F64 = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]

WEIGHTS_FILE = "weights.npy"
METRICS_FILE = "metrics.json"
MIN_EXAMPLES = 10
MAX_EXAMPLES = 2_000  # per side
MAX_CHARS = 2**23  # in all examples of one side
READ_CHARS = 100_000  # at the beginning of a text
BUCKETS = 1 << 18
FOLDS = 5
STRENGTHS = (0.1, 1, 10, 100, 1000)  # inverse strengths of the regularisation, scikit-learn's C
WEAK_AUC = 0.7
BATCH_DOCUMENTS = 256

_COLUMN = "text"
_POSSIBLE = "possible are text files and, with a column named text, JSON lines (.jsonl, .ndjson) and Parquet"
_READ_BYTES = 8 * READ_CHARS  # of a text file: enough for `READ_CHARS` in every encoding, after normalisation
_LINES_SUFFIXES = (".jsonl", ".jsonlines", ".ndjson")

logger = logging.getLogger("sheepfold")


# examples


@dataclass(frozen=True)
class Examples:
    """The examples of one side."""

    texts: list[str]  # normalised, distinct, in the order of their hashes; the first `READ_CHARS` characters of each
    repeated: int  # duplicates and near-duplicates, which would bias the cross-validation
    empty: int  # without text
    left_out: int  # beyond `MAX_EXAMPLES` or `MAX_CHARS`
    places: dict[bytes, str]  # place of the first occurrence of each distinct text, by its hash


def example_files(side: str, paths: Sequence[Path]) -> list[Path]:
    """Return the given files and the files in the given folders, except hidden ones.

    Raises:
        UserError: A path does not exist, or is a folder without files.
    """
    return given_files(f"classifier.{side}", paths, _POSSIBLE)


def read_examples(side: str, paths: Sequence[Path]) -> Examples:
    """Read the examples of one side; refused rows are left out with a warning.

    The result depends neither on names nor on the order: of too many examples, those with the lowest hashes are used.

    Args:
        side: `good` or `bad`, for messages.
        paths: Files and folders. A file is one example, or a table of them; formats that need extraction are refused,
            because its result should be checked first.

    Raises:
        UserError: They cannot be read, or are fewer than `MIN_EXAMPLES`.
    """
    places: dict[bytes, str] = {}
    chosen: dict[bytes, str] = {}
    refused = Refused()
    repeated = empty = held = 0
    for path in example_files(side, paths):
        for place, raw in _raw_texts(side, path, refused):
            text = normalise_text(raw[: 2 * READ_CHARS], "text")[:READ_CHARS]
            digest = hashlib.sha256(text.encode()).digest()
            if not text.strip():
                empty += 1
            elif digest in places:
                repeated += 1
            else:
                places[digest] = place
                chosen[digest] = text
                held += len(text)
                if len(chosen) > 2 * MAX_EXAMPLES or held > 2 * MAX_CHARS:  # bounds the memory
                    chosen = _within_limits(chosen)
                    held = sum(map(len, chosen.values()))
    distinct = list(_within_limits(chosen).values())
    signed = signatures(distinct)
    near = near_pairs(len(distinct), signed.minhashes_of, lambda wanted: [distinct[place] for place in wanted])
    kept, _ = keep_best(len(distinct), near.pairs)
    texts = [text for text, is_kept in zip(distinct, kept, strict=True) if is_kept]
    repeated += len(distinct) - len(texts)
    told = refused.sentence()
    if len(texts) < MIN_EXAMPLES:
        raise UserError(
            f"classifier.{side} gives {len(texts)} different texts (and {repeated} duplicates or near-duplicates and "
            f"{empty} empty ones), expected at least {MIN_EXAMPLES}: add examples; {_POSSIBLE}{'; ' * bool(told)}{told}"
        )
    if told:
        logger.warning("classifier.%s: %s", side, told)
    return Examples(texts, repeated, empty, len(places) - len(distinct), places)


def refuse_shared(good: Examples, bad: Examples) -> None:
    """Raise UserError if texts are examples of both sides."""
    shared = sorted(good.places.keys() & bad.places.keys())
    if shared:
        raise UserError(
            f"{len(shared)} texts are examples of both sides, such as {good.places[shared[0]]} in classifier.good and "
            f"{bad.places[shared[0]]} in classifier.bad: leave each out on one side"
        )


def _within_limits(texts: dict[bytes, str]) -> dict[bytes, str]:
    chosen: dict[bytes, str] = {}
    chars = 0
    for digest in sorted(texts)[:MAX_EXAMPLES]:
        chars += len(texts[digest])
        if chars > MAX_CHARS:
            break
        chosen[digest] = texts[digest]
    return chosen


def _form(side: str, path: Path) -> str:
    """Return the layout of a file: `TEXT`, `LINES` or `PARQUET`."""
    suffix = path.suffix.lower()
    with path.open("rb") as handle:
        head = handle.read(HEAD_BYTES)
    found = detect(head, path.stat().st_size, suffix)
    if found.media_type == JSON_LINES or (suffix in _LINES_SUFFIXES and found.kind == "text"):
        return LINES
    if found.media_type == PARQUET_MEDIA:
        return PARQUET
    if found.kind in ("text", "code") and found.media_type.startswith("text/") and found.media_type != "text/html":
        return TEXT
    raise UserError(f"classifier.{side}: {path} is {found.media_type}, which is not supported; {_POSSIBLE}")


def _raw_texts(side: str, path: Path, refused: Refused) -> Iterator[tuple[str, str]]:
    form = _form(side, path)
    if form == TEXT:
        with path.open("rb") as handle:
            yield str(path), decode(handle.read(_READ_BYTES)).text
        return
    try:
        for row in read_rows(Table(path, form), _text_column if form == PARQUET else None):
            try:
                text = row.text(_COLUMN, empty=True)
            except ExtractionProblem as problem:
                if problem.code != "empty":
                    refused.add(path, problem)
                    continue
                text = ""
            yield f"{path}, {row.place}", text
    except ExtractionProblem as problem:
        raise UserError(f"classifier.{side}: {path}: {problem.reason}; {_POSSIBLE}") from problem


def _text_column(columns: Columns) -> list[str]:
    if columns.get(_COLUMN) != TEXT:
        reason = f"no column of text is called {_COLUMN}; there are: {list_columns(columns)}"
        raise ExtractionProblem("rejected", "no_column", reason)
    return [_COLUMN]


# the model


def word_features(texts: Sequence[str]) -> csr_array:
    """Return a sparse matrix (texts, `BUCKETS`) of hashed words and 2-grams: `1 + log(frequency)`, rows of L2 norm 1.

    A row does not depend on the other texts; a text without words has a row of zeros.
    """
    from scipy.sparse import csr_array

    rows, buckets = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    for batch in read_batches([text[:READ_CHARS] for text in texts]):
        for hashes in (batch.words, word_runs(batch.words, 2)):
            rows.append(batch.first + np.repeat(np.arange(len(hashes)), hashes.counts))
            buckets.append(hashes.values % np.uint64(BUCKETS))
    places = (np.concatenate(rows), np.concatenate(buckets).astype(np.int64))
    features = csr_array((np.ones(len(places[0])), places), shape=(len(texts), BUCKETS))
    features.data = 1 + np.log(features.data)
    lengths = np.sqrt((features * features).sum(axis=1))
    features.data /= np.repeat(lengths, np.diff(features.indptr))
    return features


def train(good: Sequence[str], bad: Sequence[str], progress: Progress) -> tuple[F64, dict[str, Any]]:
    """Train a classifier, with the regularisation of the lowest log loss in a cross-validation.

    Args:
        good, bad: Normalised texts, at least `FOLDS` of each, in the order of their hashes.
        progress: Called with the number of finished strengths and of all.

    Returns:
        (`BUCKETS` + 1,) the weights and, last, the intercept; and cross-validated metrics: `auc` with `fold_aucs` and
        their standard error `auc_error`; `accuracy` and `balanced_accuracy` at a score of 0.5; `log_loss` with equal
        weights of both sides, the chosen `C` and its `grid`; `note` if the AUC is below `WEAK_AUC`.

    Raises:
        UserError: No example has a word.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss, roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.utils.class_weight import compute_sample_weight
    from threadpoolctl import threadpool_limits

    features = word_features([*good, *bad])
    used = np.unique(features.indices)
    if not len(used):
        raise UserError("the examples of the classifier have no words: expected good and bad texts")
    features = features[:, used]
    is_good = np.arange(len(good) + len(bad)) < len(good)
    balanced = compute_sample_weight("balanced", is_good)
    folds = list(StratifiedKFold(FOLDS).split(features, is_good))
    models = [LogisticRegression(C=c, class_weight="balanced", solver="newton-cg", max_iter=1000) for c in STRENGTHS]
    unseen, grid = [], []
    with threadpool_limits(1):  # sums of a linear algebra library depend on its number of threads
        for model in models:
            scores = cross_val_predict(model, features, is_good, cv=folds, method="predict_proba")[:, 1]
            unseen.append(scores)
            grid.append({"C": model.C, "log_loss": round(log_loss(is_good, scores, sample_weight=balanced), 6)})
            progress(len(grid), len(models))
        best = min(range(len(grid)), key=lambda place: grid[place]["log_loss"])  # on a tie the strongest
        model = models[best].fit(features, is_good)
    scores = unseen[best]
    # an AUC per fold, because the scores of different folds come from different models
    aucs = [float(roc_auc_score(is_good[fold], scores[fold])) for _, fold in folds]
    auc = round(float(np.mean(aucs)), 6)
    metrics = {
        "auc": auc,
        "auc_error": round(float(np.std(aucs, ddof=1) / np.sqrt(FOLDS)), 6),
        "fold_aucs": [round(value, 6) for value in aucs],
        "accuracy": round(accuracy_score(is_good, scores > 0.5), 6),
        "balanced_accuracy": round(balanced_accuracy_score(is_good, scores > 0.5), 6),
        **grid[best],
        "grid": grid,
        "folds": FOLDS,
        "n_features": len(used),
        "note": "",
    }
    if auc < WEAK_AUC:
        metrics["note"] = (
            f"the classifier hardly tells good from bad: its AUC on examples it had not seen is {auc:.2f}, where 0.5 "
            f"is chance and {WEAK_AUC} the least expected; give more examples, or clearer ones, before relying on its "
            "scores"
        )
    weights = np.zeros(BUCKETS + 1)
    weights[used], weights[-1] = model.coef_[0], model.intercept_[0]
    return weights, metrics


def score_texts(texts: Sequence[str], weights: F64) -> F64:
    """Return (n,) the probability that each text is good, at equal prior probabilities, rounded to six digits.

    A score does not depend on the other texts.
    """
    logits = word_features(texts) @ weights[:-1] + weights[-1]
    return np.round(0.5 * (1.0 + np.tanh(0.5 * logits)), 6)


# stages


@dataclass(frozen=True)
class ClassifierStageSettings:
    """Settings of the stage: layout and digest of each example file, sorted."""

    good: tuple[str, ...]
    bad: tuple[str, ...]

    @classmethod
    def of(cls, good: Sequence[Path], bad: Sequence[Path]) -> ClassifierStageSettings:
        """Return the settings for some files and folders.

        Raises:
            UserError: A path does not exist, or the format of a file is not supported.
        """

        def identities(side: str, paths: Sequence[Path]) -> tuple[str, ...]:
            return tuple(sorted({f"{_form(side, file)} {sha256_file(file)}" for file in example_files(side, paths)}))

        return cls(identities("good", good), identities("bad", bad))


@stage("classifier", version=2, unkeyed=("good_files", "bad_files"))
def classifier(
    work: Work, settings: ClassifierStageSettings, *, good_files: ArtifactRef, bad_files: ArtifactRef
) -> str:
    """Train a classifier of good and bad texts on the user's examples, and compute its cross-validated metrics."""
    good, bad = read_examples("good", work.files(good_files)), read_examples("bad", work.files(bad_files))
    refuse_shared(good, bad)
    weights, metrics = train(good.texts, bad.texts, lambda done, total: work.progress.update(done, total, "fits"))
    counts: dict[str, int] = {}
    for side, found in (("good", good), ("bad", bad)):
        counts[f"{side}_examples"] = len(found.texts)
        counts |= {f"{side}_{name}": getattr(found, name) for name in ("repeated", "empty", "left_out")}
    np.save(work.out / WEIGHTS_FILE, weights, allow_pickle=False)
    text = json.dumps({**metrics, **counts}, indent=1, sort_keys=True, allow_nan=False)
    (work.out / METRICS_FILE).write_text(text + "\n", encoding="utf-8")
    if metrics["note"]:
        logger.warning("%s", metrics["note"])
    work.counts.update(counts, rows=len(good.texts) + len(bad.texts), weak=int(bool(metrics["note"])))
    # the digest of the weights alone: a repeated example changes a count, but no score
    return sha256_file(work.out / WEIGHTS_FILE)


def trained_classifier(run: Run, examples: ClassifierSettings) -> ArtifactRef | None:
    """Return the classifier trained on the user's examples; None without examples.

    Raises:
        UserError: A path does not exist, or its format is not supported.
    """
    sides = {"good": listed_paths(examples.good), "bad": listed_paths(examples.bad)}
    if not sides["good"]:
        return None
    files = {side: example_files(side, paths) for side, paths in sides.items()}
    for side, found in files.items():
        for file in found:
            _form(side, file)  # raises for the user's own paths, not for their copies
    added = {
        side: run.add("classifier_examples", {f"{number:04}/{file.name}": file for number, file in enumerate(found)})
        for side, found in files.items()
    }
    asked = ClassifierStageSettings.of(**{side: copies for side, (_, copies) in added.items()})
    return classifier(run, asked, good_files=added["good"][0], bad_files=added["bad"][0])


@stage("score", version=1, unit="document", tables={SCORES_FILE: SCORES})
def score(work: Work, settings: NoSettings, *, documents: ArtifactRef, classifier: ArtifactRef) -> str:
    """Score the documents of one segment: the probability that each is good."""
    source = work.folder(documents) / DOCUMENTS_FILE
    weights = work.folder(classifier) / WEIGHTS_FILE
    made = work.in_subprocess(score_segment, unpacked_size(source), source=source, weights=weights, out=work.out)
    work.counts["rows"] = work.counts["units"] = made["rows"]
    return str(made["digest"])


def score_segment(source: Path, weights: Path, out: Path, progress: Progress) -> dict[str, Any]:
    """Write the scores of a table of documents; return their number and a digest."""
    parameters, n_rows = np.load(weights, allow_pickle=False), count_rows(source)

    def rows() -> Iterator[dict[str, Any]]:
        documents = stream_rows(source, ["doc_id", "text"])
        done = 0
        while batch := list(islice(documents, BATCH_DOCUMENTS)):
            scores = score_texts([row["text"] for row in batch], parameters).tolist()
            for row, value in zip(batch, scores, strict=True):
                yield {"doc_id": row["doc_id"], "score": value, "digest": sha256_json(value)}
            done += len(batch)
            progress(done, n_rows)

    table = out / SCORES_FILE
    count = write_table(table, SCORES, rows())
    return {"rows": count, "digest": union_digest([table])}

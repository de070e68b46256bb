"""Selection: which documents of a snapshot are used, and on which side of the split each one is.

The split is a pure function of texts: a document is in validation if the hash of every text in its cluster (all that
equal or nearly equal it) says so. Growth and merging clusters therefore only ever move documents out of validation.
Three exceptions are rare and on purpose: where every hash says validation, one cluster is trained on all the same;
where all that was held out stands in training text, the cluster of the next hash is held out instead; and where
near-duplicates come in such masses that not all pairs of them are compared, a cluster may fall apart again.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.curate.settings import CurateSettings
from tasks.text import Pairs, keep_best


@dataclass(slots=True)
class Candidate:
    """A live document as selection sees it.

    Attributes:
        segment: where it lies.
        text_sha256: of its normalised text.
        cluster: the lowest text digest among those that equal or nearly equal it.
        n_bytes: of its text.
        ocr_share: of its pages, from 0 to 1.
        licence: its own, or that of its folder.
        refusal: why it is not used: a code and a sentence; None while it is.
    """

    doc_id: str
    segment: str
    text_sha256: str
    cluster: str
    n_bytes: int
    ocr_share: float
    licence: str | None = None
    refusal: tuple[str, str] | None = None

    @property
    def rank(self) -> tuple[float, int, str]:
        """Which of several like ones is kept, the lowest: typed before read by OCR, then the longest, then by id."""
        return self.ocr_share, -self.n_bytes, self.doc_id


def hash_share(text_sha256: str, salt: str) -> float:
    """Place of a text in [0, 1), evenly spread and fixed for ever."""
    digest = hashlib.sha256(f"{salt}\x00{text_sha256}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64


def split_clusters(
    clusters: Mapping[str, Iterable[str]], settings: CurateSettings, barred: Collection[str] = ()
) -> dict[str, str]:
    """Split of each cluster: `train` or `validation`.

    If no cluster falls into validation, the one with the lowest hash is it; a single cluster is trained on.

    Args:
        clusters: the text digests of each.
        barred: clusters that cannot be held out.
    """
    places = {name: max(hash_share(text, settings.salt) for text in texts) for name, texts in clusters.items()}
    split = {
        name: "validation" if place < settings.validation_share and name not in barred else "train"
        for name, place in places.items()
    }
    order = sorted(places.keys() - set(barred), key=lambda name: (places[name], name))
    if order:
        if "validation" not in split.values():
            split[order[0]] = "validation"
        if "train" not in split.values():
            split[order[-1]] = "train"
    return split


def refuse_duplicates(candidates: Sequence[Candidate], near: Iterable[tuple[str, str, float]], drop_near: bool) -> None:
    """Refuse all but the best of documents that equal each other, and those that nearly equal one that is kept.

    Args:
        near: pairs of document ids with their similarity; documents with the same text count as one.
        drop_near: whether near-duplicates are dropped; exact ones always are.
    """
    texts: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        if candidate.refusal is None:
            texts[candidate.text_sha256].append(candidate)
    best: dict[str, Candidate] = {}
    for text, members in texts.items():
        members.sort(key=lambda member: member.rank)
        best[text] = members[0]
        for member in members[1:]:
            member.refusal = ("duplicate_text", f"same text as document {members[0].doc_id}")
    near = list(near)
    if drop_near and near:
        _refuse_near(sorted(best.values(), key=lambda member: member.rank), candidates, near)


def _refuse_near(
    ranked: Sequence[Candidate], candidates: Sequence[Candidate], near: Iterable[tuple[str, str, float]]
) -> None:
    text_of = {candidate.doc_id: candidate.text_sha256 for candidate in candidates}
    place = {candidate.text_sha256: number for number, candidate in enumerate(ranked)}
    similarity: dict[tuple[int, int], float] = {}
    for one, other, value in near:
        first, second = place.get(text_of.get(one, "")), place.get(text_of.get(other, ""))
        if first is not None and second is not None:
            similarity[min(first, second), max(first, second)] = value
    if not similarity:
        return
    ends = np.array(sorted(similarity), np.int64)
    values = np.array([similarity[first, second] for first, second in ends.tolist()])
    kept, stands_for = keep_best(len(ranked), Pairs.sorted(ends[:, 0], ends[:, 1], values), np.arange(len(ranked)))
    for number in np.flatnonzero(~kept).tolist():
        keeper = int(stands_for[number])
        shared = similarity[min(number, keeper), max(number, keeper)]
        reason = f"nearly the same text as document {ranked[keeper].doc_id} (Jaccard similarity {shared:.3f})"
        ranked[number].refusal = ("near_duplicate", reason)


def split_documents(
    candidates: Sequence[Candidate], settings: CurateSettings, barred: Collection[str] = ()
) -> dict[str, str]:
    """Split of each cluster that has a document in use; those that are barred are trained on."""
    texts: dict[str, set[str]] = defaultdict(set)
    in_use = set()
    for candidate in candidates:
        texts[candidate.cluster].add(candidate.text_sha256)
        if candidate.refusal is None:
            in_use.add(candidate.cluster)
    # a member that is not used decides all the same: else a threshold could move a cluster into validation
    return split_clusters({name: members for name, members in texts.items() if name in in_use}, settings, barred)

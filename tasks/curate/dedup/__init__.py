"""Deduplication as pure functions over texts and numpy arrays: signatures, pairs, clusters, overlap.

`minhash` makes a document's signature; `near` finds pairs of near-duplicates and `groups` what to do with them;
`overlap` finds text that stands in two places, `evaluation` reads the sets that no training text may repeat; `words`
has the hashing that all of them rest on.
"""

from tasks.curate.dedup.evaluation import EvaluationSetError, evaluation_files, evaluation_format, evaluation_grams
from tasks.curate.dedup.groups import Pairs, clusters, giant_clusters, keep_best
from tasks.curate.dedup.minhash import Signatures, gram_hashes, shingle_sets, signatures
from tasks.curate.dedup.near import NearPairs, near_pairs
from tasks.curate.dedup.overlap import (
    Containment,
    GramIndex,
    common,
    containment,
    duplicate_paragraphs,
    judged_share,
    overlapping_spans,
)
from tasks.curate.dedup.words import Hashes

__all__ = [
    "Containment",
    "EvaluationSetError",
    "GramIndex",
    "Hashes",
    "NearPairs",
    "Pairs",
    "Signatures",
    "clusters",
    "common",
    "containment",
    "duplicate_paragraphs",
    "evaluation_files",
    "evaluation_format",
    "evaluation_grams",
    "giant_clusters",
    "gram_hashes",
    "judged_share",
    "keep_best",
    "near_pairs",
    "overlapping_spans",
    "shingle_sets",
    "signatures",
]

"""Texts compared, as pure functions over texts and numpy arrays: signatures, pairs, clusters, overlap.

`words` has the hashing that all of them rest on. `minhash` makes a document's signature; `near` finds pairs of
near-duplicates and `groups` what to do with them; `overlap` finds text that stands in two places.
"""

from tasks.text.groups import Pairs, clusters, keep_best
from tasks.text.minhash import (
    Signatures,
    gram_hashes,
    join_signatures,
    load_signatures,
    shingle_sets,
    signatures,
)
from tasks.text.near import NearPairs, near_pairs
from tasks.text.overlap import (
    GramIndex,
    common,
    containment,
    judged_share,
    overlapping_spans,
)
from tasks.text.words import Hashes

__all__ = [
    "GramIndex",
    "Hashes",
    "NearPairs",
    "Pairs",
    "Signatures",
    "clusters",
    "common",
    "containment",
    "gram_hashes",
    "join_signatures",
    "judged_share",
    "keep_best",
    "load_signatures",
    "near_pairs",
    "overlapping_spans",
    "shingle_sets",
    "signatures",
]

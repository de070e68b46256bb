"""Selection: which documents of a snapshot are used, and on which side of the split each one is, as queries.

The split is a pure function of texts: a document is in validation if the hash of every text in its cluster (all that
equal or nearly equal it) says so. Growth and merging clusters therefore only ever move documents out of validation.
Three exceptions are rare and on purpose: where every hash says validation, one cluster is trained on all the same;
where all that was held out stands in training text, the cluster of the next hash is held out instead; and where
near-duplicates come in such masses that not all pairs of them are compared, a cluster may fall apart again.

The queries read two tables of a `Corpus`: `candidates`, the live documents, numbered by `RANK`; and `refused`, the
numbers of those that are not used, with a code and a reason.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tasks.curate.corpus import Corpus
from tasks.curate.settings import CurateSettings
from tasks.text.groups import Pairs, keep_best
from tasks.text.words import distinct

# Which of several like documents is kept, the first: typed before read by OCR, then the longest, then by id.
RANK = "ocr_share, n_bytes desc, doc_id"

# Place of a text in [0, 1), evenly spread and fixed for ever.
_HASH_SHARE = "('0x' || left(sha256($salt || chr(0) || text_sha256), 16))::ubigint / 18446744073709551616::double"


def begin_selection(corpus: Corpus) -> None:
    """Make an empty table `refused`, and the view `in_use` of the candidates that are not in it."""
    corpus.sql(
        "create table refused (number bigint, code varchar, reason varchar); "
        "create view in_use as from candidates anti join refused using (number)"
    )


def refuse_duplicates(corpus: Corpus, near_pairs: str, drop_near: bool) -> None:
    """Refuse all but the best of documents that equal each other, and those that nearly equal one that is kept.

    Args:
        near_pairs: Table in SQL, pairs of `doc_id` and `other_id` with their `similarity`; documents with the same text
            count as one.
        drop_near: Drop near-duplicates; exact ones are always dropped.
    """
    corpus.sql(
        "insert into refused select in_use.number, 'duplicate_text', 'same text as document ' || kept.doc_id "
        "from in_use join (select text_sha256, min(number) as best from in_use where cluster_size > 1 "
        "group by text_sha256) using (text_sha256) "
        "join candidates kept on kept.number = best where in_use.number > best"
    )
    if drop_near:
        _refuse_near(corpus, near_pairs)


def _refuse_near(corpus: Corpus, near_pairs: str) -> None:
    corpus.sql(
        "create table near as select least(ours.number, theirs.number) as first, greatest(ours.number, theirs.number) "
        f"as second, similarity from {near_pairs} as pair join candidates one on one.doc_id = pair.doc_id "
        "join candidates other on other.doc_id = pair.other_id join in_use ours on ours.text_sha256 = one.text_sha256 "
        "join in_use theirs on theirs.text_sha256 = other.text_sha256"
    )
    first, second, similarity = corpus.columns("from near")
    ends = distinct(np.concatenate([first, second]))
    pairs = Pairs.sorted(np.searchsorted(ends, first), np.searchsorted(ends, second), similarity)
    kept, stands_for = keep_best(len(ends), pairs, np.arange(len(ends)))
    corpus.insert("stand_ins", pa.table({"number": ends[~kept], "keeper": ends[stands_for[~kept]]}))
    corpus.sql(
        "insert into refused select stand_ins.number, 'near_duplicate', 'nearly the same text as document ' || doc_id "
        "|| format(' (Jaccard similarity {:.3f})', similarity) from stand_ins "
        "join near on first = keeper and second = stand_ins.number join candidates on candidates.number = keeper"
    )


def begin_split(corpus: Corpus, settings: CurateSettings) -> None:
    """Make the table `clusters` of those with a document in use, and an empty table `barred` of clusters."""
    # a member that is not used decides all the same: else a threshold could move a cluster into validation
    corpus.sql(
        f"create table clusters as select cluster, max({_HASH_SHARE}) as share from candidates "
        "left join refused using (number) group by cluster having bool_or(refused.number is null)",
        {"salt": settings.salt},
    )
    corpus.sql("create table barred (cluster varchar)")


def hold_out(corpus: Corpus, settings: CurateSettings) -> None:
    """Make the table `held_out` of the clusters in validation; the others, and all that are barred, are trained on.

    If no cluster falls into validation, the one with the lowest hash is it; a single cluster is trained on.
    """
    corpus.sql(
        "create or replace table held_out as select cluster from clusters anti join barred using (cluster) "
        "where share < $share",
        {"share": settings.validation_share},
    )
    corpus.sql(
        "insert into held_out select cluster from clusters anti join barred using (cluster) "
        "where not exists (from held_out) order by share, cluster limit 1; "
        "delete from held_out where (select count(*) from held_out) = (select count(*) from clusters) "
        "and cluster = (select cluster from clusters order by share desc, cluster desc limit 1)"
    )

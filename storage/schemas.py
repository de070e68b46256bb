"""Every Parquet schema of Sheepfold, versioned, and the names of the files in artefacts, in one place.

No table holds a time: two runs over the same documents write the same rows. `digest` columns hold the sha256 of the
row's content and make logical digests cheap.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 1

# Names of the files in artefacts that more than one module reads. They stand here so that a reader of a table does not
# import the code that makes it, which would count as the reader's own code (see `tasks.fingerprint`).
FILES_FILE = "files.parquet"
EXTRACTS_FILE = "extracts.parquet"
PAGES_FILE = "pages.parquet"
DOCUMENTS_FILE = "documents.parquet"
MEASURES_FILE = "measures.parquet"
SCORES_FILE = "scores.parquet"
PAIRS_FILE = "pairs.parquet"
VERIFIED_FILE = "verified.parquet"
CLUSTERS_FILE = "clusters.parquet"
SELECTION_FILE = "selection.parquet"
DROPPED_FILE = "dropped.parquet"
CUTS_FILE = "cuts.parquet"
GRAMS_FILE = "grams.npy"
OFFSETS_FILE = "gram_offsets.npy"
OVERLAP_FILE = "overlap.parquet"
RUNS_FILE = "runs.npy"
TOKENS_FILE = "tokens.parquet"
SHARD_COUNTS_FILE = "counts.npy"
GROUPS_FILE = "groups.parquet"
SEQUENCES_FILE = "sequences.parquet"
DATASET_FILE = "dataset.json"
COUNTS_FILE = "token_counts.parquet"
COMPLETIONS_FILE = "completions.parquet"
SPANS_FILE = "spans.parquet"
SHARD_FILE = "tokens.npy"


def _schema(name: str, *fields: pa.Field) -> pa.Schema:
    return pa.schema(fields, metadata={"sheepfold.table": name, "sheepfold.schema_version": str(SCHEMA_VERSION)})


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


# One row for every path walked, and one for every member of an archive or table (`container` is set).
FILES = _schema(
    "files",
    _required("path", pa.string()),
    _required("source", pa.string()),
    pa.field("container", pa.string()),
    _required("size", pa.int64()),
    pa.field("sha256", pa.string()),
    pa.field("media_type", pa.string()),
    _required("status", pa.string()),
    _required("reason", pa.string()),
    _required("reason_code", pa.string()),
    pa.field("licence", pa.string()),
    pa.field("doc_id", pa.string()),
    pa.field("segment", pa.string()),
)

# One row for every distinct file content that was looked into, extracted or not, and for each member in it (`locator`).
EXTRACTS = _schema(
    "extracts",
    _required("doc_id", pa.string()),
    _required("file_sha256", pa.string()),
    _required("suffix", pa.string()),
    _required("attempt", pa.int32()),
    _required("locator", pa.string()),
    _required("sha256", pa.string()),
    _required("size", pa.int64()),
    _required("status", pa.string()),
    _required("reason", pa.string()),
    _required("reason_code", pa.string()),
    _required("kind", pa.string()),
    _required("media_type", pa.string()),
    pa.field("title", pa.string()),
    pa.field("programming_language", pa.string()),
    pa.field("encoding", pa.string()),
    pa.field("encoding_confidence", pa.float64()),
    _required("n_pages", pa.int32()),
    _required("digest", pa.string()),
)

# One row for every page (a TIFF frame and a whole text file are pages too).
PAGES = _schema(
    "pages",
    _required("doc_id", pa.string()),
    _required("page", pa.int32()),
    _required("text", pa.large_string()),
    _required("method", pa.string()),
    _required("engine", pa.string()),
    pa.field("confidence", pa.float64()),
    pa.field("error", pa.string()),
)

# One row for every document of a segment: its normalised text, and how it was come by.
NORMALISED = _schema(
    "normalised",
    _required("doc_id", pa.string()),
    _required("kind", pa.string()),
    pa.field("title", pa.string()),
    pa.field("programming_language", pa.string()),
    _required("text", pa.large_string()),
    _required("text_sha256", pa.string()),
    _required("n_bytes", pa.int64()),
    _required("n_pages", pa.int32()),
    _required("ocr_share", pa.float64()),
    pa.field("ocr_confidence", pa.float64()),
    _required("digest", pa.string()),
)

# Pairs of documents whose texts are near-duplicates, with the exact Jaccard similarity of their shingles.
NEAR_PAIRS = _schema(
    "near_pairs",
    _required("doc_id", pa.string()),
    _required("other_id", pa.string()),
    _required("similarity", pa.float64()),
)

# Every pair of texts whose similarity was ever computed: a later run looks it up.
VERIFIED_PAIRS = _schema(
    "verified_pairs",
    _required("text_sha256", pa.string()),
    _required("other_sha256", pa.string()),
    _required("similarity", pa.float64()),
)

# The cluster of every document: all that equal or nearly equal each other, directly or through others.
CLUSTERS = _schema(
    "clusters",
    _required("doc_id", pa.string()),
    _required("text_sha256", pa.string()),
    _required("cluster", pa.string()),
    _required("cluster_size", pa.int64()),
)

# Stretches of a document's normalised text that are left out of what is trained on, and why.
CUTS = _schema(
    "cuts",
    _required("doc_id", pa.string()),
    _required("start", pa.int64()),
    _required("length", pa.int64()),
    _required("reason_code", pa.string()),
)

# One row for every document of a segment: the text that models see, after cuts and redactions.
REFINED = _schema(
    "refined",
    _required("doc_id", pa.string()),
    _required("kind", pa.string()),
    _required("text", pa.large_string()),
    _required("n_bytes", pa.int64()),
    _required("redactions", pa.int64()),
    _required("cut_chars", pa.int64()),
    _required("digest", pa.string()),
)

# What the corpus makes of each document: its cluster, its split, whether it is kept.
SELECTION = _schema(
    "selection",
    _required("doc_id", pa.string()),
    _required("segment", pa.string()),
    _required("cluster", pa.string()),
    _required("split", pa.string()),
    _required("kept", pa.bool_()),
    pa.field("licence", pa.string()),
    _required("n_bytes", pa.int64()),
)

# Documents that curation dropped, and why. It holds no path: the same documents elsewhere give the same table. The
# catalogue's view `quarantine` adds the paths, and the files that extraction refused.
DROPPED = _schema(
    "dropped",
    _required("doc_id", pa.string()),
    _required("reason_code", pa.string()),
    _required("reason", pa.string()),
)

# One row for every document of a token shard; `offset` and `length` find its ids in the flat shard beside the table.
TOKENS = _schema(
    "tokens",
    _required("doc_id", pa.string()),
    _required("offset", pa.int64()),
    _required("length", pa.int64()),
    _required("n_bytes", pa.int64()),
    _required("lost_bytes", pa.int64()),
    _required("digest", pa.string()),
)

# The group of every training document that a mix reads.
GROUPS = _schema("groups", _required("doc_id", pa.string()), _required("group", pa.string()))

# One row for every piece of a sequence: a span of a token shard. Those of one sequence follow one another. Where
# `ahead` is 1, the last id of the span is only a label.
SEQUENCES = _schema(
    "sequences",
    _required("sequence", pa.int64()),
    _required("split", pa.string()),
    _required("doc_id", pa.string()),
    _required("chunk", pa.int32()),
    _required("shard", pa.string()),
    _required("start", pa.int64()),
    _required("length", pa.int32()),
    _required("ahead", pa.int8()),
)

# The frozen documents that models are compared on, and by what their results are told apart: the language (or the
# programming language), the folder of the source, and how the text was come by (text, ocr, both).
EVALSET = _schema(
    "evalset",
    *(_required(name, pa.string()) for name in ("doc_id", "kind", "language", "source", "method")),
    _required("text", pa.large_string()),
)

# Documents of a segment that share runs of thirteen words with an evaluation set: how many they have and share.
EVALSET_OVERLAP = _schema(
    "evalset_overlap",
    _required("doc_id", pa.string()),
    _required("grams", pa.int64()),
    _required("shared", pa.int64()),
    _required("digest", pa.string()),
)

# How often each token id occurs in the training split.
TOKEN_COUNTS = _schema("token_counts", _required("token", pa.int32()), _required("count", pa.int64()))

# The training curve.
HISTORY = _schema(
    "history",
    _required("step", pa.int64()),
    _required("metric", pa.string()),
    _required("value", pa.float64()),
)

# Results of an evaluation, baselines among them.
METRICS = _schema(
    "metrics",
    _required("metric", pa.string()),
    _required("value", pa.float64()),
)

# Sums over the predicted tokens of documents, which add up to those of any set of them. `charged_nats` is what first
# tokens cost that nothing predicts; top1 and top5 count tokens; of the baselines there is the nll of the same tokens.
_SUMS = (
    *(_required(name, pa.int64()) for name in ("tokens", "bytes", "characters", "lost_bytes", "top1", "top5")),
    *(_required(name, pa.float64()) for name in ("nll_nats", "charged_nats", "uniform_nats", "unigram_nats")),
    pa.field("ngram_nats", pa.float64()),
)

# One row for every evaluation document.
EVALUATED = _schema(
    "evaluated",
    *(_required(name, pa.string()) for name in ("doc_id", "kind", "language", "source", "method", "length")),
    *_SUMS,
)

# An evaluation by slice: those of each dimension divide the same documents.
SLICES = _schema(
    "slices",
    *(_required(name, pa.string()) for name in ("dimension", "value")),
    _required("documents", pa.int64()),
    *_SUMS,
    *(pa.field(name, pa.float64()) for name in ("loss", "perplexity", "top1_share", "top5_share")),
    *(pa.field(name, pa.float64()) for name in ("bits_per_byte", "bits_per_character")),
    *(pa.field(f"{name}_bits_per_byte", pa.float64()) for name in ("uniform", "unigram", "ngram")),
)

# What each gate says of a model: passed, failed or skipped.
VERDICTS = _schema(
    "verdicts",
    *(_required(name, pa.string()) for name in ("gate", "verdict")),
    *(pa.field(name, pa.float64()) for name in ("number", "limit")),
    _required("sentence", pa.string()),
)

# How often the likeliest token is the right one, by the probability that it was given: in [begin, end), the last bin
# with 1. `confidence` is the sum of these probabilities.
CALIBRATION = _schema(
    "calibration",
    *(_required(name, pa.float64()) for name in ("begin", "end")),
    *(_required(name, pa.int64()) for name in ("tokens", "hits")),
    _required("confidence", pa.float64()),
)

# Loss by how many tokens of context there were: `begin` to `end` of them, both included.
POSITIONS = _schema(
    "positions",
    *(_required(name, pa.int64()) for name in ("begin", "end", "tokens", "top1")),
    _required("nll_nats", pa.float64()),
)

# One row for every generated continuation.
# `logprobs`, `ids`, `top_ids` and `top_logprobs` have an entry for each token; `fields` holds the other columns of the
# prompt's record as JSON, and `error` why a prompt was not continued.
COMPLETIONS = _schema(
    "completions",
    _required("id", pa.string()),
    _required("sample", pa.int32()),
    _required("prompt", pa.large_string()),
    _required("text", pa.large_string()),
    _required("finish_reason", pa.string()),
    _required("n_tokens", pa.int32()),
    _required("logprobs", pa.list_(pa.float64())),
    _required("model", pa.string()),
    _required("settings", pa.string()),
    _required("seed", pa.int64()),
    _required("ids", pa.list_(pa.int32())),
    _required("top_ids", pa.list_(pa.list_(pa.int32()))),
    _required("top_logprobs", pa.list_(pa.list_(pa.float64()))),
    pa.field("fields", pa.large_string()),
    pa.field("error", pa.string()),
)

# What was measured on a document; shares are 0 to 1. All but `n_chars`, `licence` and `pii` (in characters of the text)
# describe its first `measured_chars` characters. What each is, and whose definition: `tasks.curate.measures`.
MEASURES = _schema(
    "measures",
    _required("doc_id", pa.string()),
    _required("kind", pa.string()),
    *(_required(name, pa.int64()) for name in ("n_chars", "measured_chars", "n_words", "n_lines", "n_paragraphs")),
    *(_required(name, pa.int64()) for name in ("n_sentences", "longest_word", "longest_line", "stop_words")),
    *(_required(name, pa.int64()) for name in ("lorem_ipsum", "curly_brackets", "javascript", "policy_phrases")),
    *(_required(f"{name}_share", pa.float64()) for name in ("letter", "digit", "symbol", "upper", "space", "alnum")),
    _required("unspaced_share", pa.float64()),
    _required("mean_word_length", pa.float64()),
    _required("mean_line_length", pa.float64()),
    _required("alpha_word_share", pa.float64()),
    _required("hash_word_ratio", pa.float64()),
    _required("ellipsis_word_ratio", pa.float64()),
    *(
        _required(f"{name}_line_share", pa.float64())
        for name in ("bullet", "ellipsis", "terminal", "few_words", "short")
    ),
    _required("list_ratio", pa.float64()),
    *(
        _required(f"duplicate_{name}_share", pa.float64())
        for name in ("line", "line_char", "paragraph", "paragraph_char")
    ),
    *(_required(f"top_{n}gram_char_share", pa.float64()) for n in (2, 3, 4)),
    *(_required(f"duplicate_{n}gram_char_share", pa.float64()) for n in (5, 6, 7, 8, 9, 10)),
    _required("distinct_share", pa.float64()),
    _required("compression_ratio", pa.float64()),
    _required("comment_share", pa.float64()),
    _required("blob_share", pa.float64()),
    _required("generated", pa.bool_()),
    _required("minified", pa.bool_()),
    _required("language", pa.string()),
    _required("language_confidence", pa.float64()),
    pa.field("licence", pa.string()),
    _required(
        "pii",
        pa.list_(
            pa.struct([_required("kind", pa.string()), _required("start", pa.int64()), _required("length", pa.int64())])
        ),
    ),
    _required("digest", pa.string()),
)

# What the user's classifier says of each document of a segment: the probability, 0 to 1, that it is good.
SCORES = _schema(
    "scores",
    _required("doc_id", pa.string()),
    _required("score", pa.float64()),
    _required("digest", pa.string()),
)

# One row for every document of a segment that can be traced to; the anchors are numbered in the order of the rows.
TRACED = _schema("traced", _required("doc_id", pa.string()), _required("anchors", pa.int64()))

# How much of each completion stands word for word in training text; `longest` is in words, the rest in characters.
ECHOES = _schema(
    "echoes",
    _required("id", pa.string()),
    _required("sample", pa.int32()),
    _required("n_chars", pa.int64()),
    _required("covered_chars", pa.int64()),
    _required("longest", pa.int64()),
)

# One row for every span of a completion that stands in a training document; places are in characters.
ECHO_SPANS = _schema(
    "echo_spans",
    _required("id", pa.string()),
    _required("sample", pa.int32()),
    _required("start", pa.int64()),
    _required("length", pa.int64()),
    _required("words", pa.int64()),
    _required("doc_id", pa.string()),
    _required("doc_start", pa.int64()),
    _required("doc_length", pa.int64()),
)

# How many of an evaluation document's runs of thirteen words stand in training text.
CONTAMINATION = _schema(
    "contamination",
    _required("doc_id", pa.string()),
    _required("grams", pa.int64()),
    _required("seen", pa.int64()),
    _required("share", pa.float64()),
)

# One row for every question that was put to a model; the columns of choices are empty where it had to write.
ANSWERS = _schema(
    "answers",
    _required("id", pa.string()),
    _required("type", pa.string()),
    _required("prompt", pa.large_string()),
    _required("answer", pa.large_string()),
    _required("choices", pa.list_(pa.large_string())),
    _required("logprobs", pa.list_(pa.float64())),
    _required("logprobs_by_byte", pa.list_(pa.float64())),
    _required("prediction", pa.large_string()),
    pa.field("prediction_by_bytes", pa.large_string()),
    _required("right", pa.bool_()),
    pa.field("right_by_bytes", pa.bool_()),
)

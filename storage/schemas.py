"""Every Parquet schema of Sheepfold, versioned, and the names of the files in artefacts, in one place.

No table holds a time: two runs over the same documents write the same rows. `digest` columns hold the sha256 of the
row's content and make logical digests cheap.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 1

# Names of the files in artefacts that more than one module reads. They stand here so that a reader of a table does not
# import the code that makes it, which would count as the reader's own code (see `tests/fingerprints.py`).
FILES_FILE = "files.parquet"
EXTRACTS_FILE = "extracts.parquet"
PAGES_FILE = "pages.parquet"
DOCUMENTS_FILE = "documents.parquet"
MEASURES_FILE = "measures.parquet"
SCORES_FILE = "scores.parquet"
PAIRS_FILE = "pairs.parquet"
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


def _schema(name: str, columns: str) -> pa.Schema:
    """Return the schema of a table.

    Args:
        columns: `name` for a string, `name:type` for another type of Arrow (or `span`), `name:[type]` for a list; `?`
            at the end allows null.
    """
    fields = [_field(column) for column in columns.split()]
    return pa.schema(fields, {"sheepfold.table": name, "sheepfold.schema_version": str(SCHEMA_VERSION)})


def _field(column: str) -> pa.Field:
    name, _, kind = column.removesuffix("?").partition(":")
    return pa.field(name, _type(kind or "string"), nullable=column.endswith("?"))


def _type(kind: str) -> pa.DataType:
    if kind.startswith("["):
        return pa.list_(_type(kind[1:-1]))
    if kind == "span":
        return pa.struct([_field("kind"), _field("start:int64"), _field("length:int64")])
    return pa.type_for_alias(kind)


# One row for every path walked, and one for every member of an archive or table (`container` is set).
FILES = _schema(
    "files",
    "path source label container? size:int64 sha256? media_type? status reason reason_code licence? doc_id? segment?",
)

# One row for every distinct file content that was looked into, extracted or not, and for each member in it (`locator`).
EXTRACTS = _schema(
    "extracts",
    """
    doc_id file_sha256 suffix attempt:int32 locator sha256 size:int64 status reason reason_code kind media_type
    title? programming_language? encoding? encoding_confidence:float64? n_pages:int32 digest
    """,
)

# One row for every page (a TIFF frame and a whole text file are pages too).
PAGES = _schema("pages", "doc_id page:int32 text:large_string method engine confidence:float64? error?")

# One row for every document of a segment: its normalised text, and how it was come by.
NORMALISED = _schema(
    "normalised",
    """
    doc_id kind title? programming_language? text:large_string text_sha256 n_bytes:int64 n_pages:int32
    ocr_share:float64 ocr_confidence:float64? digest
    """,
)

# Pairs of documents whose texts are near-duplicates, with the exact Jaccard similarity of their shingles.
NEAR_PAIRS = _schema("near_pairs", "doc_id other_id similarity:float64")

# Every pair of texts whose similarity was ever computed: a later run looks it up.
VERIFIED_PAIRS = _schema("verified_pairs", "text_sha256 other_sha256 similarity:float64")

# The cluster of every document: all that equal or nearly equal each other, directly or through others.
CLUSTERS = _schema("clusters", "doc_id text_sha256 cluster cluster_size:int64")

# Stretches of a document's normalised text that are left out of what is trained on, and why.
CUTS = _schema("cuts", "doc_id start:int64 length:int64 reason_code")

# One row for every document of a segment: the text that models see, after cuts and redactions.
REFINED = _schema("refined", "doc_id kind text:large_string n_bytes:int64 redactions:int64 cut_chars:int64 digest")

# What the corpus makes of each document: its cluster, its split, whether it is kept.
SELECTION = _schema("selection", "doc_id segment cluster split kept:bool licence? n_bytes:int64")

# Documents that curation dropped, and why. It holds no path: the same documents elsewhere give the same table. The
# catalogue's view `quarantine` adds the paths, and the files that extraction refused.
DROPPED = _schema("dropped", "doc_id reason_code reason")

# One row for every document of a token shard; `offset` and `length` find its ids in the flat shard beside the table.
TOKENS = _schema("tokens", "doc_id offset:int64 length:int64 n_bytes:int64 lost_bytes:int64 digest")

# The group of every training document that a mix reads.
GROUPS = _schema("groups", "doc_id group")

# One row for every piece of a sequence: a span of a token shard. Those of one sequence follow one another. Where
# `ahead` is 1, the last id of the span is only a label.
SEQUENCES = _schema("sequences", "sequence:int64 split doc_id chunk:int32 shard start:int64 length:int32 ahead:int8")

# The frozen documents that models are compared on, and by what their results are told apart: the language (or the
# programming language), the folder of the source, and how the text was come by (text, ocr, both).
EVALSET = _schema("evalset", "doc_id kind language source method text:large_string")

# Documents of a segment that share 13-grams with an evaluation set: how many they have and share.
EVALSET_OVERLAP = _schema("evalset_overlap", "doc_id grams:int64 shared:int64 digest")

# How often each token id occurs in the training split.
TOKEN_COUNTS = _schema("token_counts", "token:int32 count:int64")

# The training curve.
HISTORY = _schema("history", "step:int64 metric value:float64")

# Results of an evaluation, baselines among them.
METRICS = _schema("metrics", "metric value:float64")

# Sums over the predicted tokens of documents, which add up to those of any set of them. `charged_nats` is what first
# tokens cost that nothing predicts; top1 counts tokens; of the baselines there is the nll of the same tokens.
_SUMS = """
    tokens:int64 bytes:int64 lost_bytes:int64 top1:int64
    nll_nats:float64 charged_nats:float64 uniform_nats:float64 unigram_nats:float64 ngram_nats:float64?
"""

# One row for every evaluation document.
EVALUATED = _schema("evaluated", f"doc_id kind language source method {_SUMS}")

# An evaluation by slice: those of each dimension divide the same documents.
SLICES = _schema(
    "slices",
    f"""
    dimension value documents:int64 {_SUMS} loss:float64? perplexity:float64? top1_share:float64? bits_per_byte:float64?
    uniform_bits_per_byte:float64? unigram_bits_per_byte:float64? ngram_bits_per_byte:float64?
    """,
)

# What each gate says of a model: passed, failed or skipped.
VERDICTS = _schema("verdicts", "gate verdict number:float64? limit:float64? sentence")

# One row for every generated continuation.
# `logprobs`, `ids`, `top_ids` and `top_logprobs` have an entry for each token; `fields` holds the other columns of the
# prompt's record as JSON, and `error` why a prompt was not continued.
COMPLETIONS = _schema(
    "completions",
    """
    id sample:int32 prompt:large_string text:large_string finish_reason n_tokens:int32 logprobs:[float64] model
    settings seed:int64 ids:[int32] top_ids:[[int32]] top_logprobs:[[float64]] fields:large_string? error?
    """,
)

# What was measured on a document; shares are 0 to 1. All but `n_chars`, `licence` and `pii` (in characters of the text)
# describe its first `measured_chars` characters. What each is, and whose definition: `tasks.curate.measure`.
MEASURES = _schema(
    "measures",
    """
    doc_id kind n_chars:int64 measured_chars:int64 n_words:int64 n_lines:int64 n_paragraphs:int64 n_sentences:int64
    longest_word:int64 longest_line:int64 stop_words:int64 lorem_ipsum:int64 curly_brackets:int64 javascript:int64
    policy_phrases:int64 letter_share:float64 digit_share:float64 symbol_share:float64 upper_share:float64
    space_share:float64 alnum_share:float64 unspaced_share:float64 mean_word_length:float64 mean_line_length:float64
    alpha_word_share:float64 hash_word_ratio:float64 ellipsis_word_ratio:float64 bullet_line_share:float64
    ellipsis_line_share:float64 terminal_line_share:float64 few_words_line_share:float64 short_line_share:float64
    list_ratio:float64 duplicate_line_share:float64 duplicate_line_char_share:float64
    duplicate_paragraph_share:float64 duplicate_paragraph_char_share:float64 top_2gram_char_share:float64
    top_3gram_char_share:float64 top_4gram_char_share:float64 duplicate_5gram_char_share:float64
    duplicate_6gram_char_share:float64 duplicate_7gram_char_share:float64 duplicate_8gram_char_share:float64
    duplicate_9gram_char_share:float64 duplicate_10gram_char_share:float64 distinct_share:float64
    compression_ratio:float64 comment_share:float64 blob_share:float64 generated:bool minified:bool language
    language_confidence:float64 licence? pii:[span] digest
    """,
)

# What the user's classifier says of each document of a segment: the probability, 0 to 1, that it is good.
SCORES = _schema("scores", "doc_id score:float64 digest")

# One row for every document of a segment that can be traced to; the anchors are numbered in the order of the rows.
TRACED = _schema("traced", "doc_id anchors:int64")

# How much of each completion stands word for word in training text; `longest` is in words, the rest in characters.
MEMORISED = _schema("memorised", "id sample:int32 n_chars:int64 covered_chars:int64 longest:int64")

# One row for every span of a completion that stands in a training document; places are in characters.
MEMORISED_SPANS = _schema(
    "memorised_spans",
    "id sample:int32 start:int64 length:int64 words:int64 doc_id doc_start:int64 doc_length:int64",
)

# How many of an evaluation document's 13-grams stand in training text.
CONTAMINATION = _schema("contamination", "doc_id grams:int64 seen:int64 share:float64")

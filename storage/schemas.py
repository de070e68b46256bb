"""All Parquet schemas, versioned, and the names of the files in artefacts.

No table holds a time, so that two runs over the same documents write the same rows. A `digest` column holds the sha256
of the row's content, from which logical digests are computed.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 1

# Names of files that several modules read. They are defined here because a stage's fingerprint covers the modules that
# it imports (see `tests/fingerprints.py`): a reader of a table must not import its writer.
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
LEGIBILITY_FILE = "legibility.parquet"
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
LEARNT_FILE = "learnt.npy"
EXAMPLES_FILE = "examples.parquet"


def _schema(name: str, columns: str) -> pa.Schema:
    """Return the schema of a table.

    Args:
        columns: `name` for a string, `name:type` for another type of Arrow (or `span`, `passage`, `mend`, `block`,
            `role`, `message`), `name:[type]` for a list; `?` at the end allows null.
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
    if kind == "passage":
        return pa.struct([_field("start:int64"), _field("length:int64"), _field("error_rate:float64")])
    if kind == "message":
        return pa.struct([_field("role"), _field("content:large_string")])
    if kind == "mend":
        return pa.struct([_field("start:int64"), _field("length:int64"), _field("text")])
    if kind == "role":
        return pa.struct([_field("page:int32"), _field("number:int32"), _field("kind"), _field("level:int32")])
    if kind == "block":
        sides = [_field(f"{name}:float64") for name in ("x0", "y0", "x1", "y1", "size")]
        return pa.struct([_field("kind"), _field("text:large_string"), *sides, _field("bold:bool")])
    return pa.type_for_alias(kind)


# One row per path found, and one per member of an archive or table (`container` is set).
FILES = _schema(
    "files",
    """
    path source label container? size:int64 sha256? media_type? status reason reason_code licence? date? date_from?
    title? title_from? doc_id? segment?
    """,
)

# One row per distinct file content that was read, extracted or not, and per member in it (`locator`).
EXTRACTS = _schema(
    "extracts",
    """
    doc_id file_sha256 suffix attempt:int32 locator sha256 size:int64 status reason reason_code kind media_type
    title? programming_language? encoding? encoding_confidence:float64? n_pages:int32 digest
    """,
)

# One row per page; a TIFF frame and a whole text file are pages too.
PAGES = _schema(
    "pages",
    """
    doc_id page:int32 text:large_string method engine confidence:float64? error? blocks:[block] lines_again:[int32]
    """,
)

# One row per document of a segment: its normalised text, and how the text was extracted.
NORMALISED = _schema(
    "normalised",
    """
    doc_id kind title? programming_language? text:large_string text_sha256 n_bytes:int64 n_pages:int32
    ocr_share:float64 ocr_confidence:float64? roles:[role] digest
    """,
)

# Near-duplicate pairs of documents, with the exact Jaccard similarity of their shingles.
NEAR_PAIRS = _schema("near_pairs", "doc_id other_id similarity:float64")

# Pairs of texts whose similarity was computed, for later runs.
VERIFIED_PAIRS = _schema("verified_pairs", "text_sha256 other_sha256 similarity:float64")

# The cluster of every document: a connected component of equal texts and near-duplicates.
CLUSTERS = _schema("clusters", "doc_id text_sha256 cluster cluster_size:int64")

# Spans of a document's normalised text that are cut before training, and why.
CUTS = _schema("cuts", "doc_id start:int64 length:int64 reason_code")

# One row per document of a segment: the text that models are trained on, after cuts, redactions and mends.
REFINED = _schema(
    "refined", "doc_id kind text:large_string n_bytes:int64 redactions:int64 cut_chars:int64 mends:int64 digest"
)

# The curation of each document of the corpus: its cluster, its split, and if it is kept.
SELECTION = _schema("selection", "doc_id segment cluster split kept:bool licence? n_bytes:int64")

# Documents that curation dropped, and why. Paths are not part of it, so that moved documents give the same table; the
# catalogue's view `quarantine` adds them, and the files that extraction refused.
DROPPED = _schema("dropped", "doc_id reason_code reason")

# One row per document of a token shard; `offset` and `length` are the place of its ids in the shard.
TOKENS = _schema("tokens", "doc_id offset:int64 length:int64 n_bytes:int64 lost_bytes:int64 digest")

# One row per conversation in the refined texts of a segment; `start` and `length` are its passage, in characters. The
# question of a mail may stand in another document, `asked_in`.
# `synthetic` is true if nobody asked: a program wrote it, or its question is a heading.
CHAT_PAIRS = _schema(
    "pairs", "doc_id number:int32 kind start:int64 length:int64 synthetic:bool messages:[message] asked_in digest"
)

# One row per conversation in a token shard, in the order of the shard; `learnt` counts the ids of its answers.
EXAMPLES = _schema("examples", "doc_id number:int32 asked_in offset:int64 length:int64 n_bytes:int64 learnt:int64")

# The group of every training document that a mix reads.
GROUPS = _schema("groups", "doc_id group")

# One row per piece of a sequence: a span of a token shard. Pieces of one sequence are consecutive. If `ahead` is 1, the
# last id of the span is only a label.
SEQUENCES = _schema("sequences", "sequence:int64 split doc_id chunk:int32 shard start:int64 length:int32 ahead:int8")

# The frozen documents of an evaluation set, and the dimensions of its slices: the kind, the language (or programming
# language), the folder of the source, and the extraction method (text, ocr, both).
EVALSET = _schema("evalset", "doc_id kind language source method text:large_string")

# Documents of a segment that share 13-grams with an evaluation set: numbers of their own and of shared ones.
EVALSET_OVERLAP = _schema("evalset_overlap", "doc_id grams:int64 shared:int64 digest")

# Occurrences of each token id in the training split.
TOKEN_COUNTS = _schema("token_counts", "token:int32 count:int64")

# The training curve.
HISTORY = _schema("history", "step:int64 metric value:float64")

# Results of an evaluation, with the baselines.
METRICS = _schema("metrics", "metric value:float64")

# Sums over the predicted tokens of documents; sums of a set of documents add up from them. `charged_nats` is the charge
# for first tokens, which have no context; `top1` counts tokens; the baselines' nll is of the same tokens.
_SUMS = """
    tokens:int64 bytes:int64 lost_bytes:int64 top1:int64
    nll_nats:float64 charged_nats:float64 uniform_nats:float64 unigram_nats:float64 ngram_nats:float64?
"""

# One row per evaluation document.
EVALUATED = _schema("evaluated", f"doc_id kind language source method {_SUMS}")

# An evaluation by slice: the slices of one dimension partition the documents.
SLICES = _schema(
    "slices",
    f"""
    dimension value documents:int64 {_SUMS} loss:float64? perplexity:float64? top1_share:float64? bits_per_byte:float64?
    uniform_bits_per_byte:float64? unigram_bits_per_byte:float64? ngram_bits_per_byte:float64?
    """,
)

# The verdict of each gate on a model: passed, failed, skipped or not_comparable.
VERDICTS = _schema("verdicts", "gate verdict number:float64? limit:float64? sentence")

# One row per completion. `logprobs`, `ids`, `top_ids` and `top_logprobs` have an entry per token; `fields` holds the
# other columns of the prompt's record as JSON, `error` the reason why a prompt has no completion.
COMPLETIONS = _schema(
    "completions",
    """
    id sample:int32 prompt:large_string text:large_string finish_reason n_tokens:int32 logprobs:[float64] model
    settings seed:int64 ids:[int32] top_ids:[[int32]] top_logprobs:[[float64]] fields:large_string? error?
    """,
)

# Measures of a document; shares are 0 to 1. All but `n_chars`, `licence` and `pii` (offsets in characters) describe its
# first `measured_chars` characters. `tasks.curate.measure` defines them, with their sources.
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

# Score of the user's classifier for each document of a segment: the probability, 0 to 1, that it is good.
SCORES = _schema("scores", "doc_id score:float64 digest")

# One row per document of a segment in the trace index; the anchors are numbered in the order of the rows.
TRACED = _schema("traced", "doc_id anchors:int64")

# Estimated share of wrong characters of each document of a segment, null for one that was not judged, and its passages
# with at least `tasks.curate.legibility.RECORDED` of them, in characters of its normalised text. `mends` are words of
# that text which OCR misread, and what stands on the page.
LEGIBILITY = _schema("legibility", "doc_id error_rate:float64? passages:[passage] mends:[mend] digest")

# Memorised text of each completion; `longest` is in words, the rest in characters.
MEMORISED = _schema("memorised", "id sample:int32 n_chars:int64 covered_chars:int64 longest:int64")

# One row per memorised span of a completion; places are in characters.
MEMORISED_SPANS = _schema(
    "memorised_spans",
    "id sample:int32 start:int64 length:int64 words:int64 doc_id doc_start:int64 doc_length:int64",
)

# 13-grams of each evaluation document, and how many of them occur in training text.
CONTAMINATION = _schema("contamination", "doc_id grams:int64 seen:int64 share:float64")

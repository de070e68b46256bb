"""The meaning of every table and column: docs/reference/tables.md is made of this.

It is documentation and not in `storage.schemas`: metadata of a field would be written into every Parquet file, and text
in the module of the schemas would count as code of every stage (see `tests/fingerprints.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Meaning(NamedTuple):
    """Meaning of a table and of its columns; a column that is not named has the meaning in `SHARED`."""

    table: str
    columns: Mapping[str, str] = MappingProxyType({})


ERROR_RATE = "Estimated share of misread characters, 0 to 1; null for a document that was not judged."

SHARED = {
    "date": "Date of the document by `sources.metadata` or `sources.date_pattern`: a year, or with month and day.",
    "date_from": "`table` for `sources.metadata`, or `path`.",
    "doc_id": "Id of the document: sha256 of the bytes of its file and its place within them.",
    "digest": "sha256 of the row's content.",
    "sha256": "sha256 of the bytes; null where nothing was read.",
    "size": "Bytes.",
    "status": "`ok`, `duplicate`, `skipped`, `rejected` or `failed`.",
    "reason": "Reason of the status, in words; of an `ok` document, what it lacks.",
    "reason_code": "The reason for programs, such as `too_short`.",
    "kind": "`text`, `code`, `pdf` or `image`.",
    "media_type": "Such as `application/pdf`.",
    "title": "Title that the document states; in `files`, that of `sources.metadata` before it.",
    "title_from": "`table` for `sources.metadata`, or `document`.",
    "programming_language": "Name of the language of code.",
    "text": "The text.",
    "text_sha256": "sha256 of the text.",
    "n_bytes": "UTF-8 bytes of the text.",
    "n_pages": "Pages.",
    "segment": "Key of the segment (an artefact of `extract` or `import`) that holds its text.",
    "start": "First character of the span in the text.",
    "length": "Characters of the span.",
    "cluster": "Id of its cluster of near-duplicates: the lowest `text_sha256` in it; its own if alone.",
    "split": "`train` or `validation`; `none` for a document without a split.",
    "kept": "True if the corpus keeps the document.",
    "licence": "SPDX identifier of its licence: stated in the text, else by a licence file of its folder or one above.",
    "similarity": "Jaccard similarity of the two sets of word 5-grams, 0 to 1.",
    "language": "ISO 639-1 code, or `und`; of code, the programming language.",
    "source": "First two folders of the document's path, or `.`.",
    "method": "Origin of the text: `text`, `ocr` or `both`.",
    "shard": "Key of the token shard (an artefact of `tokenise`).",
    "metric": "Name of the figure.",
    "value": "Its value.",
    "id": "Id of the prompt.",
    "sample": "Number of the continuation of this prompt, from 0.",
    "grams": "13-grams of the document.",
    "tokens": "Predicted tokens.",
    "bytes": "UTF-8 bytes of the text.",
    "lost_bytes": "Bytes that the tokeniser cannot give back.",
    "top1": "Tokens to which the model gave the highest probability.",
    "nll_nats": "Negative log-likelihood of the tokens, in nats.",
    "charged_nats": "Nats charged for first tokens that nothing predicts: as if all tokens were equally likely.",
    "uniform_nats": "Negative log-likelihood where all tokens are equally likely.",
    "unigram_nats": "Negative log-likelihood by frequency in the training text.",
    "ngram_nats": "Negative log-likelihood by the n-gram baseline; null without one.",
}

TABLES: dict[str, Meaning] = {
    "files": Meaning(
        "One row for every path listed, and one for every member of an archive or table.",
        {
            "path": "Path below the source, behind the label; of a member, the container's path and its own.",
            "source": "Address of the source.",
            "label": "Name of the source in paths where a run has several; else empty.",
            "container": "Path of the archive or table that the member is in; null for a file.",
            "doc_id": "Id of its document; null where it holds none. Copies share one.",
            "segment": "Key of the segment that holds its text; null without a document.",
            "licence": "SPDX identifier by the nearest licence file of its folder or one above.",
        },
    ),
    "extracts": Meaning(
        "One row for every distinct file content that was read, and one for every member in it.",
        {
            "file_sha256": "sha256 of the file's bytes.",
            "suffix": "Suffix of the file's name, by which a reader is chosen where the bytes decide nothing.",
            "attempt": "Number of the attempt, from 0; `--retry-failed` makes another.",
            "locator": "Place in a container: path in an archive, row number in a table; empty for a file.",
            "sha256": "sha256 of a member's bytes; empty for a file.",
            "size": "Bytes of a member; 0 for a file.",
            "status": "`ok`, `skipped`, `rejected` or `failed`.",
            "kind": "`text`, `code`, `pdf`, `image`, or a container: `archive`, `table`; empty for anything else.",
            "encoding": "Encoding of text and code.",
            "encoding_confidence": "Confidence in the encoding, 0 to 1.",
        },
    ),
    "pages": Meaning(
        "One row for every page; a TIFF frame is a page, and a text file has one.",
        {
            "page": "Number of the page, from 1.",
            "text": "Text of the page as extracted.",
            "method": "`text` (text layer or decoder), `ocr`, `both` or `none`.",
            "engine": "Programs that read it: `pypdfium2`, `pypdf`, `tesseract`, `rapidocr`, `pillow` or `decoder`.",
            "confidence": "Mean confidence of OCR, or the decoder's, 0 to 1.",
            "error": "Fault on this page; null without one.",
            "blocks": "Parts of its text in reading order, see the view `blocks`; empty if its layout is not known.",
            "lines_again": "Numbers, from 1, of the lines that a second OCR engine (`rapidocr`) read.",
        },
    ),
    "normalised": Meaning(
        "One row for every document of a segment: its normalised text.",
        {
            "ocr_share": "Share of its pages that were read by OCR.",
            "ocr_confidence": "Mean confidence of the pages that were read by OCR.",
            "roles": "Blocks that are headings, captions, footnotes or running heads; see the view `blocks`.",
        },
    ),
    "near_pairs": Meaning(
        "Pairs of documents whose texts are near-duplicates.", {"other_id": "Id of the other document."}
    ),
    "verified_pairs": Meaning(
        "Every pair of texts whose similarity was computed; a later run looks it up.",
        {"other_sha256": "sha256 of the other text."},
    ),
    "clusters": Meaning("The cluster of every document.", {"cluster_size": "Documents in the cluster."}),
    "cuts": Meaning(
        "Spans that are left out of the training text.", {"reason_code": "Reason of the cut, for programs."}
    ),
    "refined": Meaning(
        "One row for every document of a segment: the text that models read, after cuts and redactions.",
        {
            "redactions": "Spans of personal data that were replaced.",
            "cut_chars": "Characters that were cut out.",
            "mends": "Words that OCR misread and that were mended, and stamps of scanners that were cut.",
        },
    ),
    "selection": Meaning("One row for every document of the corpus: cluster, split, and if it is kept."),
    "dropped": Meaning(
        "Documents that curation dropped.", {"reason": "Reason in words.", "reason_code": "The reason for programs."}
    ),
    "tokens": Meaning(
        "One row for every document of a token shard.",
        {"offset": "Place of its first id in the shard.", "length": "Number of its ids."},
    ),
    "pairs": Meaning(
        "One row for every conversation in the texts of a segment (stage `pairs`).",
        {
            "number": "Number of the conversation in its document.",
            "kind": "conversation, questions, dialogue, interview, mail, faq or section.",
            "start": "First character of its passage in the text of the document.",
            "length": "Characters of the passage.",
            "synthetic": "True if nobody asked: a program wrote it, or its question is a heading.",
            "messages": "What is said: role (`user`, `assistant`, `system`) and content.",
            "asked_in": "Document of the question, another one where a mail replies to it.",
        },
    ),
    "examples": Meaning(
        "One row for every conversation in a token shard (stage `tokenise_pairs`).",
        {
            "number": "Number of the conversation in its document.",
            "asked_in": "Document of the question.",
            "offset": "Place of its first id in the shard.",
            "length": "Number of its ids.",
            "n_bytes": "UTF-8 bytes of its messages.",
            "learnt": "Number of ids that are learnt: those of answers and of their ends.",
        },
    ),
    "groups": Meaning("The group of every training document, for a mix.", {"group": "Name of the group."}),
    "sequences": Meaning(
        "One row for every piece of a sequence: a span of a token shard. Pieces of a sequence follow one another.",
        {
            "sequence": "Number of the sequence.",
            "chunk": "Number of the piece in its document.",
            "start": "Place of its first id in the shard.",
            "length": "Number of its ids.",
            "ahead": "1 if its last id is only predicted and not read.",
        },
    ),
    "evalset": Meaning("The frozen documents on which models are compared."),
    "evalset_overlap": Meaning(
        "Documents of a segment that share 13-grams with an evaluation set.", {"shared": "13-grams that both have."}
    ),
    "token_counts": Meaning(
        "Occurrences of each token id in the training split.", {"token": "Token id.", "count": "Occurrences."}
    ),
    "history": Meaning("The training curve: one row for each step and metric.", {"step": "Optimiser step, from 1."}),
    "metrics": Meaning("Figures of an evaluation, baselines among them."),
    "evaluated": Meaning("One row for every evaluation document: sums over its predicted tokens."),
    "slices": Meaning(
        "The evaluation by slice; the slices of one dimension divide the same documents.",
        {
            "dimension": "`kind`, `language`, `source` or `method`.",
            "value": "Value that the documents of the slice share.",
            "documents": "Documents of the slice.",
            "loss": "Nats per predicted token.",
            "perplexity": "exp(loss).",
            "top1_share": "Share of tokens to which the model gave the highest probability.",
            "bits_per_byte": "Bits per byte of the model.",
            "uniform_bits_per_byte": "Bits per byte of the uniform baseline.",
            "unigram_bits_per_byte": "Bits per byte of the unigram baseline.",
            "ngram_bits_per_byte": "Bits per byte of the n-gram baseline.",
        },
    ),
    "verdicts": Meaning(
        "What each gate says of a model (stage `gates`).",
        {
            "gate": "Name of the gate.",
            "verdict": "`passed`, `failed`, `skipped` (nothing to measure, or no limit) or `not_comparable` (too "
            "little text, or the champion was trained on it).",
            "number": "Measured value; null where nothing was measured.",
            "limit": "Limit it was compared with; null without one.",
            "sentence": "Both in words.",
        },
    ),
    "prompts": Meaning(
        "One row for every prompt of a shard (stage `prompts`).",
        {
            "prompt": "The prompt.",
            "fields": "Other columns of the prompt's record, as JSON.",
            "error": "Reason why the record is no prompt; null if it is one.",
        },
    ),
    "completions": Meaning(
        "One row for every continuation of a prompt.",
        {
            "prompt": "The prompt.",
            "text": "The continuation alone.",
            "finish_reason": "`stop` (an end or stop token, a stop string), `length`, `context` (it is full), "
            "`exhausted` (every token was forbidden) or `error`.",
            "n_tokens": "Generated tokens.",
            "logprobs": "The model's log-probability of each token, in nats, before penalties and filters.",
            "model": "Digest of the model.",
            "settings": "Sampling settings, as JSON.",
            "seed": "Seed of the sampling.",
            "ids": "Generated token ids.",
            "top_ids": "For each token the ids of the likeliest ones (`generate.top_logprobs` of them).",
            "top_logprobs": "Their log-probabilities.",
            "fields": "Other columns of the prompt's record, as JSON.",
            "error": "Reason why the prompt was not continued; null if it was.",
        },
    ),
    "measures": Meaning(
        "Measures of one document. All but `n_chars`, `licence` and `pii` describe its first `measured_chars` "
        "characters. Shares are 0 to 1, and of characters without white space unless said otherwise.",
        {
            "n_chars": "Characters of the whole text.",
            "measured_chars": "Characters that were measured.",
            "n_words": "Words: what white space separates.",
            "n_lines": "Lines.",
            "n_paragraphs": "Paragraphs: runs of lines that hold a word.",
            "n_sentences": "Words that end a sentence.",
            "longest_word": "Characters of the longest word.",
            "longest_line": "Characters of the longest line.",
            "stop_words": "How many of the eight words the, be, to, of, and, that, have, with occur.",
            "lorem_ipsum": "Occurrences of `lorem ipsum`.",
            "curly_brackets": "Occurrences of `{`.",
            "javascript": "Occurrences of `javascript`.",
            "policy_phrases": "Phrases like `privacy policy` and `uses cookies`.",
            "letter_share": "Share of letters.",
            "digit_share": "Share of digits.",
            "symbol_share": "Share of punctuation and symbols.",
            "upper_share": "Share of capitals among the letters.",
            "space_share": "Share of white space among all characters.",
            "alnum_share": "Share of letters and digits among all characters.",
            "unspaced_share": "Share of letters of scripts without spaces between words.",
            "mean_word_length": "Mean characters of a word.",
            "mean_line_length": "Mean characters of a line.",
            "alpha_word_share": "Share of words with a letter.",
            "hash_word_ratio": "Hash signs per word.",
            "ellipsis_word_ratio": "Ellipses per word.",
            "bullet_line_share": "Share of lines that begin with a bullet.",
            "ellipsis_line_share": "Share of lines that end in an ellipsis.",
            "terminal_line_share": "Share of lines that end in terminal punctuation or a quotation mark.",
            "few_words_line_share": "Share of lines with fewer than 5 words.",
            "short_line_share": "Share of lines with at most 30 characters.",
            "list_ratio": "Line feeds per word.",
            "duplicate_line_share": "Share of lines that occurred earlier in the document.",
            "duplicate_line_char_share": "Share of characters in such lines.",
            "duplicate_paragraph_share": "Share of paragraphs that occurred earlier in the document.",
            "duplicate_paragraph_char_share": "Share of characters in such paragraphs.",
            **{
                f"top_{n}gram_char_share": f"Share of characters in the most frequent {n}-gram of words."
                for n in (2, 3, 4)
            },
            **{
                f"duplicate_{n}gram_char_share": f"Share of characters in {n}-grams of words that occurred earlier."
                for n in range(5, 11)
            },
            "distinct_share": "Share of distinct ones among the 5-grams of words; 1 below 100 words.",
            "compression_ratio": "Compressed size of the first 8,192 characters by their size in UTF-8.",
            "comment_share": "Share of lines that begin as a comment; of code only.",
            "blob_share": "Share of base64 and hexadecimal data.",
            "generated": "True if code says that a program wrote it.",
            "minified": "True for code with long lines and hardly a space.",
            "language": "ISO 639-1 code of the natural language (three letters where there is none), or `und`.",
            "language_confidence": "Confidence in the language, 0 to 1.",
            "licence": "SPDX identifier of the licence that the text states.",
            "pii": "Spans of personal data: kind (`email`, `ip`, `phone`, `iban`, `card`, `secret`), start, length.",
        },
    ),
    "scores": Meaning(
        "Scores of the trained document classifier.", {"score": "Probability that the document is wanted, 0 to 1."}
    ),
    "legibility": Meaning(
        "Misread text of documents that OCR read.",
        {
            "error_rate": ERROR_RATE,
            "passages": "Start, length and estimated share of misread characters of the passages with at least 1 %.",
            "mends": "Start and length of words that are replaced and of lines that are cut, and the word instead.",
        },
    ),
    "traced": Meaning(
        "Documents of an index of training text (stage `trace_index`), in the order of their anchors.",
        {"anchors": "Anchors of the document in the index."},
    ),
    "memorised": Meaning(
        "One row for every completion: memorised text in it (stage `memorised`).",
        {
            "n_chars": "Characters of the completion.",
            "covered_chars": "Characters in memorised spans.",
            "longest": "Words of the longest span.",
        },
    ),
    "memorised_spans": Meaning(
        "One row for every memorised span and document that holds it (stage `memorised`, `spans.parquet`).",
        {
            "start": "First character of the span in the completion.",
            "words": "Words of the span.",
            "doc_start": "First character in the document.",
            "doc_length": "Characters in the document.",
        },
    ),
    "contamination": Meaning(
        "One row for every evaluation document (stage `contamination`).",
        {"seen": "13-grams that stand in training text.", "share": "Their share."},
    ),
}

# Views of the catalogue: tables whose meanings their columns have, the first that knows one
VIEWS: dict[str, tuple[tuple[str, ...], Meaning]] = {
    "files": (("files",), Meaning(TABLES["files"].table)),
    "pages": (("pages",), Meaning("Extracted pages of the live documents.")),
    "blocks": (
        ("pages", "normalised"),
        Meaning(
            "Parts of the pages of PDFs, in reading order.",
            {
                "number": "Number of the block on its page, in reading order, from 1.",
                "kind": "`heading`, `paragraph`, `item` of a list, `table`, `code`, `caption`, `footnote` or "
                "`running_head`, which is not in the text; `lines` if the layout is not known.",
                "level": "Level of a heading, from 1; else 0.",
                "text": "Its lines; of a table, Markdown.",
                "x0": "Left edge of its box, in points from the lower left corner of the page.",
                "y0": "Lower edge.",
                "x1": "Right edge.",
                "y1": "Upper edge.",
                "size": "Size of most of its text, in points.",
                "bold": "Whether all its text is bold.",
            },
        ),
    ),
    "documents": (
        ("measures", "normalised", "refined", "selection"),
        Meaning(
            "Documents that the corpus keeps: text, split and measures.",
            {
                "text": "The text that models read, after cuts and redactions.",
                "licence": SHARED["licence"],
                "classifier_score": "Score of the document classifier; null without one.",
                "error_rate": ERROR_RATE,
            },
        ),
    ),
    "measures": (
        ("measures", "normalised"),
        Meaning(
            "Measures of every live document, kept or not. " + TABLES["measures"].table.partition(". ")[2],
            {
                "classifier_score": "Score of the document classifier; null without one.",
                "error_rate": ERROR_RATE,
            },
        ),
    ),
    "quarantine": (
        (),
        Meaning(
            "Everything refused or dropped. It has the members of archives, too.",
            {
                "doc_id": "Id of the document; null where there is none.",
                "path": "Path of the file or member.",
                "stage": "`ingest` (refused when it was read) or `curate` (dropped).",
                "reason": "Reason in words.",
            },
        ),
    ),
    "tokens": (
        ("tokens",),
        Meaning("Token ids of the documents that the corpus keeps.", {"ids": "Token ids, read from the shard."}),
    ),
    "token_spans": (
        ("tokens",),
        Meaning(
            "Places of the same documents in the token shards, without ids.",
            {"filename": "Path of the table beside the shard."},
        ),
    ),
    "dataset": (("sequences",), Meaning("Training and validation sequences as spans of token shards.")),
    "cuts": (("cuts",), Meaning(TABLES["cuts"].table)),
    "misread": (
        ("legibility",),
        Meaning(
            "Passages of documents that OCR read with at least 1 % of misread characters, cut or not.",
            {
                "start": "First character of the passage in the document's text before cuts.",
                "length": "Its characters.",
                "error_rate": "Estimated share of misread characters, 0 to 1.",
            },
        ),
    ),
    "mends": (
        ("legibility",),
        Meaning(
            "Words that OCR misread and stamps of scanners, mended or cut where `refine.mend` is on and no cut has "
            "taken them.",
            {
                "start": "First character in the document's text before cuts.",
                "length": "Characters that are replaced.",
                "text": "What stands there instead; empty for a stamp.",
            },
        ),
    ),
    "pairs": (("pairs", "selection"), Meaning("Conversations in the documents in use, of a training on them.")),
    "near_pairs": (("near_pairs",), Meaning(TABLES["near_pairs"].table)),
    "clusters": (("clusters",), Meaning(TABLES["clusters"].table)),
    "completions": (("completions",), Meaning("Completions of the last run.")),
    "metrics": (("metrics",), Meaning("Figures of the last evaluation, baselines among them.")),
    "evaluated": (("evaluated",), Meaning(TABLES["evaluated"].table)),
    "slices": (("slices",), Meaning(TABLES["slices"].table)),
    "live": (
        ("files",),
        Meaning(
            "Documents whose files are there now, with their segments.",
            {"segment": SHARED["segment"], "doc_id": SHARED["doc_id"]},
        ),
    ),
}


def column_meaning(table: str, column: str) -> str:
    """Return the meaning of a column of a table.

    Raises:
        KeyError: if it has none.
    """
    return TABLES[table].columns.get(column) or SHARED[column]


def view_meaning(view: str, column: str) -> str:
    """Return the meaning of a column of a view of the catalogue.

    Raises:
        KeyError: if it has none.
    """
    tables, own = VIEWS[view]
    found = [own.columns, *(TABLES[table].columns for table in tables), SHARED]
    return next(columns[column] for columns in found if column in columns)

"""The sections of a corpus report, each from the figures alone."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.report.corpus.charts import bars, fate_bar, histogram
from tasks.report.corpus.figures import Archive, Figures, Outcome, Pair, Tally
from tasks.report.corpus.queries import DOUBTFUL, LONGEST_LIST
from tasks.report.corpus.reasons import group_of, reason_of
from tasks.report.corpus.worries import worries
from tasks.report.inspect.labels import legible
from tasks.report.inspect.layout import section
from tasks.report.inspect.svg import element, escape
from tasks.report.inspect.tables import Cell, scrolled, table
from tasks.report.old_charts import legend
from tasks.report.wording import counted, cut, cut_middle, share, size_of
from tasks.report.worries import look_first

Row = list[Cell | str | float]

_PATH = 110  # characters of a path
_REASON = 260
_SHOWN_BARS = 12
_TALL = 18  # rows of a table that is scrolled
_NO_LANGUAGE = {"und": "not determined", "zxx": "no language"}
_CUT = {
    "evaluation_set": "text of an external evaluation set",
    "duplicate_paragraph": "paragraphs that another document has as well",
}


def path_cell(path: str, length: int = _PATH) -> Cell:
    """The name of a file, whole when a pointer rests on it."""
    name = legible(path)
    shown = cut_middle(name, length)
    return Cell(shown, "left path", hint=name if shown != name else None)


def reason_cell(reason: str) -> Cell:
    """A sentence that may hold words of a document."""
    words = legible(reason)
    shown = cut(words, _REASON)
    return Cell(shown, "wrap", hint=words if shown != words else None)


def worries_section(figures: Figures) -> str:
    """What to look at first."""
    why = "The gravest first: text that is missing and can be had, then what looks wrong, then what is good to know."
    nothing = "Nothing: every file was read, and no figure is out of the ordinary."
    return look_first("worries", worries(figures), why, nothing)


def files_section(figures: Figures) -> str:
    """What became of every file and member."""
    rows: list[Row] = [
        [
            Cell(item.status, "left"),
            Cell(_code(item.code), "left"),
            Cell(f"{item.n:,}", share=item.n / figures.n_rows),
            share(item.n, figures.n_rows),
            size_of(item.size),
            path_cell(item.path, 60),
            reason_cell(_meaning(item)),
        ]
        for item in figures.outcomes
    ]
    total: Row = [Cell(f"{figures.n_rows:,}", share=1.0), "100 %", size_of(sum(item.size for item in figures.outcomes))]
    rows.append([Cell("all", "left"), Cell("", "left"), *total, Cell("", "left path"), Cell("", "wrap")])
    head = ["status", "reason", "files", "share", "size", "the first", "in words"]
    body = scrolled(table(head, rows, "By status and reason", last_is_sum=True), "Files by status and reason")
    if len(figures.sources) > 1:
        body += f"<h3>Sources</h3>{bars(figures.sources, _SHOWN_BARS, judged=False)}"
    why = "Every path that was walked has a row, and so has every member of an archive or a table. Nothing is left out."
    return section("files", "Every file", why, body)


def _code(code: str) -> str:
    return code.replace("_", " ") if code else "–"


def _meaning(item: Outcome) -> str:
    """The meaning of a code, or the first one's own reason where that says more."""
    reason = reason_of(item.code)
    if not item.code:
        return "Read." if item.status == "ok" else item.reason
    words = f"{reason.meaning[0].upper()}{reason.meaning[1:]}"
    # ids of documents say nothing to a person
    if reason.weight == "by design" or item.reason in ("", _code(item.code)):
        return f"{words}."
    return f"{words}{'. The first' if item.n > 1 else ''}: {item.reason}"


def kinds_section(figures: Figures) -> str:
    """What the documents are."""
    charts: list[tuple[str, Sequence[Tally], bool]] = [
        ("Kind", figures.kinds, True),
        (
            "Language of prose",
            [item._replace(name=_NO_LANGUAGE.get(item.name, item.name)) for item in figures.languages],
            True,
        ),
        ("Programming language", figures.programming_languages, True),
        ("Licence", figures.licences, True),
        ("Media type of files", figures.media_types, False),
    ]
    inside = "".join(
        f"<div><h3>{escape(name)}</h3>{bars(tallies, _SHOWN_BARS, judged)}</div>" for name, tallies, judged in charts
    )
    why = (
        "Distinct documents, each counted once however many paths it has; the pale part of a bar is what curation "
        "dropped, and the numbers say how many of how many are kept."
    )
    return section("kinds", "What they are", why, element("div", inside, class_="tallies"))


def measures_section(figures: Figures) -> str:
    """Histograms."""
    drawn = "".join(histogram(data) for data in figures.histograms if data.n)
    colours = legend({"": "kept", "contrary": "dropped by curation"})
    why = "Where most documents lie, and how far the tails reach. Rest on a bar for its numbers."
    body = colours + element("div", drawn, class_="plots") if drawn else element("p", "Nothing was measured yet.")
    return section("measures", "Measures", why, body)


def duplicates_section(figures: Figures) -> str:
    """Exact and near duplicates."""
    documents, clusters = figures.cluster_sizes
    body = element(
        "p",
        escape(
            f"The same bytes as another: {counted(figures.fate('duplicate'), 'file')}. Dropped for the same text: "
            f"{counted(figures.count('duplicate_text'), 'document')}; for nearly the same: "
            f"{figures.count('near_duplicate'):,}. Similar texts: {counted(figures.n_pairs, 'pair')}. In clusters of "
            f"two or more: {counted(documents, 'document')}, {counted(clusters, 'cluster')}."
        ),
    )
    if figures.clusters:
        rows: list[Row] = [
            [
                f"{item.size:,}",
                f"{item.texts:,}",
                f"{item.kept:,}",
                Cell(_paths(item.paths, item.size), "left path many", hint="\n".join(map(legible, item.paths))),
            ]
            for item in figures.clusters
        ]
        head = ["documents", "distinct texts", "kept", "paths"]
        body += scrolled(table(head, rows, "The largest clusters", "clusters"), "Clusters", tall=len(rows) > _TALL)
    if figures.pairs:
        listed: list[Row] = [_pair(pair) for pair in figures.pairs]
        made = table(["similarity", "one", "other"], listed, f"The most similar of {figures.n_pairs:,} pairs", "pairs")
        body += scrolled(made, "Pairs", tall=len(listed) > _TALL)
    why = (
        "Same bytes: one document with several paths. Same or nearly the same text: only the best of them is kept, and "
        "all stay on one side of the split. Similarity is the exact Jaccard similarity of their runs of five words."
    )
    return section("duplicates", "Duplicates", why, body)


def _paths(paths: Sequence[str], size: int) -> str:
    shown = "\n".join(cut_middle(legible(path), 80) for path in paths)
    return f"{shown}\n… {size - len(paths):,} more" if size > len(paths) else shown


def _pair(pair: Pair) -> Row:
    similarity = f"{pair.similarity:.3f}" if pair.similarity in (0.0, 1.0) or pair.similarity < 0.9995 else "> 0.999"
    return [similarity, path_cell(pair.path, 70), path_cell(pair.other, 70)]


def dropped_section(figures: Figures) -> str:
    """What curation left out: documents, stretches of text, personal data."""
    body = "<h3>Documents</h3>"
    if figures.dropped:
        rows: list[Row] = [
            [
                Cell(group_of(item.code), "left"),
                Cell(_code(item.code), "left"),
                Cell(f"{item.n:,}", share=item.n / figures.dropped[0].n),
                path_cell(item.path, 60),
                reason_cell(_meaning(item)),
            ]
            for item in figures.dropped
        ]
        body += scrolled(
            table(["because of", "reason", "documents", "the first", "in words"], rows, "", "dropped-table"), "Dropped"
        )
    else:
        body += element("p", "None was dropped.")
    body += "<h3>Stretches of text</h3>"
    if figures.cuts:
        rows = [
            [Cell(_CUT.get(item.code, _code(item.code)), "left"), *(f"{value:,}" for value in item[1:])]
            for item in figures.cuts
        ]
        body += scrolled(table(["cut out", "stretches", "documents", "characters"], rows, ""), "Cut out")
    else:
        body += element("p", "None was cut out.")
    body += "<h3>Personal data and secrets</h3>"
    if figures.private:
        rows = [
            [item.kind, f"{item.spans:,}", f"{item.documents:,}", Cell(_redaction(item.redacted), "left")]
            for item in figures.private
        ]
        body += scrolled(
            table(["kind", "found", "documents", "in the text"], rows, "In documents that are kept"), "PII"
        )
    else:
        body += element("p", "None was found in the documents that are kept.")
    policy = f" The policy is the preset {figures.preset}, with what was set besides." if figures.preset else ""
    why = f"What was read and is not used, with the reason.{policy} Another threshold measures nothing again."
    return section("dropped", "Dropped, cut and redacted", why, body)


def _redaction(redacted: bool) -> str:
    return "replaced by a stand-in" if redacted else "left as it is"


def split_section(figures: Figures) -> str:
    """Training and validation, and what they come to in tokens."""
    estimate = figures.estimate
    total = sum(side.size for side in figures.sides)
    rows: list[Row] = [
        [
            side.name,
            f"{side.documents:,}",
            f"{side.clusters:,}",
            size_of(side.size),
            share(side.size, total),
            _tokens(figures, estimate.tokens(side)),
        ]
        for side in figures.sides
    ]
    if rows:
        tokens = sum(estimate.tokens(side) for side in figures.sides)
        documents, clusters = (sum(getattr(side, name) for side in figures.sides) for name in ("documents", "clusters"))
        last = ["all", f"{documents:,}", f"{clusters:,}", size_of(total), "", _tokens(figures, tokens)]
        head = ["side", "documents", "clusters", "text", "share", "tokens"]
        made = table(head, [*rows, [*last]], "", "split-table", last_is_sum=True)
        body = scrolled(made, "Split") + element("p", escape(basis(figures)), class_="why")
    else:
        body = element("p", "No document is in use, so there is nothing to split.")
    why = "Near-duplicates stay together, and what stands on both sides in runs of thirteen words leaves one of them."
    return section("split", "Split and tokens", why, body)


def _tokens(figures: Figures, tokens: int) -> str:
    return f"{tokens:,}" if figures.estimate.basis == "counted" else f"≈ {float(f'{tokens:.3g}'):,.0f}"


def basis(figures: Figures) -> str:
    """How the number of tokens is known."""
    ratio = f"{figures.estimate.bytes_per_token:.2f} bytes a token"
    if figures.estimate.basis == "counted":
        return f"Tokens are counted with the corpus's tokeniser: {ratio}."
    if figures.estimate.basis == "measured":
        return f"Tokens are an estimate: {ratio}, as the corpus's tokeniser has it on the documents encoded so far."
    return (
        f"Tokens are a rough estimate by a rule of thumb, measured on nothing here: {ratio}, as large vocabularies "
        "have it on English. A small vocabulary, code or other scripts may need twice as many."
    )


def archives_section(figures: Figures) -> str:
    """Containers and how many of their members gave text."""
    why = "Archives and tables hold documents of their own; each of them has a row among the files."
    if not figures.archives:
        return section("archives", "Archives and tables", why, element("p", "There were none."))
    rows: list[Row] = [_archive(item) for item in figures.archives]
    caption = f"{figures.n_archives:,} in all, with {figures.n_members:,} members"
    if figures.n_archives > len(rows):
        caption += f"; the {LONGEST_LIST} with the most members"
    head = ["archive", "type", "members", "with text", "size of members"]
    return section("archives", "Archives and tables", why, scrolled(table(head, rows, caption), "Archives"))


def _archive(item: Archive) -> Row:
    part = item.documents / item.members
    return [
        path_cell(item.path, 80),
        Cell(item.media_type, "left"),
        f"{item.members:,}",
        Cell(f"{item.documents:,}", share=part),
        size_of(item.size),
    ]


def overview(figures: Figures) -> str:
    """The bar of all files."""
    if not figures.n_rows:
        return ""
    return fate_bar(figures.fates)


def doubtful_words(figures: Figures) -> str:
    """How much of what OCR read is in doubt."""
    judged = sum(sum(data.kept) for data in figures.histograms if data.name == "ocr-confidence")
    if not judged:
        return "No page was read by OCR."
    doubtful = f"{figures.doubtful_pages:,} of {judged:,} ({share(figures.doubtful_pages, judged)})"
    return f"{doubtful} pages that OCR read have a confidence below {share(DOUBTFUL, 1)}."

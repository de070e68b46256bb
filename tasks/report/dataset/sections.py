"""The sections of a dataset report, each from the figures alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tasks.report.dataset.figures import (
    Account,
    Check,
    DatasetFigures,
    Lengths,
    MixedGroup,
    Packed,
    Slice,
    TokenizerFacts,
)
from tasks.report.dataset.notes import notes
from tasks.report.inspect.labels import legible
from tasks.report.inspect.layout import fact_list, section
from tasks.report.inspect.svg import element, escape
from tasks.report.inspect.tables import Cell, scrolled, table
from tasks.report.old_charts import Layer, Part, Plot, histogram_figure, legend, whole_bar
from tasks.report.wording import amount, counted, cut, percent, share, size_of
from tasks.report.worries import look_first

Row = list[Cell | str | float]

_ROWS = 20  # of a table of slices
_GROUPS = 40  # of a mix
_NAME = 60
NO_LANGUAGE = {"und": "not determined", "zxx": "no language"}
_TALL = 18
PACKINGS = {
    "chunk": "every document by itself, in chunks; the last chunk of each is padded",
    "concat": "all documents as one stream that is cut; labels run from one document into the next",
    "pack": "documents put together so that hardly a place stays empty; each attends to itself alone",
}


def notes_section(figures: DatasetFigures) -> str:
    """What to look at."""
    why = "The gravest first: sums that do not come out, then what looks wrong, then what is good to know."
    nothing = "Nothing: all sums come out, and no figure is out of the ordinary."
    return look_first("notes", notes(figures), why, nothing)


def tokens_section(figures: DatasetFigures) -> str:
    """Where the tokens come from."""
    body = _slices("Side of the split", figures.splits, figures.total, summed=True)
    body += _slices("Kind", figures.kinds, figures.total)
    body += _slices("Source", figures.sources, figures.total, "path")
    languages = [item._replace(name=NO_LANGUAGE.get(item.name, item.name)) for item in figures.languages]
    body += _slices("Language of prose", languages, figures.total)
    body += _slices("Programming language", figures.programming_languages, figures.total)
    why = (
        "Every token of every document in use, the special ones at its ends among them. A document with several paths "
        "counts under the first. Text that takes few bytes a token is the costly one: the same words need more places."
    )
    return section("tokens", "Tokens", why, body)


def _slices(title: str, slices: Sequence[Slice], total: Slice, class_: str = "left name", summed: bool = False) -> str:
    if not slices:
        return ""
    listed = folded(slices, _ROWS)
    top = max(item.tokens for item in listed) or 1
    rows: list[Row] = [_slice(item, total, item.tokens / top, class_) for item in listed]
    if summed:
        rows.append(_slice(total, total, None, class_))
    head = [title.lower(), "tokens", "share", "held out", "documents", "text", "bytes a token", "lost"]
    made = table(head, rows, "", last_is_sum=summed)
    return f"<h3>{escape(title)}</h3>{scrolled(made, title)}"


def _slice(item: Slice, total: Slice, part: float | None, class_: str) -> Row:
    name = legible(item.name)
    shown = cut(name, _NAME)
    return [
        Cell(shown, class_, hint=name if shown != name else None),
        Cell(f"{item.tokens:,}", share=part),
        share(item.tokens, total.tokens),
        share(item.held_out, item.tokens),
        f"{item.documents:,}",
        size_of(item.n_bytes),
        ratio(item),
        share(item.lost_bytes, item.n_bytes) if item.lost_bytes else "–",
    ]


def folded(slices: Sequence[Slice], shown: int) -> list[Slice]:
    """At most so many slices and one of all others, so that they add up."""
    if len(slices) <= shown + 1:
        return list(slices)
    rest = slices[shown:]
    sums = (sum(column) for column in list(zip(*rest, strict=True))[1:])
    return [*slices[:shown], Slice(f"{len(rest)} others", *sums)]


def ratio(item: Slice) -> str:
    """Bytes a token, in words."""
    return "–" if item.bytes_per_token is None else f"{item.bytes_per_token:.2f}"


def lengths_section(figures: DatasetFigures) -> str:
    """How long documents are."""
    lengths, seq_len = figures.lengths, figures.packed.seq_len
    why = "How long they are, and how much text a token stands for. Rest on a bar for its numbers."
    if not lengths.tokens.edges:
        return section("lengths", "Documents", why, element("p", "There is no document."))
    words = (
        f"Half of the documents have at most {amount(lengths.tokens.median or 0)} tokens, the longest has "
        f"{lengths.longest:,}. "
        f"{counted(lengths.longer, 'document')} ({share(lengths.longer, figures.total.documents)}) "
        f"{'does' if lengths.longer == 1 else 'do'} not fit one sequence of {seq_len:,}."
    )
    colours = legend({"": "training", "contrary": "held out"})
    plots = element("div", "".join(map(histogram_figure, _plots(lengths))), class_="plots")
    return section("lengths", "Documents", why, element("p", escape(words)) + colours + plots)


def _plots(lengths: Lengths) -> Iterator[Plot]:
    for data, title, note in (
        (lengths.tokens, "Length of documents", "tokens, in powers of ten"),
        (lengths.bytes_per_token, "Bytes a token", "bytes a token, by document, the last bar for all above"),
    ):
        layers = [Layer("in training", "ink", data.train), Layer("held out", "held-out-ink", data.validation)]
        yield Plot(data.name, title, note, data.edges, layers, data.log, data.median)


def sequences_section(figures: DatasetFigures) -> str:
    """What became of every id on its way into sequences."""
    packed = figures.packed
    body = element("p", escape(packing_words(packed)))
    rows: list[Row] = []
    for name, values, bold in account_rows(packed.accounts):
        rows.append([Cell(name, "left"), *(f"{value:,}" for value in values)])
        if bold:
            rows[-1][0] = Cell(f"= {name}", "left")
    fills = [percent(account.fill) for account in packed.accounts]
    rows.append([Cell("fill", "left"), *fills])
    head = ["input places", *(account.split for account in packed.accounts)]
    body += scrolled(table(head, rows, "Account of every id", "account"), "Account of every id")
    body += _checks(figures)
    why = (
        "An input place holds an id that a model reads. Kept: every id once. Repeated: once more, where chunks "
        "overlap. Padded: nothing stands there and nothing is learned. Cut: ids that are in no sequence."
    )
    return section("sequences", "Sequences", why, body)


def packing_words(packed: Packed) -> str:
    """How documents became sequences."""
    words = f"Packing {packed.packing}: {PACKINGS.get(packed.packing, 'as the settings say')}. Sequences have "
    words += f"{packed.seq_len:,} input places"
    words += f", and a chunk begins every {packed.stride:,} ids" if packed.stride != packed.seq_len else ""
    return f"{words}{', and a last short one is dropped' if packed.drop_last else ''}."


def account_rows(accounts: Sequence[Account]) -> list[tuple[str, list[int], bool]]:
    """Lines of the account, with a value for each side; sums are marked."""
    columns = (
        ("ids of the documents", "ids", False), ("kept", "kept", False), ("repeated", "repeated", False),
        ("padded", "padded", False), ("places", "places", True), ("cut", "cut", False),
        ("labels to predict", "labels", False), ("sequences", "sequences", False),
        ("documents", "documents", False),
    )  # fmt: skip
    return [(words, [getattr(account, name) for account in accounts], bold) for words, name, bold in columns]


def _checks(figures: DatasetFigures) -> str:
    """All sums, side by side."""
    checks = figures.checks
    failed = sum(not check.holds for check in checks)
    rows: list[Row] = [
        [Cell(words, "left"), *(_sum(check) for check in checks if check.words == words)]
        for words in dict.fromkeys(check.words for check in checks)
    ]
    head = ["what must be equal", *(account.split for account in figures.packed.accounts)]
    verdict = f"{failed} of {len(checks)} sums do not come out" if failed else f"All {len(checks)} sums come out"
    return scrolled(table(head, rows, f"{verdict}.", "sums"), "Sums")


def _sum(check: Check) -> Cell:
    if check.holds:
        return Cell(f"{check.found[0]:,} ✓")
    return Cell(f"{check.found[0]:,} ≠ {check.found[1]:,}", "fails")


def mix_section(figures: DatasetFigures) -> str:
    """What an epoch reads how often."""
    packed = figures.packed
    why = "What one epoch reads: shares count in tokens, passes say how often a group's sequences are read."
    if not packed.mixed:
        words = "No mix was asked for (mix.by is empty): every training sequence is read once in each epoch."
        return section("mix", "Mix", why, element("p", words))
    top = max((group.share for group in packed.groups), default=0) or 1
    rows: list[Row] = [
        [
            Cell(cut(legible(group.name), _NAME), "path"),
            "–" if group.asked is None else percent(group.asked),
            Cell(percent(group.share), share=group.share / top),
            f"{group.passes:.2f}",
            f"{group.reads:,}",
            f"{group.sequences:,}",
            f"{group.tokens:,}",
            f"{group.documents:,}",
        ]
        for group in folded_groups(packed.groups)
    ]
    head = ["group", "asked", "realised", "passes", "sequences read", "sequences", "tokens", "documents"]
    made = table(head, rows, "", "mix-table")
    return section("mix", "Mix", why, scrolled(made, "Mix", tall=len(rows) > _TALL))


def folded_groups(groups: Sequence[MixedGroup]) -> list[MixedGroup]:
    """At most so many groups and one of all others: a mix by folder may have thousands."""
    if len(groups) <= _GROUPS + 1:
        return list(groups)
    rest = groups[_GROUPS:]
    asked = None if rest[0].asked is None else sum(group.asked or 0 for group in rest)
    documents, sequences, reads, tokens = (
        sum(getattr(group, name) for group in rest) for name in ("documents", "sequences", "reads", "tokens")
    )
    share_of_rest = sum(group.share for group in rest)
    others = MixedGroup(f"{len(rest)} others", documents, sequences, reads, tokens, asked, share_of_rest)
    return [*groups[:_GROUPS], others]


def tokeniser_section(figures: DatasetFigures) -> str:
    """What turns text into ids, and why it."""
    facts, used = figures.tokenizer, figures.vocabulary
    body = fact_list(
        {
            "Kind": facts.kind,
            "Ids": f"{facts.vocab_size:,}",
            "Bytes a token": ratio(figures.total),
            "Lost bytes": share(figures.total.lost_bytes, figures.total.n_bytes),
            "Unknown tokens": share(used.unknown, used.predicted),
        }
    )
    body += "".join(element("p", escape(words)) for words in tokeniser_words(facts))
    why = "Fitted on training documents only, or given; the same for every document of the corpus."
    return section("tokeniser", "Tokeniser", why, body)


def tokeniser_words(facts: TokenizerFacts) -> list[str]:
    """Why it was chosen, how documents begin and end, what encoded."""
    named = [f"{name} {index:,}" for index, name in facts.special.items() if name not in ("reserved", "special")]
    kinds = {name: sum(found == name for found in facts.special.values()) for name in ("reserved", "special")}
    others = [f"{n:,} {'others' if name == 'special' else name}" for name, n in kinds.items() if n]
    ends = {(True, True): "begins and ends with a special id", (True, False): "begins with a special id",
            (False, True): "ends with a special id", (False, False): "has no special id at its ends"}  # fmt: skip
    words = [f"Why this one: {legible(facts.why)}."] if facts.why else []
    words.append(f"Special ids: {', '.join([*named, *others]) or 'none'}. Every document {ends[facts.bos, facts.eos]}.")
    if facts.trainer:
        reason = f": {legible(facts.trainer.reason)}" if facts.trainer.reason else ""
        words.append(f"Fitted by {legible(facts.trainer.name)}{reason}.")
    words += [
        f"Encoded by {legible(engine.name)} ({counted(engine.segments, 'segment')})"
        f"{f': {legible(engine.reason)}' if engine.reason else ''}."
        for engine in facts.engines
    ]
    return words


def overview(figures: DatasetFigures) -> str:
    """The training side as one bar."""
    account = next((item for item in figures.packed.accounts if item.split == "train"), None)
    if account is None or not account.places + account.cut:
        return ""
    parts = [
        Part("kept", "training tokens that are read", account.kept),
        Part("repeated", "read once more, where chunks overlap", account.repeated),
        Part("padded", "places without a token", account.padded),
        Part("cut", "tokens in no sequence", account.cut),
    ]
    return whole_bar([part for part in parts if part.n], "What became of the training tokens; the list says it")

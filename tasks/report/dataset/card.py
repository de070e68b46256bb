"""The data card: what a dataset is made of, what was left out of it and why, and how it can be made again.

Plain Markdown, for whoever gets the model and not the documents. It says what was counted and nothing else, and holds
no time: the same sources with the same settings give the same card.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from tasks.report.corpus.figures import Figures, Outcome
from tasks.report.corpus.reasons import reason_of
from tasks.report.dataset.figures import DatasetFigures, Slice
from tasks.report.dataset.limits import limits
from tasks.report.dataset.provenance import Made
from tasks.report.dataset.sections import (
    NO_LANGUAGE,
    account_rows,
    folded,
    folded_groups,
    packing_words,
    ratio,
    tokeniser_words,
)
from tasks.report.markdown import plain, table
from tasks.report.wording import counted, percent, share, size_of

_ROWS = 30  # of a table


def data_card(figures: DatasetFigures, files: Figures, made: Sequence[Made], corpus: str) -> str:
    """The card.

    Args:
        figures: of the dataset.
        files: what became of the corpus's files.
        made: from what it was made.
        corpus: its name.
    """
    settings = {item.stage: item.settings for item in made}
    parts = [
        [f"# Data card: {plain(corpus)}", "", _lead(figures, files)],
        ["## At a glance", "", *_glance(figures)],
        ["## Sources", "", *_slices("source", figures.sources, figures.total)],
        ["## Licences", "", *_slices("licence", figures.licences, figures.total), "", _LICENCES],
        ["## Kinds and languages", "", *_kinds(figures)],
        ["## From files to documents", "", *_filters(files)],
        ["## Duplicates", "", *_duplicates(files, settings)],
        ["## Split", "", *_split(figures, files, settings)],
        ["## Evaluation sets", "", *_decontamination(files, settings)],
        ["## Personal data and secrets", "", *_private(figures, files)],
        ["## Tokeniser", "", *_tokeniser(figures)],
        ["## Sequences", "", *_sequences(figures)],
        ["## Known limits", "", *(f"- {plain(words, 600)}" for words in limits(figures, files))],
        ["## How to make it again", "", *_again(made)],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


_LICENCES = (
    "A licence is what the file itself, its package or a licence file in a folder above it declares; `unknown` means "
    "that none was found, not that there is none."
)


def _lead(figures: DatasetFigures, files: Figures) -> str:
    total = figures.total
    return (
        f"{counted(total.documents, 'document')} from {counted(files.n_rows, 'file')}: {size_of(total.n_bytes)} of "
        f"text, {counted(total.tokens, 'token')}. All figures are counted from the tables of the run that made it."
    )


def _glance(figures: DatasetFigures) -> list[str]:
    sides = [*figures.splits, figures.total]
    rows = [
        ["documents", *(f"{item.documents:,}" for item in sides)],
        ["bytes of text", *(f"{item.n_bytes:,}" for item in sides)],
        ["tokens", *(f"{item.tokens:,}" for item in sides)],
        ["bytes a token", *(ratio(item) for item in sides)],
        ["bytes lost to the unknown token", *(f"{item.lost_bytes:,}" for item in sides)],
    ]
    return table(["", *(item.name for item in sides)], rows)


def _slices(name: str, slices: Sequence[Slice], total: Slice) -> list[str]:
    rows = [
        [plain(item.name), f"{item.documents:,}", f"{item.n_bytes:,}", f"{item.tokens:,}",
         share(item.tokens, total.tokens), ratio(item)]
        for item in folded(slices, _ROWS)
    ]  # fmt: skip
    return table([name, "documents", "bytes", "tokens", "share of tokens", "bytes a token"], rows)


def _kinds(figures: DatasetFigures) -> list[str]:
    lines = _slices("kind", figures.kinds, figures.total)
    languages = [item._replace(name=NO_LANGUAGE.get(item.name, item.name)) for item in figures.languages]
    for name, slices in (("language of prose", languages), ("programming language", figures.programming_languages)):
        if slices:
            lines += ["", *_slices(name, slices, figures.total)]
    return lines


def _filters(files: Figures) -> list[str]:
    """Everything that was seen and is not in the dataset, by the code of its reason."""
    lines = [
        f"- files and members of archives seen: {files.n_rows:,} ({files.n_members:,} of them members)",
        f"- distinct documents that gave text: {files.n_documents:,}",
        f"- documents in use: {files.kept:,}",
        "",
    ]
    rows = [_outcome("file", item) for item in files.outcomes if item.status != "ok"]
    rows += [_outcome("file, read in part", item) for item in files.outcomes if item.status == "ok" and item.code]
    rows += [_outcome("document", item) for item in files.dropped]
    if not rows:
        return [*lines, "Nothing was left out."]
    lines += ["What was left out, by reason (`quarantine` lists each of them):", ""]
    lines += [
        "| what | reason | number | in words |",
        "|---|---|---:|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    if files.cuts:
        lines += ["", "Stretches of text that were cut out of documents in use:", ""]
        lines += table(
            ["reason", "stretches", "documents", "characters"],
            [[plain(cut.code), f"{cut.spans:,}", f"{cut.documents:,}", f"{cut.chars:,}"] for cut in files.cuts],
        )
    preset = f"The policy of quality is the preset `{files.preset}`, with what is set besides." if files.preset else ""
    return [*lines, "", preset] if preset else lines


def _outcome(what: str, item: Outcome) -> list[str]:
    code = item.code or item.status
    return [
        f"{what}, {item.status}" if what == "file" else what,
        f"`{code}`",
        f"{item.n:,}",
        plain(reason_of(code).meaning),
    ]


def _duplicates(files: Figures, settings: dict[str, dict[str, object]]) -> list[str]:
    documents, clusters = files.cluster_sizes
    threshold = settings.get("dedup", {}).get("threshold", "unknown")
    return [
        f"- files with the bytes of another: {files.fate('duplicate'):,}; they count as one document",
        f"- documents dropped for the same text: {files.count('duplicate_text'):,}",
        f"- documents dropped for nearly the same text: {files.count('near_duplicate'):,} (Jaccard similarity of their "
        f"runs of five words at least {threshold})",
        f"- pairs of nearly equal documents: {files.n_pairs:,}",
        f"- documents in clusters of two or more: {documents:,}, in {counted(clusters, 'cluster')}",
    ]


def _split(figures: DatasetFigures, files: Figures, settings: dict[str, dict[str, object]]) -> list[str]:
    chosen = _curation(settings)
    rule = (
        "A document is held out if every member of its cluster of near-duplicates hashes, with the salt "
        f"`{chosen.get('salt', '')}`, to a value below {chosen.get('validation_share', 'unknown')}. So "
        "clusters are never divided, and new documents move none into the held-out side."
    )
    leaks = (
        "Held-out documents that stand in training text in runs of thirteen words, to a share above "
        f"{chosen.get('max_containment', 'unknown')}, leave it ({files.count('contained_in_training'):,} did); so do "
        f"training documents that stand in held-out text ({files.count('contained_in_validation'):,} did)."
    )
    rows = [
        [side.name, f"{side.documents:,}", f"{side.clusters:,}", f"{figures.split(side.name).tokens:,}"]
        for side in files.sides
    ]
    return [rule, "", leaks, "", *table(["side", "documents", "clusters", "tokens"], rows)]


def _curation(settings: dict[str, dict[str, object]]) -> dict[str, object]:
    found = settings.get("curate", {}).get("curate", {})
    return found if isinstance(found, dict) else {}


def _decontamination(files: Figures, settings: dict[str, dict[str, object]]) -> list[str]:
    listed = settings.get("evaluation_sets", {}).get("files") or []
    if not listed:
        return ["No external evaluation set was named (`curate.evaluation_sets`), so no text of one was looked for."]
    n = len(listed) if isinstance(listed, list) else str(listed).split()[0]
    cut = sum(item.documents for item in files.cuts if item.code == "evaluation_set")
    return [
        f"- files of external evaluation sets that were looked for: {n}",
        f"- documents dropped because most of their text is of such a set: {files.count('evaluation_set'):,}",
        f"- documents of which such text was cut out: {cut:,}",
    ]


def _private(figures: DatasetFigures, files: Figures) -> list[str]:
    if not files.private:
        return ["None was found by pattern in the documents in use. Names and addresses are not looked for."]
    spans, documents = figures.redactions
    rows = [
        [plain(item.kind), f"{item.spans:,}", f"{item.documents:,}", "replaced" if item.redacted else "left"]
        for item in files.private
    ]
    found = table(["kind", "found", "documents", "in the text"], rows)
    done = f"{counted(spans, 'span')} of {counted(documents, 'document')} were replaced by stand-ins."
    return [*found, "", f"{done} All is found by pattern; names and addresses are not looked for."]


def _tokeniser(figures: DatasetFigures) -> list[str]:
    facts, used = figures.tokenizer, figures.vocabulary
    return [
        f"- kind {plain(facts.kind)}, {counted(facts.vocab_size, 'id')}, fingerprint `{facts.fingerprint}`",
        *(f"- {plain(words, 600)}" for words in tokeniser_words(facts)),
        f"- {used.n_unused:,} of the {used.spelled:,} ids that stand for text never occur in training text",
    ]


def _sequences(figures: DatasetFigures) -> list[str]:
    packed = figures.packed
    rows = [[name, *(f"{value:,}" for value in values)] for name, values, _ in account_rows(packed.accounts)]
    rows.append(["fill", *(percent(account.fill) for account in packed.accounts)])
    failed = [check for check in figures.checks if not check.holds]
    lines = [
        packing_words(packed),
        "",
        *table(["input places", *(account.split for account in packed.accounts)], rows),
        "",
        f"{len(failed)} of {len(figures.checks)} sums do not come out: " + "; ".join(check.words for check in failed)
        if failed
        else f"All {len(figures.checks)} sums come out: places = kept + repeated + padded, ids = kept + cut, and the "
        "same in the tables of tokens and sequences.",
    ]
    if not packed.mixed:
        return [*lines, "", "Every training sequence is read once in each epoch."]
    mixed = [
        [
            plain(group.name), "–" if group.asked is None else percent(group.asked), percent(group.share),
            f"{group.passes:.2f}", f"{group.reads:,}", f"{group.tokens:,}",
        ]
        for group in folded_groups(packed.groups)
    ]  # fmt: skip
    head = ["group", "share asked", "share realised", "passes an epoch", "sequences read", "tokens"]
    return [*lines, "", "What an epoch reads:", "", *table(head, mixed)]


def _again(made: Sequence[Made]) -> list[str]:
    """Keys, digests, tools and settings of all stages."""
    lines = [
        "The same files, settings and stage versions give the same digests. A stage that works by segments has several "
        "artefacts; its key and digest are then those of all of them together.",
        "",
        "| stage | version | artefacts | key | digest | tools |",
        "|---|---|---:|---|---|---|",
    ]
    for item in made:
        versions = ", ".join(map(str, item.versions))
        tools = ", ".join(f"{plain(name)} {plain(version)}" for name, version in item.tools.items()) or "–"
        lines.append(f"| {item.stage} | {versions} | {item.artefacts:,} | `{item.key}` | `{item.digest}` | {tools} |")
    return [*lines, "", "```json", *_settings(made), "```"]


def _settings(made: Sequence[Made]) -> Iterator[str]:
    """Settings of all stages, as JSON: no line of it can end the block it stands in."""
    tree = {item.stage: item.settings for item in made if item.settings}
    yield from json.dumps(tree, indent=2, sort_keys=True, ensure_ascii=True).split("\n")

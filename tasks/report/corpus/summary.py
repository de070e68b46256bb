"""What became of a corpus in a few lines of Markdown, for the run's own page."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.report.corpus.figures import FATES, Figures, Outcome, Tally
from tasks.report.corpus.worries import worries
from tasks.report.markdown import plain
from tasks.report.wording import amount, counted, share, size_of

_ROWS = 6  # of a list


def corpus_summary(figures: Figures) -> str:
    """Counts by status and reason, kinds, languages, duplicates, split and tokens: at most 40 lines of Markdown."""
    lines = ["| files | | share | size |", "|---:|---|---:|---:|"]
    lines += [
        f"| {fate.n:,} | {FATES.get(fate.name, fate.name)} | {share(fate.n, figures.n_rows)} | {size_of(fate.size)} |"
        for fate in figures.fates
    ]
    lines += ["", *_reasons("Not read", [item for item in figures.outcomes if item.status not in ("ok", "duplicate")])]
    lines += _reasons("Dropped", figures.dropped)
    lines += _tallies("Kinds", figures.kinds) + _tallies("Languages of prose", figures.languages)
    lines.append(_duplicates(figures))
    lines += _split(figures)
    found = [worry for worry in worries(figures) if worry.level != "note"][:_ROWS]
    if found:
        lines += ["", "Look at first:", ""] + [f"- {plain(f'{worry.title}. {worry.remedy}')}" for worry in found]
    return "\n".join(lines) + "\n"


def _reasons(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    return _listed(name, [(item.code.replace("_", " "), item.n) for item in outcomes])


def _tallies(name: str, tallies: Sequence[Tally]) -> list[str]:
    return _listed(name, [(tally.name, tally.n) for tally in tallies])


def _listed(name: str, counts: Sequence[tuple[str, int]]) -> list[str]:
    """One line of counts; nothing where there are none."""
    if not counts:
        return []
    words = ", ".join(f"{plain(what)} {n:,}" for what, n in counts[:_ROWS])
    rest = sum(n for _, n in counts[_ROWS:])
    return [f"- {name}: {words}{f', {len(counts) - _ROWS} others {rest:,}' if rest else ''}"]


def _duplicates(figures: Figures) -> str:
    documents, clusters = figures.cluster_sizes
    return (
        f"- Duplicates: {counted(figures.fate('duplicate'), 'file')} with the bytes of another, "
        f"{counted(figures.n_pairs, 'pair')} of similar texts, {counted(documents, 'document')} in "
        f"{counted(clusters, 'cluster')} of two or more"
    )


def _split(figures: Figures) -> list[str]:
    how = {"counted": "", "measured": " (estimated)", "rule": " (by a rule of thumb)"}[figures.estimate.basis]
    return [
        f"- {side.name.capitalize()}: {counted(side.documents, 'document')}, {size_of(side.size)}, "
        f"{amount(figures.estimate.tokens(side))} tokens{how}"
        for side in figures.sides
    ]

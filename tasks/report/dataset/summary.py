"""A dataset in a few lines of Markdown, for the run's own page."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.report.dataset.figures import DatasetFigures, Slice
from tasks.report.dataset.notes import notes
from tasks.report.dataset.sections import ratio
from tasks.report.markdown import plain, table
from tasks.report.wording import counted, percent, share, size_of

_ROWS = 6  # of a list


def dataset_summary(figures: DatasetFigures) -> str:
    """Tokens by split, kind and language, sequences, tokeniser: at most 40 lines of Markdown."""
    packed, facts, used = figures.packed, figures.tokenizer, figures.vocabulary
    rows = [
        [item.name, f"{item.tokens:,}", f"{item.documents:,}", size_of(item.n_bytes), ratio(item)]
        for item in (*figures.splits, figures.total)
    ]
    lines = [*table(["", "tokens", "documents", "text", "bytes a token"], rows), ""]
    lines += _listed("Kinds", figures.kinds) + _listed("Languages of prose", figures.languages)
    lines += _listed("Sources", figures.sources)
    lines.append(
        f"- Tokeniser: {plain(facts.kind)} of {counted(facts.vocab_size, 'id')}, {used.n_unused:,} never used; "
        f"{share(figures.total.lost_bytes, figures.total.n_bytes)} of the text lost"
    )
    for account in packed.accounts:
        lines.append(
            f"- {account.split.capitalize()}: {counted(account.sequences, 'sequence')} of {packed.seq_len:,} "
            f"({packed.packing}), {account.kept:,} kept, {account.repeated:,} repeated, {account.padded:,} padded, "
            f"{account.cut:,} cut; fill {percent(account.fill)}"
        )
    if packed.mixed:
        shares = ", ".join(
            f"{plain(group.name)} {percent(group.share)} ({group.passes:.2f} passes)" for group in packed.groups[:_ROWS]
        )
        lines.append(f"- Mix: {shares}")
    found = notes(figures)[:_ROWS]
    if found:
        lines += ["", "Look at first:", "", *(f"- {plain(f'{note.title}. {note.remedy}'.strip())}" for note in found)]
    return "\n".join(lines) + "\n"


def _listed(name: str, slices: Sequence[Slice]) -> list[str]:
    """One line of token counts; nothing where there are none."""
    if not slices:
        return []
    words = ", ".join(f"{plain(item.name)} {item.tokens:,}" for item in slices[:_ROWS])
    rest = sum(item.tokens for item in slices[_ROWS:])
    return [f"- {name}: {words}{f', {len(slices) - _ROWS} others {rest:,}' if rest else ''}"]

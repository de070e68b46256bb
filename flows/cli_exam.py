"""How `sheepfold evaluate --tasks` shows what a model answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.cli_common import print_json

TYPES = {"multiple_choice": "multiple choice", "exact_match": "exact match"}


def checked_questions(path: str) -> str:
    """The absolute path of a file of questions, refused before anything starts if it is broken."""
    from tasks.exams.questions import read_questions

    found = Path(path).expanduser().resolve()
    read_questions(found)
    return str(found)


def show_exam(result: dict[str, Any], as_json: bool) -> None:
    """Print the result of the flow `exam`."""
    if as_json:
        print_json(result)
        return
    print(exam_table(result["metrics"]))
    print(f"\nanswers: {result['answers']}")


def exam_table(metrics: dict[str, float]) -> str:
    """Markdown table of accuracies beside what guessing reaches; the intervals hold 95 % of resamples."""
    lines = ["| questions | | right | interval | by bytes | interval | guessing |", "|---|---|---|---|---|---|---|"]
    for kind, title in TYPES.items():
        own = {name.rpartition("/")[2]: value for name, value in metrics.items() if f"/{kind}/" in name}
        if own:
            cells = [title, f"{own['questions']:.0f}", *_share(own, "accuracy"), *_share(own, "accuracy_by_bytes")]
            lines.append(f"| {' | '.join(cells)} | {own['chance']:.1%} |")
    return "\n".join(lines)


def _share(figures: dict[str, float], name: str) -> tuple[str, str]:
    if name not in figures:
        return "", ""
    return f"{figures[name]:.1%}", f"{figures[f'{name}_low']:.1%} to {figures[f'{name}_high']:.1%}"

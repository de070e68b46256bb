"""What `sheepfold why` shows of the spans that a text shares with training documents."""

from __future__ import annotations

from typing import Any


def print_echoes(found: dict[str, Any]) -> None:
    """Print the spans, the longest first, each with the documents that it stands in.

    Args:
        found: as `flows.tracing.trace_text` gives it.
    """
    if not found["spans"]:
        print("no span of this text stands in the training text")
        return
    print(f"{found['covered']:.0%} of {found['characters']:,} characters stand in the training text:")
    for span in found["spans"]:
        print(f"\n{span['words']} words, at character {span['start']}, in {_counted(span['documents'], 'document')}:")
        print(f"  {_line(span['text'])}")
        for place in span["found_in"]:
            known = ", ".join(filter(None, [place["kind"], place["licence"] and f"licence {place['licence']}"]))
            print(f"    {place['path'] or place['doc_id']}{f' ({known})' if known else ''}, ", end="")
            print(f"characters {place['doc_start']:,} to {place['doc_start'] + place['doc_length']:,}:")
            print(f"      ...{_line(place['before'])} [{_line(place['passage'])}] {_line(place['after'])}...")
    if found["more_spans"]:
        print(f"\nand {_counted(found['more_spans'], 'shorter span')}")


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _line(text: str) -> str:
    """A text on one line."""
    return " ".join(text.split())

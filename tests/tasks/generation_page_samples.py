"""The figures of a generation with something in every section of its page, hostile text included."""

from __future__ import annotations

from collections import Counter

from tasks.report.completions import Piece
from tasks.report.queries import Row

HOSTILE = "<img src=x onerror=hit=1> \u202e drawkcab \0 " + "unbroken" * 40


def shown(*values: object) -> Row:
    """A completion."""
    names = ("id", "sample", "prompt", "cut", "pieces", "finish_reason", "n_tokens", "fields")
    return Row(**dict(zip(names, values, strict=True)))


def rich() -> Row:
    """Four completions, two errors."""
    words = [
        "",
        "the",
        "shepherd",
        "counts",
        "his",
        "sheep",
        "at",
        "dusk",
        "and",
        "closes",
        "the",
        "fold",
        "before",
        "the",
        "rain",
        "comes",
        "over",
        "the",
        "hill",
    ]
    sure = [
        -0.05,
        -0.9,
        -0.4,
        -2.1,
        -0.3,
        -3.5,
        -5.2,
        -0.1,
        -1.2,
        -0.02,
        -0.7,
        -4.8,
        -0.2,
        -1.9,
        -0.01,
        -6.3,
        -2.6,
        -0.5,
    ]
    pieces = tuple(
        Piece(f" {word}", sure[place % len(sure)], ((f" {word}", -0.3), (" wolf", -2.0), (HOSTILE[:25], -4.0)))
        for place, word in enumerate(words[1:])
    )
    listed = [
        shown("p0", 0, "Every evening", 0, pieces, "length", len(pieces), '{"kind": "verse", "year": 1904}'),
        shown("p0", 1, "Every evening", 0, (*pieces[:6], Piece(".\n\nThe", -2.0), *pieces[6:]), "stop", 19, None),
        shown(HOSTILE[:60], 0, HOSTILE, 10_484_000, (Piece(HOSTILE, -40.0),), "exhausted", 12, HOSTILE),
        shown("empty", 0, "", 0, (), "stop", 0, None),
    ]
    lengths = [len(pieces), 19, 12, 0, *range(1, 64), *[64] * 40]
    return Row(
        prompts=105,
        endings=Counter({"length": 60, "stop": 43, "exhausted": 1, "context": 3}),
        tokens=sum(lengths),
        logprob=-1.7 * sum(lengths),
        n_errors=2,
        errors=[("latin", "the prompt is not UTF-8: byte 0xe9 behind 3 characters"), (HOSTILE, HOSTILE)],
        shown=listed,
        settings={"temperature": 0.8, "stop": ["\n\n", HOSTILE], "seed": 0, "n_samples": 2},
        key="",
        model="94ea45a49d99605ecafe551730a2a60fa961341200d7b6b2f25c7e6c66633c79",
    )

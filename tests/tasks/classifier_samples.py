"""Texts for the tests of the classifier: pages of manuals, web boilerplate and gibberish, and a stage for them."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Sequence
from pathlib import Path

from storage.digest import sha256_json
from storage.schemas import DOCUMENTS_FILE, NORMALISED
from storage.tables import union_digest, write_table
from tasks.core.stage import Work, stage

PARTS = ["pump", "valve", "filter", "housing", "gear", "shaft", "seal", "lever", "spindle", "bearing", "gauge", "belt"]
DEEDS = ["remove", "clean", "tighten", "inspect", "replace", "align", "loosen", "grease", "measure", "mount", "drain"]
WAYS = ["carefully", "by hand", "with a spanner", "once a month", "before starting", "while it is cold", "as shown"]
SHOUTS = [
    "click",
    "subscribe",
    "cookies",
    "sign up",
    "free",
    "offer",
    "newsletter",
    "accept all",
    "share this",
    "login",
]


def manual(seed: int) -> str:
    """A page of instructions."""
    draw = random.Random(f"manual {seed}")
    return " ".join(
        f"{draw.choice(DEEDS).capitalize()} the {draw.choice(PARTS)} and the {draw.choice(PARTS)} {draw.choice(WAYS)}."
        for _ in range(draw.randint(15, 60))
    )


def rubbish(seed: int) -> str:
    """Boilerplate of a web page, or letters drawn at random."""
    draw = random.Random(f"rubbish {seed}")
    if seed % 2:
        letters = (draw.choices(string.ascii_lowercase, k=draw.randint(2, 9)) for _ in range(150))
        return " ".join(map("".join, letters))
    return "\n".join(f"{draw.choice(SHOUTS)} and {draw.choice(SHOUTS)} {draw.randint(1, 99)}" for _ in range(60))


def manuals(count: int, start: int = 0) -> list[str]:
    return [manual(seed) for seed in range(start, start + count)]


def rubbishes(count: int, start: int = 0) -> list[str]:
    return [rubbish(seed) for seed in range(start, start + count)]


def write_lines(path: Path, texts: Sequence[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def write_files(folder: Path, texts: Sequence[str]) -> Path:
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_text(text)
    return folder


@stage("held", version=1)
def held(work: Work, settings: list[str]) -> str:
    """Documents as the score stage reads them."""
    rows = [
        {
            **dict.fromkeys(NORMALISED.names),
            "doc_id": f"doc{number}",
            "kind": "text",
            "text": text,
            "text_sha256": sha256_json(text),
            "n_bytes": len(text.encode()),
            "n_pages": 1,
            "ocr_share": 0.0,
            "digest": sha256_json(text),
        }
        for number, text in enumerate(settings)
    ]
    table = work.out / DOCUMENTS_FILE
    write_table(table, NORMALISED, rows)
    return union_digest([table])

"""The drawings of docs/images that follow from the code alone, or explain it.

python -m docs.drawings      (part of `make reference`) writes them
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.forecast import trainings
from docs.drawing import GREY, INK, Point, arrow, box, document, text
from docs.stage_graph import stage_graph
from tasks.training.law import expected_ratio

IMAGES = Path(__file__).with_name("images")
MEASURED = Path(__file__).parents[1] / "benchmarks" / "recipe.csv"
COLOURS = ("#4c78a8", "#e08214", "#3a923a", "#b5403a")  # of sizes of networks, and of models


def drawings() -> dict[str, str]:
    """Return each drawing as an SVG document, by the name of its file without the suffix."""
    return {
        "stages": stage_graph(),
        "how-artefacts": artefacts(),
        "how-keys": keys(),
        "how-kill-anywhere": kill_anywhere(),
        "how-good": how_good(),
        "minutes-and-megabytes": minutes_and_megabytes(),
    }


def artefacts() -> str:
    """Return the picture of artefacts, their inputs and the refs that lead to them."""
    parts = []
    columns = {"extract": 20, "normalise": 240, "curate": 460, "tokenizer": 680}
    files = {
        "extract": ["pages.parquet", "extracts.parquet", "manifest.json"],
        "normalise": ["documents.parquet", "manifest.json"],
        "curate": ["selection.parquet", "dropped.parquet", "cuts.parquet", "manifest.json"],
        "tokenizer": ["tokenizer.json", "choice.json", "manifest.json"],
    }
    shown = {"extract": "08dbb15d…", "normalise": "f8dcda7c…", "curate": "85a0ffe3…", "tokenizer": "b25c6718…"}
    for stage, left in columns.items():
        parts.append(box(left, 40, 200, 152, [], "blue" if stage in ("extract", "normalise") else "green"))
        parts.append(text(left + 12, 62, f"{stage}/{shown[stage]}/", "mono", "start"))
        for place, name in enumerate(files[stage]):
            fill = "yellow" if name == "manifest.json" else "white"
            parts.append(box(left + 12, 74 + 28 * place, 176, 23, [name], fill, first="mono"))
    parts.append(text(20, 26, "STORE: a folder per artefact, written once", "name", "start"))
    # inputs: from a manifest to the artefact that it was made from
    parts += _inputs([(340, 192, 120, 192, "inputs"), (560, 192, 380, 192, "inputs"), (780, 192, 600, 192, "inputs")])
    parts.append(
        text(20, 262, "Lineage: each manifest names the artefacts that its own was made from", "small", "start")
    )
    parts.append(box(460, 290, 200, 58, ["ref corpus/default", "the last completed run"], "violet"))
    parts.append(box(680, 290, 200, 58, ["ref tokenizer/default", "pinned artefact"], "violet"))
    parts.append(box(20, 290, 200, 58, ["sheepfold sql", "views over the tables"], "grey"))
    parts.append(box(240, 290, 200, 58, ["sheepfold why", "follows the manifests"], "grey"))
    parts.append(arrow([(490, 290), (490, 196)]))
    parts.append(arrow([(640, 290), (640, 272), (720, 272), (720, 196)]))
    parts.append(arrow([(850, 290), (850, 196)]))
    parts.append(text(20, 374, "Refs move; artefacts do not change.", "small", "start"))
    return document("Artefacts in the store, with their manifests, inputs and refs", 900, 390, parts)


def _inputs(ends: list[tuple[float, float, float, float, str]]) -> list[str]:
    drawn = []
    for x, y, to_x, to_y, label in ends:
        way: list[Point] = [(x, y), (x, y + 38), (to_x, y + 38), (to_x, to_y + 4)]
        drawn.append(arrow(way, label))
    return drawn


def keys() -> str:
    """Return the picture of what is hashed to a key, and of a run after a file was added."""
    parts = [text(20, 28, "What is hashed to the key of an artefact", "name", "start")]
    inside = [
        ("stage and version", "normalise, 2"),
        ("digests of the inputs", "segment: ca2c593d…"),
        ("settings that it reads", "repair_mojibake: true, …"),
    ]
    for place, (name, example) in enumerate(inside):
        top = 44 + 56 * place
        parts.append(box(20, top, 220, 46, [name, example], "green"))
        parts.append(arrow([(240, top + 23), (270, top + 23), (270, 123), (316, 123)]))
    parts.append(box(320, 100, 90, 46, ["sha256"], "grey"))
    parts.append(arrow([(410, 123), (446, 123)]))
    parts.append(box(450, 100, 150, 46, ["key", "f8dcda7c…"], "yellow"))
    parts.append(arrow([(600, 123), (636, 123)]))
    parts.append(
        box(640, 100, 240, 46, ["STORE/normalise/f8dcda7c…/", "found: cached; absent: made"], "blue", first="mono")
    )
    parts.append(
        box(
            450,
            40,
            430,
            40,
            ["Not in the key, but in the manifest:", "code, tools, device, times"],
            dashed=True,
            first="small",
        )
    )
    parts.append(
        box(
            450,
            166,
            430,
            40,
            ["Not in the key, nor in the manifest:", "paths, number of workers"],
            dashed=True,
            first="small",
        )
    )

    top = 262
    parts.append(text(20, top - 18, "Growth: one file is added to 129", "name", "start"))
    rows = {
        "extract": ("08dbb15d…", "a45b6068…"),
        "normalise": ("f8dcda7c…", "b10a54c4…"),
        "measure": ("61e1802b…", "0c2ee7e8…"),
    }
    for place, (stage, (old, new)) in enumerate(rows.items()):
        left = 110 + 158 * place
        parts.append(text(left + 68, top, stage, "mono"))
        parts.append(box(left, top + 10, 136, 42, ["segment of 129", old], "grey"))
        parts.append(box(left, top + 66, 136, 42, ["segment of 1", new], "yellow"))
        if place:
            parts.append(arrow([(left - 22, top + 31), (left - 2, top + 31)]))
            parts.append(arrow([(left - 22, top + 87), (left - 2, top + 87)]))
    parts.append(text(20, top + 36, "cached", "small", "start"))
    parts.append(text(20, top + 92, "made", "small", "start"))
    for place, (stage, key) in enumerate({"dedup": "4e7b7580…", "curate": "9f3cb750…"}.items()):
        left = 606 + 144 * place
        parts.append(text(left + 65, top, stage, "mono"))
        parts.append(box(left, top + 38, 130, 42, ["whole corpus", key], "yellow"))
    parts.append(arrow([(562, top + 31), (584, top + 31), (584, top + 55), (604, top + 55)]))
    parts.append(arrow([(562, top + 87), (584, top + 87), (584, top + 65), (604, top + 65)]))
    parts.append(arrow([(736, top + 59), (748, top + 59)]))
    return document("What is in a key, and what is computed when one file is added", 900, top + 126, parts)


def kill_anywhere() -> str:
    """Return the picture of a commit, and of what a kill leaves at each step."""
    parts = [text(20, 28, "The life of an artefact", "name", "start")]
    steps = [
        ("lock", "flock on", ".locks/S-K.lock", "grey"),
        ("work", "files in", ".work/S/K/out", "blue"),
        ("manifest", "out/manifest.json", "lists size, sha256", "yellow"),
        ("fsync", "every file", "and folder", "blue"),
        ("rename", ".work/S/K/out", "to S/K", "green"),
        ("unlock", "work folder", "is removed", "grey"),
    ]
    after = [
        "freed by the system",
        "scratch is kept",
        "out is made again",
        "out is made again",
        "complete",
        "removed next time",
    ]
    for place, ((name, first, second, fill), left_over) in enumerate(zip(steps, after, strict=True)):
        left = 20 + 146 * place
        parts.append(box(left, 44, 130, 66, [name, first, second], fill))
        if place < len(steps) - 1:
            parts.append(arrow([(left + 130, 77), (left + 144, 77)]))
        parts.append(arrow([(left + 65, 110), (left + 65, 150)], dashed=True))
        parts.append(box(left, 152, 130, 36, [left_over], dashed=True, first="small"))
    parts.append(text(20, 136, "kill", "small", "start"))
    parts.append(
        text(
            20,
            214,
            "S is the stage, K the key. Before the rename there is no artefact; after it there is a complete one.",
            "small",
            "start",
        )
    )
    parts.append(text(20, 252, "What the next start finds in scratch", "name", "start"))
    rows = [
        ("extract", "documents/: one file for each finished document", "documents in work are read again"),
        (
            "train",
            "checkpoints/step-N: weights, optimiser, generators, position",
            "goes on from the newest, to the same bits",
        ),
        ("other stages", "nothing they need", "one segment or table is computed again"),
    ]
    for place, (name, kept, lost) in enumerate(rows):
        top = 266 + 46 * place
        parts.append(box(20, top, 120, 36, [name], "white"))
        parts.append(arrow([(140, top + 18), (164, top + 18)]))
        parts.append(box(166, top, 390, 36, [kept], "green", first="small"))
        parts.append(arrow([(556, top + 18), (580, top + 18)]))
        parts.append(box(582, top, 298, 36, [lost], "grey", first="small"))
    return document("The steps of a commit and what a kill leaves at each of them", 900, 420, parts)


def how_good() -> str:
    """Return the measured trainings and the law: bits per byte beside the trigram orders, against tokens read."""
    axes = Axes(70, 40, 720, 330, (1e5, 1e7), (0.6, 1.5))
    points = trainings()
    parts = [text(20, 24, "Bits per byte divided by those of a trigram model of the same text", "name", "start")]
    parts += axes.grid(
        {1e5: "100,000", 1e6: "1 million", 1e7: "10 million"},
        "tokens read; curves: parameters in blocks, for a text of 1 million tokens of 1,024 ids",
    )
    for size, fill in zip(sorted({round(point.body, -5) for point in points}), COLOURS, strict=False):
        reads = [10 ** (5 + place / 10) for place in range(21)]
        drawn = [(read, expected_ratio(size, 1024, 1e6, read)) for read in reads]
        parts += axes.series([at for at in drawn if at[1] <= axes.up[1]], fill, f"{size / 1e6:g}M")
        for point in points:
            if round(point.body, -5) == size and point.ratio <= axes.up[1]:
                parts.append(axes.dot((point.read, point.ratio), fill))
    return document("Bits per byte beside a trigram model, against tokens read", 860, 430, parts)


def minutes_and_megabytes() -> str:
    """Return the measured bits per byte of our training, a plain loop and the 5-gram model, by minutes and by text."""
    with MEASURED.open(newline="") as file:
        rows = [
            {**row, "megabytes": float(row["megabytes"]), "minutes": float(row["minutes"])}
            for row in csv.DictReader(file)
        ]
    parts: list[str] = []
    for left, name, ticks, where, title in (
        (60, "minutes", (0.5, 1, 2, 5), {"megabytes": 1.1}, "the sample corpus, 1.1 MB"),
        (480, "megabytes", (2, 10, 50), {"minutes": 10.0}, "ten minutes"),
    ):
        axes = Axes(left, 50, 300, 300, (ticks[0], ticks[-1]), (1.4, 2.6))
        parts += [text(left, 28, f"Bits per byte: {title}", "name", "start")]
        parts += axes.grid({float(tick): f"{tick}" for tick in ticks}, name)
        for fill, model in zip(COLOURS, dict.fromkeys(row["model"] for row in rows), strict=False):
            shown = [row for row in rows if row["model"] == model and where.items() <= row.items()]
            found = sorted((float(row[name]), float(row["bits_per_byte"])) for row in shown)
            if found:
                parts += axes.series(found, fill, model) + [axes.dot(at, fill) for at in found]
    return document(
        "Bits per byte against minutes and megabytes, beside a plain loop and a 5-gram model", 900, 410, parts
    )


@dataclass(frozen=True)
class Axes:
    """A plot; the horizontal axis is logarithmic.

    Attributes:
        left, top, width, height: in pixels.
        along, up: ranges of both axes.
    """

    left: float
    top: float
    width: float
    height: float
    along: Point
    up: Point

    def place(self, at: Point) -> Point:
        """Return the place of values in the drawing."""
        share = math.log(at[0] / self.along[0]) / math.log(self.along[1] / self.along[0])
        return self.left + share * self.width, self.top + self.height * (self.up[1] - at[1]) / (self.up[1] - self.up[0])

    def grid(self, ticks: Mapping[float, str], label: str) -> list[str]:
        """Return a line for each tenth or fifth, and words below the plot."""
        step, below = 10 if self.up[1] - self.up[0] < 1 else 5, self.top + self.height
        parts = [text(self.left + self.width / 2, below + 42, label, "small")]
        for tick in range(round(step * self.up[0]), round(step * self.up[1]) + 1):
            _, y = self.place((self.along[0], tick / step))
            parts.append(_polyline([(self.left, y), (self.left + self.width, y)], GREY, 1 if tick == step else 0.4))
            parts.append(text(self.left - 10, y + 4, f"{tick / step:.1f}", "small", "end"))
        return parts + [text(self.place((at, 1))[0], below + 20, words, "small") for at, words in ticks.items()]

    def series(self, points: Sequence[Point], colour: str, label: str) -> list[str]:
        """Return a line with a label at its end."""
        drawn = [self.place(at) for at in points]
        return [_polyline(drawn, colour, 2), text(drawn[-1][0] + 8, drawn[-1][1] + 4, label, "small", "start")]

    def dot(self, at: Point, colour: str) -> str:
        """Return a measured value."""
        x, y = self.place(at)
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}" stroke="{INK}"/>'


def _polyline(points: list[Point], colour: str, width: float) -> str:
    through = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{through}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'


def main() -> None:
    """Write the drawings."""
    for name, picture in drawings().items():
        file = IMAGES / f"{name}.svg"
        file.write_text(picture, encoding="utf-8")
        print(file)


if __name__ == "__main__":
    main()

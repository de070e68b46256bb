"""The pictures of docs/images: a small training on the sample corpus, its curves, and what its model looks like."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from storage.home import Home
from storage.manifest import ArtifactRef
from storage.store import open_store
from tasks.report.training import collect_training, training_pictures

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
DIAGRAMS = ("system", "block", "attention", "increments", "training", "feedback", "generation")
MOST_BYTES = 300_000
CELL = 26  # side of a square of the attention map, in pixels


def sheepfold(home: Path, *arguments: str) -> Any:
    """Run a command in a home and return the document that it prints."""
    command = [sys.executable, "-m", "flows.cli", *arguments, "--json"]
    environment = {**os.environ, "SHEEPFOLD_HOME": str(home)}
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)


def draw(folder: Path, preset: str, max_steps: int) -> list[Path]:
    """Train, and write all pictures into a folder; returns their files.

    Raises:
        ValueError: a picture is larger than MOST_BYTES.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        home, corpus, drawn = (Path(scratch) / name for name in ("home", "corpus", "diagrams"))
        sheepfold(home, "sample", str(corpus))
        ran = sheepfold(home, "run", str(corpus), "--preset", preset, "--max-steps", str(max_steps))
        (key,) = [item["key"] for item in ran["stages"] if item["stage"] == "train"]
        store = open_store(Home.from_environment(str(home)).store)
        manifest = store.find("train", key)
        assert manifest is not None  # the run above has just made it
        pictures = dict(training_pictures(collect_training(store, ArtifactRef("train", key, manifest.digest))))
        model = str(ran["model"]["version"])
        sheepfold(home, "inspect", "--model", model, "--diagrams", str(drawn))
        pictures |= {name: (drawn / f"{name}.svg").read_text(encoding="utf-8") for name in DIAGRAMS}
        seen = sheepfold(home, "inspect", "--model", model, "--prompt", "import os")
    pictures["attention-map"] = attention_map([token["text"] for token in seen["tokens"]], seen["attention"][-1][0])
    files = []
    for name, picture in pictures.items():
        file = folder / f"{name}.svg"
        file.write_text(picture, encoding="utf-8")
        files.append(file)
        if file.stat().st_size > MOST_BYTES:
            raise ValueError(f"{file} has {file.stat().st_size:,} bytes, expected {MOST_BYTES:,} at most: fewer steps")
    return files


def attention_map(labels: list[str], weights: list[list[float]]) -> str:
    """Return the attention weights (T, T) of one head as an SVG document; rows look, columns are looked at."""
    from markupsafe import escape

    start, side = 110, 110 + CELL * len(labels)
    cells = [
        f'<rect x="{start + CELL * column}" y="{start + CELL * row}" width="{CELL - 1}" height="{CELL - 1}" '
        f'fill="#2f5f9e" fill-opacity="{weight:.3f}"><title>{weight:.3f}</title></rect>'
        for row, line in enumerate(weights)
        for column, weight in enumerate(line[: row + 1])
    ]
    texts = []
    for place, label in enumerate(map(escape, labels)):
        middle = start + CELL * place + CELL // 2
        texts.append(f'<text x="{start - 8}" y="{middle + 4}" text-anchor="end">{label}</text>')
        texts.append(f'<text transform="translate({middle + 4} {start - 8}) rotate(-90)">{label}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side} {side}" width="{side}" font-size="12" '
        f'font-family="monospace" role="img" aria-label="Attention weights of one head">'
        f'<rect width="{side}" height="{side}" fill="#fff"/>{"".join([*cells, *texts])}</svg>'
    )


def main() -> None:
    """Write the pictures, and print their files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=IMAGES, help="where to (default: docs/images)")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--max-steps", type=int, default=200)
    asked = parser.parse_args()
    for file in draw(asked.folder, asked.preset, asked.max_steps):
        print(f"{file.stat().st_size:>8,} bytes  {file}")


if __name__ == "__main__":
    main()

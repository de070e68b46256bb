"""Markdown from PDFs beside other extractors: order of the text, tables and headings; words from other formats.

    python -m benchmarks.documents [--truths FOLDER] [--peers PYTHON] [--first 0] [--last 1000] [--formats docx,epub]

Markdown files are printed to PDF by Chromium, in one, two and three columns; those with tables also without their
rules; and those of three columns once more with each line drawn by its height on the page, across all columns.
`--peers` is the Python of an environment with pymupdf4llm<1 and markitdown. Similarities are between 0 and 1: of the
words (Levenshtein), of tables (tree edit distance of rows and cells, the best one found for each in the truth), and of
headings with the text below each (tree edit distance; levels count alike). Needs apted, rapidfuzz and markdown-it-py.

With `--formats`, pandoc writes the truths in these formats instead (`xlsx`: openpyxl, their tables), and the table has
the share of the truths' words that are found, as often as they are there.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lxml.html
import pypdf
from apted import APTED, Config
from markdown_it import MarkdownIt
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject
from rapidfuzz.distance import Levenshtein

TRUTHS = Path(__file__).resolve().parents[2] / "shared" / "corpus" / "structure"
STYLES = ("1", "2", "3", "1 without rules", "3 by height")
PEERS = ("pdfium", "pymupdf4llm", "markitdown")
PAGE = """<html lang="en"><meta charset="utf-8"><style>@page{{size:A4;margin:18mm}}
body{{font:10.5pt/1.35 serif;column-count:{columns};column-gap:8mm;text-align:justify;hyphens:auto}}
h1,h2,h3{{text-align:left}} table{{border-collapse:collapse;font-size:9pt}}
td,th{{border:{border};padding:2px 6px;text-align:left}}</style><body>{body}"""
# run by the Python of the peers
CONVERT = """
import json, sys, time
def pdfium(path):
    import pypdfium2
    pages = [page.get_textpage().get_text_range() for page in pypdfium2.PdfDocument(path)]
    return "\\n\\n".join(pages).replace("\\r\\n", "\\n").replace("\\ufffe", "").replace("\\u0002", "")
def pymupdf4llm(path):
    import pymupdf4llm
    return pymupdf4llm.to_markdown(path, show_progress=False)
def markitdown(path):
    from markitdown import MarkItDown
    return MarkItDown().convert(path).text_content
convert = globals()[sys.argv[1]]
paths = json.load(sys.stdin)
convert(paths[0])
started = time.perf_counter()
texts = [convert(path) for path in paths]
print("\\n" + json.dumps([texts, time.perf_counter() - started]))
"""
_BULLETS = re.compile("[\u2022\u25cf\u25a0\u25aa\u00b7]")  # a bullet is a dash in Markdown
_HEADING = re.compile(r"#{1,6}\s+(.*)")


def markdown() -> MarkdownIt:
    """Return a renderer with tables and HTML."""
    return MarkdownIt("commonmark", {"html": True}).enable("table")


def printed(truths: Sequence[Path], folder: Path) -> dict[str, list[tuple[Path, Path]]]:
    """Print the truths; returns pairs of truth and PDF by style."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise FileNotFoundError("no Chromium found, which prints the PDFs: apt install chromium")
    made: dict[str, list[tuple[Path, Path]]] = {style: [] for style in STYLES}
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"]).new_page()
        for truth in truths:
            body = markdown().render(truth.read_text(encoding="utf-8"))
            for style in STYLES[:4]:
                if style == "1 without rules" and "<table" not in body:
                    continue
                border = "0" if "without" in style else "0.5pt solid"
                path = folder / f"{truth.stem} {style}.pdf"
                page.set_content(PAGE.format(columns=style[0], border=border, body=body))
                page.pdf(path=path, prefer_css_page_size=True)
                made[style].append((truth, path))
    for truth, path in made["3"]:
        shuffled = path.with_name(f"{truth.stem} 3 by height.pdf")
        shuffled.write_bytes(by_height(path))
        made["3 by height"].append((truth, shuffled))
    return made


def by_height(path: Path) -> bytes:
    """Return a PDF whose lines are drawn from top to bottom across all columns, in Courier stretched to their width."""
    import pypdfium2

    from tasks.readers.pdf_lines import read_pieces

    writer = pypdf.PdfWriter()
    for page in pypdfium2.PdfDocument(path):
        layer = page.get_textpage()
        pieces, _ = read_pieces(layer, layer.get_text_range(errors="surrogatepass"))
        content = io.BytesIO()
        for piece in sorted(pieces, key=lambda piece: (-piece.bottom, piece.left)):
            shown = re.sub(rb"([\\()])", rb"\\\1", piece.text.encode("cp1252", "replace"))
            stretch = 100 * (piece.right - piece.left) / (0.6 * piece.size * len(piece.text))
            font, low = f"/F1 {piece.size:.2f} Tf {stretch:.2f} Tz", piece.bottom + 0.2 * piece.size
            place = f"{font} 1 0 0 1 {piece.left:.2f} {low:.2f} Tm "
            content.write(b"BT " + place.encode() + b"(" + shown + b") Tj ET\n")
        blank = writer.add_blank_page(*page.get_size())
        names = {"Type": "Font", "Subtype": "Type1", "BaseFont": "Courier", "Encoding": "WinAnsiEncoding"}
        font = DictionaryObject({NameObject(f"/{name}"): NameObject(f"/{value}") for name, value in names.items()})
        fonts = DictionaryObject({NameObject("/F1"): font})
        stream = DecodedStreamObject()
        stream.set_data(content.getvalue())
        blank[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        blank[NameObject("/Contents")] = writer._add_object(stream)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def written(truths: Sequence[Path], form: str, folder: Path) -> list[tuple[Path, Path]]:
    """Write the truths, or the tables of those that have any, in a format; returns pairs of truth and file."""
    made = []
    for truth in truths:
        path = folder / f"{truth.stem}.{form}"
        if form != "xlsx":
            body = markdown().render(truth.read_text(encoding="utf-8"))
            command = ["pandoc", "--from", "html", "--standalone", "--metadata", "title=A", "--output", str(path)]
            subprocess.run(command, input=body.encode(), check=True)
        elif rows := [
            [cell.text for cell in row.children] for table in tables(truth.read_text()) for row in table.children
        ]:
            import openpyxl

            book = openpyxl.Workbook()
            for row in rows:
                book.active.append(row)
            book.save(path)
            truth = path.with_suffix(".txt")
            truth.write_text("\n".join(" ".join(row) for row in rows), encoding="utf-8")
        else:
            continue
        made.append((truth, path))
    return made


def recall(truth: str, found: str) -> float:
    """Return the share of the truth's words that are found, each as often as it is there."""
    wanted, there = (Counter(re.findall(r"[^\W_]+", text)) for text in (html(truth).text_content(), found))
    return (wanted & there).total() / max(1, wanted.total())


def ours(paths: Sequence[Path]) -> tuple[list[str], float]:
    """Return the normalised texts of files, and the seconds that they took."""
    from tasks.curate.normalise import normalised_text
    from tasks.readers.document import yield_document
    from tasks.readers.records import ExtractOptions, PageText
    from tasks.text.cleaning import NormaliseSettings

    def convert(path: Path) -> str:
        parts = yield_document(path.read_bytes(), path.suffix, ExtractOptions(ocr=False))
        pages = [vars(page) for page in parts if isinstance(page, PageText)]
        return normalised_text(pages, "pdf" if path.suffix == ".pdf" else "text", NormaliseSettings())[0]

    convert(paths[0])
    started = time.perf_counter()
    texts = [convert(path) for path in paths]
    return texts, time.perf_counter() - started


def theirs(name: str, python: str, paths: Sequence[Path]) -> tuple[list[str], float]:
    """Return the texts of another extractor, and the seconds that they took."""
    asked = json.dumps([str(path) for path in paths])
    done = subprocess.run([python, "-c", CONVERT, name], input=asked, capture_output=True, text=True, check=True)
    texts, seconds = json.loads(done.stdout.splitlines()[-1])
    return texts, seconds


@dataclass
class Node:
    """A node of a tree."""

    kind: str
    text: str = ""
    span: tuple[int, int] = (1, 1)
    children: list[Node] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of nodes."""
        return 1 + sum(child.size for child in self.children)


class Costs(Config):  # type: ignore[misc]
    """Costs of edits: 1 for another node or span, the share of other characters for another text."""

    def rename(self, one: Node, other: Node) -> float:
        if (one.kind, one.span) != (other.kind, other.span):
            return 1.0
        return float(Levenshtein.normalized_distance(one.text, other.text)) if one.text or other.text else 0.0

    def children(self, node: Node) -> list[Node]:
        return node.children


def similarity(one: Node, other: Node) -> float:
    """Return the similarity of two trees."""
    return 1 - APTED(one, other, Costs()).compute_edit_distance() / max(one.size, other.size)


def html(text: str) -> Any:
    """Return Markdown as a tree of HTML."""
    return lxml.html.fromstring(f"<div>{markdown().render(text)}</div>")


def words(text: str) -> list[str]:
    """Return the words of Markdown."""
    return _BULLETS.sub(" ", html(text).text_content()).split()


def tables(text: str) -> list[Node]:
    """Return the tables of Markdown."""

    def cell(item: Any) -> Node:
        span = int(item.get("colspan", 1)), int(item.get("rowspan", 1))
        return Node("cell", " ".join(item.text_content().split()), span)

    def row(item: Any) -> Node:
        return Node("row", children=[cell(part) for part in item if part.tag in ("td", "th")])

    return [Node("table", children=[row(item) for item in table.iter("tr")]) for table in html(text).iter("table")]


def sections(text: str) -> Node:
    """Return the headings of Markdown, each with the text below it; without tables."""
    text = re.sub(r"<table.*?</table>", "", text, flags=re.S)
    root = place = Node("document")
    parts: list[str] = []

    def finish() -> None:
        if below := " ".join(" ".join(parts).split()):
            place.children.append(Node("text", below))
        parts.clear()

    for line in text.split("\n"):
        if found := _HEADING.fullmatch(line):
            finish()
            place = Node("heading", " ".join(found[1].split()))
            root.children.append(place)
        elif not line.startswith("|"):
            parts.append(line)
    finish()
    return root


def has_headings(root: Node) -> bool:
    """Return True if a document has a heading."""
    return any(child.kind == "heading" for child in root.children)


def scores(truth: str, found: str) -> Iterator[tuple[str, float]]:
    """Yield the similarities of a text to the truth, by name."""
    yield "text", Levenshtein.normalized_similarity(words(truth), words(found))
    if wanted := tables(truth):
        others = tables(found)
        yield "tables", statistics.mean(max((similarity(one, o) for o in others), default=0.0) for one in wanted)
    tree, other = sections(truth), sections(found)
    if has_headings(tree):
        yield "headings", similarity(tree, other) if has_headings(other) else 0.0


def measure(pairs: Sequence[tuple[Path, Path]], texts: Sequence[str], seconds: float) -> str:
    """Return the cells of a row of the table."""
    found: dict[str, list[float]] = {"text": [], "tables": [], "headings": []}
    for (truth, _), text in zip(pairs, texts, strict=True):
        for name, value in scores(truth.read_text(encoding="utf-8"), text):
            found[name].append(value)
    cells = [f"{statistics.median(found['text']):.4f} / {statistics.mean(found['text']):.4f}"]
    cells += [f"{statistics.mean(found[name]):.3f}" if found[name] else "" for name in ("tables", "headings")]
    return " | ".join([*cells, f"{1000 * seconds / len(pairs):.0f}"])


def print_formats(truths: Sequence[Path], formats: Sequence[str], peers: str | None, folder: Path) -> None:
    """Print the table of formats."""
    print(
        "| format | extractor | files | words found: mean / least | ms a document |\n|---|---|---|---|---|", flush=True
    )
    for form in formats:
        pairs = written(truths, form, folder)
        if not pairs:
            print(f"| {form} | | 0 | | |", flush=True)
            continue
        paths = [path for _, path in pairs]
        for name in ["sheepfold", *(["markitdown"] if peers else [])]:
            try:
                texts, seconds = theirs(name, peers, paths) if peers and name != "sheepfold" else ours(paths)
            except subprocess.CalledProcessError as error:
                refusal = (error.stderr.strip().splitlines() or ["no message"])[-1]
                print(f"| {form} | {name} | {len(pairs)} | fails: {refusal} | |", flush=True)
                continue
            shares = [recall(truth.read_text("utf-8"), text) for (truth, _), text in zip(pairs, texts, strict=True)]
            found = f"{statistics.mean(shares):.4f} / {min(shares):.4f}"
            print(f"| {form} | {name} | {len(pairs)} | {found} | {1000 * seconds / len(pairs):.0f} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truths", type=Path, default=TRUTHS, help="folder of Markdown files")
    parser.add_argument("--peers", help="Python of an environment with the other extractors")
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--last", type=int, default=1000, help="number behind the last file")
    parser.add_argument("--formats", default="", help="file suffixes, joined by commas, instead of PDFs")
    asked = parser.parse_args()
    truths = sorted(asked.truths.glob("*.md"))[asked.first : asked.last]
    if not truths:
        sys.exit(f"no Markdown files in {asked.truths} (--truths)")
    with tempfile.TemporaryDirectory() as folder:
        if asked.formats:
            print_formats(truths, asked.formats.split(","), asked.peers, Path(folder))
            return
        print("| columns | extractor | text: median / mean | tables | headings | ms a document |")
        print("|---|---|---|---|---|---|", flush=True)
        for style, pairs in printed(truths, Path(folder)).items():
            if not pairs:
                continue
            paths = [path for _, path in pairs]
            for name in ["sheepfold", *(PEERS if asked.peers else ())]:
                texts, seconds = ours(paths) if name == "sheepfold" else theirs(name, asked.peers, paths)
                print(f"| {style} | {name} | {measure(pairs, texts, seconds)} |", flush=True)


if __name__ == "__main__":
    main()

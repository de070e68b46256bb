"""Build a sample corpus of about two megabytes: text, source code, born-digital PDFs, scans and images.

It is generated from the language reference (`pydoc_data`) and the standard library of the running Python, so nothing is
downloaded or shipped. The same Python and libraries give the same bytes. The language reference repeats itself:
each paragraph is used once, and each topic in one file, so that few of the documents are near-duplicates.
"""

import io
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pypdf
from PIL import Image, ImageDraw, ImageFont
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

N_TEXT_FILES = 40
N_DOCUMENTS = 3
TOPICS_PER_DOCUMENT = 5
N_SCANS = 3  # pages of the scanned PDF
N_CODE_FILES = 90
CODE_FILE_BYTES = range(2_000, 24_000)
SCAN_DPI = 200
SCAN_SIZE = (1165, 1654)  # A5 in pixels at SCAN_DPI
FONT_SIZE = 30  # pixels: 11 points at SCAN_DPI


@dataclass(frozen=True)
class Topic:
    """A topic of the language reference, without the paragraphs that an earlier topic has."""

    name: str
    paragraphs: list[str]

    @property
    def title(self) -> str:
        return self.name.replace("-", " ").capitalize()

    @property
    def prose(self) -> list[str]:
        """Return the paragraphs that can be rewrapped: no code, lists, headings or grammar."""
        found = [p for p in self.paragraphs if p[0].isupper() and p[-1] == "." and "\n  " not in p]
        return [" ".join(p.split()) for p in found if len(p) > 80]


def build_sample(folder: Path) -> list[Path]:
    """Write the sample corpus and return its files, sorted.

    Other files in the folder are not touched, and a file that is already right is not written again.

    Raises:
        FileNotFoundError: This Python comes without the sources of its standard library.
    """
    files = dict(_files())
    for name, content in files.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(path.name + ".partial")
            partial.write_bytes(content)
            partial.replace(path)
    return sorted(folder / name for name in files)


def _files() -> Iterator[tuple[str, bytes]]:
    by_prose = sorted(read_topics(), key=lambda topic: (-len("".join(topic.prose)), topic.name))
    scanned, pictured, *rest = by_prose
    for number in range(N_DOCUMENTS):
        group = rest[number : N_DOCUMENTS * TOPICS_PER_DOCUMENT : N_DOCUMENTS]
        prose = [paragraph for topic in group for paragraph in topic.prose]
        title = ", ".join(topic.title for topic in group)
        yield f"documents/{group[0].name}.pdf", text_pdf(title, wrap_pages(prose, 88, 54))
    lines = wrap_pages(scanned.prose, 58, 34)[:N_SCANS]
    pages = [add_grain(draw_page(page), seed) for seed, page in enumerate(lines)]
    yield f"scans/{scanned.name}.pdf", image_pdf(scanned.title, pages)
    yield from _images(wrap_pages(pictured.prose, 58, 14))
    yield from _texts(sorted(rest[N_DOCUMENTS * TOPICS_PER_DOCUMENT :], key=lambda topic: topic.name))
    yield from _sources()


def read_topics() -> list[Topic]:
    """Return the topics of the language reference, short ones first, since long ones repeat them."""
    seen: set[str] = set()
    found = []
    for name, text in sorted(topics.items(), key=lambda item: (len(item[1]), item[0])):
        paragraphs = [part.strip("\n") for part in text.split("\n\n") if part.strip()]
        fresh = [p for p in dict.fromkeys(paragraphs) if p not in seen]
        seen.update(fresh)
        if fresh:
            found.append(Topic(name, fresh))
    return found


def _texts(chosen: list[Topic]) -> Iterator[tuple[str, bytes]]:
    n_files = min(N_TEXT_FILES, len(chosen))
    for number in range(n_files):
        group = chosen[number * len(chosen) // n_files : (number + 1) * len(chosen) // n_files]
        markdown = number % 2 == 1
        parts = [part for t in group for part in ([f"# {t.title}"] if markdown else []) + t.paragraphs]
        yield f"text/{group[0].name}.{'md' if markdown else 'txt'}", ("\n\n".join(parts) + "\n").encode()


def _sources() -> Iterator[tuple[str, bytes]]:
    library = Path(sysconfig.get_path("stdlib"))
    modules = [p for p in sorted(library.glob("*.py")) if not p.name.startswith("_")]
    chosen = [p for p in modules if p.stat().st_size in CODE_FILE_BYTES][:N_CODE_FILES]
    if not chosen:
        raise FileNotFoundError(
            f"{library} has no Python sources, which the sample corpus is made from. "
            "Use a Python that is installed with the sources of its standard library."
        )
    for path in chosen:
        yield f"code/{path.name}", path.read_bytes()


def wrap_pages(paragraphs: list[str], width: int, height: int) -> list[list[str]]:
    """Wrap prose into pages of at most `height` lines of at most `width` characters.

    No line ends in a hyphen, which PDF readers take for a divided word and join with the next line.
    """
    lines: list[str] = []
    for paragraph in paragraphs:
        for line in textwrap.wrap(paragraph, width, break_on_hyphens=False):
            if lines and lines[-1].endswith("-"):
                lines[-1] += " " + line
            else:
                lines.append(line)
    return [lines[start : start + height] for start in range(0, len(lines), height)]


# Images


def draw_page(lines: list[str], size: tuple[int, int] = SCAN_SIZE, margin: int = 90) -> Image.Image:
    """Draw lines of text, black on white, in Pillow's default font; return an 8-bit grey image."""
    page = Image.new("L", size, 255)
    font = ImageFont.load_default(size=FONT_SIZE)
    drawing = ImageDraw.Draw(page)
    for number, line in enumerate(lines):
        drawing.text((margin, margin + number * FONT_SIZE * 1.4), line, fill=20, font=font)
    return page


def add_grain(page: Image.Image, seed: int) -> Image.Image:
    """Return a grey page as from a scanner: off-white, with Gaussian noise from the seed."""
    pixels = np.asarray(page, dtype=np.float32)
    grain = np.random.default_rng(seed).normal(0.0, 6.0, size=pixels.shape)
    return Image.fromarray(np.clip(pixels * 0.93 + grain, 0, 255).astype(np.uint8))


def _images(pages: list[list[str]]) -> Iterator[tuple[str, bytes]]:
    """Yield four images: clean, noisy, coloured, and a black-and-white fax of two pages."""
    size = (SCAN_SIZE[0], SCAN_SIZE[1] // 2)
    clean, photo, tinted, *fax = (draw_page(page, size) for page in pages[:5])
    yield "images/page.png", _encode(clean, "PNG")
    yield "images/photo.jpg", _encode(add_grain(photo, seed=100), "JPEG", quality=60)
    yellow = Image.merge("RGB", (tinted, tinted, tinted.point([grey * 4 // 5 for grey in range(256)])))
    yield "images/tinted.png", _encode(yellow, "PNG")
    first, second = (page.convert("1", dither=Image.Dither.NONE) for page in fax)
    frames = {"save_all": True, "append_images": [second], "compression": "group4"}
    yield "images/fax.tiff", _encode(first, "TIFF", **frames)


def _encode(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, dpi=(SCAN_DPI, SCAN_DPI), **options)
    return buffer.getvalue()


# PDF (ISO 32000-1:2008; section numbers below)


def text_pdf(title: str, pages: list[list[str]]) -> bytes:
    """Return a PDF of A4 pages with a text layer: one string in ten-point Helvetica per line.

    Characters outside WinAnsi (Windows code page 1252) become question marks.
    """
    name = NameObject
    values = {"Type": "Font", "Subtype": "Type1", "BaseFont": "Helvetica", "Encoding": "WinAnsiEncoding"}
    font = DictionaryObject({name(f"/{key}"): name(f"/{value}") for key, value in values.items()})
    fonts = DictionaryObject({name("/F1"): font})
    writer = pypdf.PdfWriter()
    writer.add_metadata({"/Title": title, "/Producer": "Sheepfold"})
    for lines in pages:
        page = writer.add_blank_page(595.28, 841.89)
        page[name("/Resources")] = DictionaryObject({name("/Font"): fonts})
        content = DecodedStreamObject()
        shown = b"\n".join(b"(%b) Tj T*" % _escape(line) for line in lines)
        content.set_data(b"BT /F1 10 Tf 13 TL 60 770 Td\n%b\nET" % shown)
        page.replace_contents(content.flate_encode(9))
    buffer = io.BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


def _escape(line: str) -> bytes:
    encoded = line.encode("cp1252", errors="replace")
    special = {ord(c): b"\\%c" % ord(c) for c in "()\\"}
    return b"".join(special.get(b, b"%c" % b if 32 <= b < 127 else b"\\%03o" % b) for b in encoded)


def image_pdf(title: str, pages: list[Image.Image]) -> bytes:
    """Return a PDF of grey page images without a text layer, as from a scanner without OCR."""
    dates = {"creationDate": None, "modDate": None}  # else the bytes would depend on the current time
    return _encode(pages[0], "PDF", save_all=True, append_images=pages[1:], title=title, quality=50, **dates)

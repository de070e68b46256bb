"""PDF pages made for the tests from a content stream, with a scan below it where wanted."""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence

import pypdf
from PIL import Image
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject, NumberObject, StreamObject

WIDTH, HEIGHT = 612, 792


def page_pdf(content: str, scan: Image.Image | None = None) -> bytes:
    """One page with the fonts /F1 Helvetica, /F2 its bold and /F3 Courier; the scan covers it and is drawn first."""
    writer = pypdf.PdfWriter()
    page = writer.add_blank_page(WIDTH, HEIGHT)
    fonts = DictionaryObject()
    for number, base in enumerate(("Helvetica", "Helvetica-Bold", "Courier"), 1):
        names = {"Type": "Font", "Subtype": "Type1", "BaseFont": base}
        font = {NameObject(f"/{name}"): NameObject(f"/{value}") for name, value in names.items()}
        fonts[NameObject(f"/F{number}")] = DictionaryObject(font)
    resources = DictionaryObject({NameObject("/Font"): fonts})
    if scan is not None:
        image = writer._add_object(_image(scan))
        resources[NameObject("/XObject")] = DictionaryObject({NameObject("/Scan"): image})
        content = f"q {WIDTH} 0 0 {HEIGHT} 0 0 cm /Scan Do Q\n{content}"
    stream = DecodedStreamObject()
    stream.set_data(content.encode("latin-1"))
    page[NameObject("/Resources")] = resources
    page[NameObject("/Contents")] = writer._add_object(stream)
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()


def _image(scan: Image.Image) -> StreamObject:
    """The scan as a grey image."""
    stream = StreamObject()
    stream._data = zlib.compress(scan.tobytes())
    names = {"Type": "XObject", "Subtype": "Image", "ColorSpace": "DeviceGray", "Filter": "FlateDecode"}
    numbers = {"Width": scan.width, "Height": scan.height, "BitsPerComponent": 8}
    stream.update({NameObject(f"/{name}"): NameObject(f"/{value}") for name, value in names.items()})
    stream.update({NameObject(f"/{name}"): NumberObject(value) for name, value in numbers.items()})
    return stream


def text_lines(
    lines: Sequence[str],
    left: float = 72,
    top: float = 700,
    leading: float = 14,
    mode: int = 0,
    font: str = "F1",
    size: float = 12,
) -> str:
    """A content stream that writes lines one below the other; mode 3 draws nothing."""
    shown = [f"1 0 0 1 {left} {top - leading * row} Tm ({line}) Tj" for row, line in enumerate(lines)]
    return f"BT /{font} {size} Tf {mode} Tr " + "\n".join(shown) + " ET\n"


def ruled(xs: Sequence[float], ys: Sequence[float]) -> str:
    """A content stream that draws a grid."""
    level = [f"{xs[0]} {y} m {xs[-1]} {y} l S" for y in ys]
    upright = [f"{x} {ys[0]} m {x} {ys[-1]} l S" for x in xs]
    return "0.5 w " + "\n".join([*level, *upright]) + "\n"

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
    """One page with Helvetica as /F1; the scan covers it and is drawn first."""
    writer = pypdf.PdfWriter()
    page = writer.add_blank_page(WIDTH, HEIGHT)
    names = {"Type": "Font", "Subtype": "Type1", "BaseFont": "Helvetica"}
    font = DictionaryObject({NameObject(f"/{name}"): NameObject(f"/{value}") for name, value in names.items()})
    resources = DictionaryObject({NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})})
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


def text_lines(lines: Sequence[str], left: float = 72, top: float = 700, leading: float = 14, mode: int = 0) -> str:
    """A content stream that writes lines one below the other; mode 3 draws nothing."""
    shown = [f"1 0 0 1 {left} {top - leading * row} Tm ({line}) Tj" for row, line in enumerate(lines)]
    return f"BT /F1 12 Tf {mode} Tr " + "\n".join(shown) + " ET\n"

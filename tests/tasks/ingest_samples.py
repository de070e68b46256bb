"""Small documents made for the tests."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pypdf
from PIL import Image, ImageDraw, ImageFont


def text_pdf(pages: Sequence[str], title: str = "") -> bytes:
    """A PDF with one line of text on each page; an empty string makes a blank page."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>"]
    kids = " ".join(f"{4 + 2 * index} 0 R" for index in range(len(pages)))
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode())
    objects.append(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for index, text in enumerate(pages):
        content = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET".encode("latin-1") if text else b""
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * index} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>".encode()
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
    objects.append(f"<< /Title ({title}) >>".encode("latin-1"))
    return _with_cross_references(objects)


def _with_cross_references(objects: Sequence[bytes]) -> bytes:
    """Numbers the objects and adds the cross-reference table; the last one is the document information."""
    file = bytearray(b"%PDF-1.4\n")
    offsets = []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(file))
        file += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(file)
    file += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    file += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    file += b"trailer << /Size %d /Root 1 0 R /Info %d 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1,
        len(objects),
        start,
    )
    return bytes(file)


def encrypted_pdf(text: str, user_password: str, algorithm: str) -> bytes:
    """A PDF that needs the password; an empty one opens without asking."""
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(text_pdf([text])))
    writer.encrypt(user_password=user_password, owner_password="owner", algorithm=algorithm)
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()


def picture_of(text: str, size: tuple[int, int] = (1000, 200), font_size: int = 40) -> Image.Image:
    """Black text on white, 8-bit grey."""
    picture = Image.new("L", size, 255)
    font = ImageFont.load_default(size=font_size)
    ImageDraw.Draw(picture).multiline_text((40, 40), text, fill=0, font=font)
    return picture


def dense_page() -> Image.Image:
    """A large page full of small text, which keeps OCR busy for much longer than any test waits."""
    lines = "\n".join(["the quick brown fox jumps over the lazy dog and then some more of it " * 5] * 170)
    return picture_of(lines, (6000, 6000), font_size=26)


def saved(picture: Image.Image, file_format: str, **settings: object) -> bytes:
    """The picture as a file in memory."""
    file = io.BytesIO()
    picture.save(file, format=file_format, **settings)
    return file.getvalue()

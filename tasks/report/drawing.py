"""The child process of `thumbnails`: draws one page for each request it reads, as a small grey JPEG.

    python -P -m tasks.report.drawing       requests on standard input, answers on standard output

It may be killed at any moment, has a limit of memory, and goes by itself when its parent is gone.
"""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import os
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import pypdfium2 as pdfium
from PIL import Image

from tasks.core import child
from tasks.readers.image import FORMATS, to_grey
from tasks.sources.folder import open_regular

MAX_SIZE = (420, 560)  # width and height in pixels: twice what is shown, so that words can be made out
MAX_FILE_BYTES = 256 * 2**20
MEMORY_BYTES = 2**30  # that a page may add to what the process has at its start
QUALITY = 55
MAX_JPEG_BYTES = 70_000


class CannotDraw(Exception):
    """Why there is no picture."""


def main() -> None:
    """Serves requests until standard input ends."""
    requests, send = child.serve(errors="replace")
    logging.disable(logging.CRITICAL)
    child.limit_added_memory(MEMORY_BYTES)
    send({"ready": True})
    for request in requests:
        send(answer(request))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """A picture of the page that is asked for, or a reason."""
    try:
        return _encoded(_drawn(request))
    except CannotDraw as error:
        return {"reason": str(error)}
    except MemoryError:
        return {"reason": f"drawing it needs more than {MEMORY_BYTES // 2**20} MiB of memory"}
    # decoders of hostile files raise whatever their parsing stumbles over
    except Exception as error:  # noqa: BLE001
        return {"reason": f"it cannot be drawn: {type(error).__name__}: {error}"[:300]}


def _drawn(request: dict[str, Any]) -> Image.Image:
    data = _bytes_of(Path(request["path"]), request["sha256"])
    if request["pdf"]:
        return _pdf_page(data, request["page"], request["passwords"])
    return _frame(data, request["page"])


def _bytes_of(path: Path, sha256: str) -> bytes:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_FILE_BYTES:
                raise CannotDraw(f"its file has {size} bytes, more than {MAX_FILE_BYTES}")
            data = io.BufferedReader(file).read(size + 1)
    except OSError as error:
        raise CannotDraw(f"its file cannot be read: {error.strerror or error}") from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise CannotDraw("its file has changed since")
    return data


def _pdf_page(data: bytes, number: int, passwords: list[str]) -> Image.Image:
    with closing(_open_pdf(data, passwords)) as document:
        if not 1 <= number <= len(document):
            raise CannotDraw(f"PDFium finds {len(document)} pages")
        document.init_forms()
        with closing(document[number - 1]) as page:
            width, height = page.get_size()
            scale = min(MAX_SIZE[0] / max(width, 1e-3), MAX_SIZE[1] / max(height, 1e-3))
            # the image shares the bitmap's memory, so the bitmap must outlive it
            with closing(page.render(scale=scale, grayscale=True)) as bitmap:
                return bitmap.to_pil().copy()


def _open_pdf(data: bytes, passwords: list[str]) -> pdfium.PdfDocument:
    for password in (None, *passwords):
        try:
            return pdfium.PdfDocument(data, password=password)
        except pdfium.PdfiumError:
            continue
    raise CannotDraw("PDFium cannot open it")


def _frame(data: bytes, number: int) -> Image.Image:
    with warnings.catch_warnings():
        # Pillow only warns about 90 to 180 million pixels; such an image must not be decoded either
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            image.seek(number - 1)
            return to_grey(image, 4 * MAX_SIZE[0] * MAX_SIZE[1])


def _encoded(picture: Image.Image) -> dict[str, Any]:
    picture.thumbnail(MAX_SIZE, Image.Resampling.LANCZOS)
    out = io.BytesIO()
    picture.convert("L").save(out, "JPEG", quality=QUALITY, optimize=True)
    while out.tell() > MAX_JPEG_BYTES:  # noise hardly compresses
        picture = picture.resize((max(1, picture.width // 2), max(1, picture.height // 2)))
        out = io.BytesIO()
        picture.convert("L").save(out, "JPEG", quality=QUALITY, optimize=True)
    jpeg = base64.b64encode(out.getvalue()).decode("ascii")
    return {"jpeg": jpeg, "width": picture.width, "height": picture.height}


if __name__ == "__main__":
    main()

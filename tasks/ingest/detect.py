"""What a file is: kind, media type and programming language, told from its first bytes and its suffix.

The bytes decide, the suffix only refines: a PDF named `.txt` is a PDF, and a binary named `.txt` is not text.
The suffix names a programming language only where it is used for nothing else of note (`.h` may be three
languages), since an unknown language does less harm than a wrong one. The file's name plays no part: the same
bytes under the same suffix are one document, wherever they lie.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tasks.ingest.languages import LANGUAGES, SHEBANGS, TEXT_TYPES
from tasks.ingest.records import Kind
from tasks.ingest.text import utf16_without_mark

HEAD_BYTES = 8192  # How much of a file `detect` wants to see.
PDF_MARK_WITHIN = 1024  # Readers accept junk of this length before "%PDF-".

_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"II+\x00", "image/tiff"),
    (b"MM\x00+", "image/tiff"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_BINARIES = (
    (b"PK\x03\x04", "application/zip"),
    (b"PK\x05\x06", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"BZh", "application/x-bzip2"),
    (b"\xfd7zXZ\x00", "application/x-xz"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (b"Rar!\x1a\x07", "application/vnd.rar"),
    (b"\x7fELF", "application/x-executable"),
    (b"\xca\xfe\xba\xbe", "application/java-vm"),
    (b"\xcf\xfa\xed\xfe", "application/x-mach-binary"),
    (b"\xfe\xed\xfa\xcf", "application/x-mach-binary"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage"),
    (b"SQLite format 3\x00", "application/vnd.sqlite3"),
    (b"PAR1", "application/vnd.apache.parquet"),
    (b"\x00asm", "application/wasm"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"wOFF", "font/woff"),
    (b"wOF2", "font/woff2"),
    (b"OTTO", "font/otf"),
    (b"\x00\x01\x00\x00\x00", "font/ttf"),
    (b"\x1a\x45\xdf\xa3", "video/x-matroska"),
    (b"\xed\xab\xee\xdb", "application/x-rpm"),
    (b"!<arch>\n", "application/x-archive"),
)
_ZIP_SUFFIXES = {
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".odt": "application/vnd.oasis.opendocument.text",
    ".epub": "application/epub+zip",
    ".jar": "application/java-archive",
    ".whl": "application/zip",
}
_SHEBANG = re.compile(rb"#!\s*(?:\S*/)?(?:env\s+(?:-\S+\s+)*)?([A-Za-z]+)[\d.]*(?:\s|$)")
_CONTROL_BYTES = bytes(set(range(32)) - set(b"\t\n\r\f\x08\x1b"))
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


@dataclass(frozen=True, slots=True)
class Detected:
    """What a file is.

    Attributes:
        kind: "pdf", "image", "code" or "text"; empty for anything else.
        media_type: For example "text/markdown"; "application/octet-stream" when unknown.
        programming_language: Its name, or None; code without a known language is of kind "text".
    """

    kind: Kind
    media_type: str
    programming_language: str | None = None


def detect(head: bytes, data_len: int, suffix: str) -> Detected:
    """Tells what a file is.

    Args:
        head: Its first `HEAD_BYTES` bytes (or all of it).
        data_len: Its length in bytes.
        suffix: Its suffix with the dot, in any case; empty if it has none.

    Returns:
        The kind, media type and programming language.
    """
    head = head[:HEAD_BYTES]
    suffix = suffix.lower()
    binary = _by_magic(head, suffix)
    if binary:
        return binary
    if not looks_like_text(head, whole=data_len <= len(head)):
        return Detected("", "application/octet-stream")
    if suffix in TEXT_TYPES:
        return Detected("text", TEXT_TYPES[suffix])
    language = LANGUAGES.get(suffix) or _by_shebang(head)
    if language:
        return Detected("code", _code_media_type(language), language)
    return Detected("text", "text/plain")


def looks_like_text(head: bytes, whole: bool = True) -> bool:
    """Whether bytes may be text in some encoding.

    Args:
        head: The first bytes of a file.
        whole: Whether that is the whole file; else it may end in the middle of a character.

    Returns:
        False where NUL or other control bytes, speak against it.
    """
    if not head or head.startswith(_WIDE_MARKS) or utf16_without_mark(head):
        return True
    controls = len(head) - len(head.translate(None, _CONTROL_BYTES))
    try:
        # Without the last bytes, which may be half a character.
        (head if whole else head[:-4] or head).decode("utf-8")
    except UnicodeDecodeError:
        # Text in the older encodings has no control bytes; compressed or compiled data has one in nine or so.
        return controls <= 0.002 * len(head)
    # Valid UTF-8 does not come about by chance: some stray NULs (padding, a dump) do not make it binary.
    return controls <= 0.1 * len(head)


def _by_magic(head: bytes, suffix: str) -> Detected | None:
    """What the first bytes prove, or None."""
    if b"%PDF" in head[:PDF_MARK_WITHIN] and (head.startswith(b"%PDF") or not _is_plain_ascii(head, suffix)):
        return Detected("pdf", "application/pdf")
    for magic, media_type in _IMAGES:
        if head.startswith(magic):
            return Detected("image", media_type)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return Detected("image", "image/webp")
    # "BM" also begins words: the four reserved bytes of a bitmap's header are zero.
    if head.startswith(b"BM") and head[6:10] == b"\x00\x00\x00\x00":
        return Detected("image", "image/bmp")
    if head.startswith(b"RIFF") and head[8:12] in (b"WAVE", b"AVI "):
        return Detected("", "audio/wav" if head[8:12] == b"WAVE" else "video/x-msvideo")
    if head[4:8] == b"ftyp":
        return Detected("", "video/mp4")
    if head[257:262] == b"ustar":
        return Detected("", "application/x-tar")
    for magic, media_type in _BINARIES:
        # Some magics are letters that a text may begin with.
        if head.startswith(magic) and not (magic.isalnum() and looks_like_text(head, whole=False)):
            return Detected("", _ZIP_SUFFIXES.get(suffix, media_type) if magic[:2] == b"PK" else media_type)
    return None


def _is_plain_ascii(head: bytes, suffix: str) -> bool:
    """Whether "%PDF" after other things is probably talk about PDF: readable, and not named as one."""
    return suffix != ".pdf" and head.isascii() and looks_like_text(head, whole=False)


def _by_shebang(head: bytes) -> str | None:
    """The language of the interpreter that the first line names."""
    match = _SHEBANG.match(head)
    return SHEBANGS.get(match[1].decode("ascii").lower()) if match else None


def _code_media_type(language: str) -> str:
    """A media type for source code, for example "text/x-python"."""
    return "text/x-" + language.lower().replace("+", "p").replace("#", "sharp").replace(" ", "-")

"""Detect the type of a file, its kind, media type and programming language, from its content and suffix.

The content takes precedence over the suffix: a PDF named `.txt` is a PDF, a binary named `.txt` is not text, and a web
page saved as `.py` is a web page. A suffix determines a programming language only if it has no other common use; for a
suffix of several languages, patterns in the text decide, since an unknown language does less harm than a wrong one. The
rest of the path is not used, so that the same bytes and suffix give the same document. All tables are in `detect.toml`.
"""

from __future__ import annotations

import io
import json
import re
import tomllib
import zipfile
import zlib
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tasks.readers.archives import TAR_BLOCK, is_tar_header
from tasks.readers.chat_rows import conversation_columns
from tasks.readers.decode import utf16_without_mark
from tasks.readers.records import Detected, ExtractionProblem, ExtractOptions, Kind
from tasks.readers.rows import LINES, Table, document_column, line_columns

HEAD_BYTES = 8192  # Bytes at the beginning of a file that `detect` reads.
PDF_MARK_WITHIN = 1024  # Readers accept junk of this length before "%PDF-".
JSON_LINES = "application/jsonl"
PARQUET_MEDIA = "application/vnd.apache.parquet"
SQLITE_MEDIA = "application/vnd.sqlite3"
MBOX = "application/mbox"
WARC = "application/warc"
EML = "message/rfc822"
ENCRYPTED_OFFICE = "application/vnd.ms-office.encrypted"

_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_MAGICS: list[tuple[Kind, bytes, str]] = [
    (kind, magic.encode("latin-1"), media_type) for kind, magic, media_type in _TABLES["magics"]
]
_PACKAGES = frozenset(_TABLES["packages"].split())
_SUFFIXES = {name: frozenset(suffixes.split()) for name, suffixes in _TABLES["suffixes"].items()}


def _languages(names: str) -> dict[str, str]:
    return {name: language for language, known in _TABLES["languages"].items() for name in known.get(names, "").split()}


LANGUAGES = _languages("suffixes")
SHEBANGS = _languages("interpreters")
# Names in notebooks and in the mode lines of editors.
KERNELS = {language.lower(): language for language in _TABLES["languages"]} | SHEBANGS | _languages("kernels")
TEXT_TYPES = {
    suffix: media_type for media_type, suffixes in _TABLES["text_types"].items() for suffix in suffixes.split()
}
SHARED_SUFFIXES = frozenset(_TABLES["by_suffix"])  # of several languages

_CONTENT_TYPES = "[Content_Types].xml"
_MOST_ENTRIES = 200_000  # A ZIP with more entries is taken for a plain archive unopened.
_MEDIA_TYPE = re.compile(r"[a-z]{1,40}/[A-Za-z0-9.+-]{1,100}")
_TAG = re.compile(r"<[A-Za-z!/]")
_ELEMENT = re.compile(r"<([A-Za-z_][\w:.-]{0,100})[\s>/]")
_DOCTYPE = re.compile(r"<!doctype\s{1,20}([\w:.-]{1,100})", re.IGNORECASE)
_TEX = re.compile(r"^[ \t]{0,20}\\(?:documentclass|documentstyle|NeedsTeXFormat|ProvidesClass|ProvidesPackage)\b", re.M)
_NOTEBOOK_CELL = re.compile(r"\"(?:cell_type|nbformat|nbformat_minor)\"\s{0,20}:")
_MAIL_HEADERS = re.compile(r"(?:[A-Za-z][\w-]{0,70}:[^\n]*\n(?:[ \t][^\n]*\n)*)+")
_MAIL_NAMES = re.compile(
    r"^(from|date|subject|to|received|message-id|return-path|delivered-to|mime-version):", re.I | re.M
)
_ENVELOPE = re.compile(r"From \S[^\n]{0,200}\d{4}[^\n]{0,20}\n")
_SHEBANG = re.compile(
    r"#!\s{0,9}(?:[^\s]*/)?(?:env\s+(?:-\S+\s+|\w+=\S*\s+)*)?"
    r"([A-Za-z][A-Za-z-]*[A-Za-z]|[A-Za-z]+\d?)"
)
_EMACS_MODE = re.compile(
    r"-\*-\s{0,9}(?:[^\n]{0,200}?\bmode:\s{0,9})?([A-Za-z+#-]{1,30})\s{0,9}(?:;[^\n]{0,200})?-\*-", re.I
)
_VIM_MODE = re.compile(r"\bvim?:[^\n]{0,200}?\b(?:ft|filetype|syntax)=([A-Za-z+#-]{1,30})")
_IN_SECTIONS = ("text/plain", "text/markdown")
_MODE_LINES = 5  # Editors read mode lines in the first and the last few lines.
_CONTROL_BYTES = bytes(set(range(32)) - set(b"\t\n\r\f\x08\x1b"))
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


def identify(data: bytes, suffix: str, options: ExtractOptions) -> Detected:
    """Detect the type of a whole file, including the type of packages and whether a table has a text column.

    Args:
        data: The whole file.
        suffix: Its suffix with the dot, in any case; empty if it has none.
        options: Options that decide whether a file is read as a table, such as `lines`.
    """
    detected = detect(data[:HEAD_BYTES], len(data), suffix)
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _look_into_zip(data)
    if detected.media_type == "application/x-ole-storage":
        return replace(detected, media_type=_look_into_ole(data))
    if detected.media_type == JSON_LINES:
        with suppress(ExtractionProblem):
            columns = line_columns(Table(data, LINES))
            if document_column(columns, options.table_columns) is not None or conversation_columns(columns):
                return replace(detected, kind="table")
    if detected.media_type == SQLITE_MEDIA and not options.sqlite_query:
        return replace(detected, kind="")
    if options.lines and detected.kind == "text" and detected.media_type.startswith("text/"):
        return detected if detected.media_type == "text/html" else replace(detected, kind="table")
    is_long = 0 < 2 * options.section_length <= len(data)
    return replace(detected, kind="table") if is_long and detected.media_type in _IN_SECTIONS else detected


def detect(head: bytes, data_len: int, suffix: str) -> Detected:
    """Detect the type of a file by its beginning.

    Args:
        head: Its first `HEAD_BYTES` bytes, or all of it.
        data_len: Its length in bytes.
        suffix: Its suffix with the dot, in any case; empty if it has none.
    """
    head = head[:HEAD_BYTES]
    suffix = suffix.lower()
    whole = data_len <= len(head)
    if binary := _by_magic(head, suffix):
        return binary
    if not _looks_like_text(head, whole):
        is_stream = head[:1] == head[188:189] == head[376:377] == b"\x47"
        return Detected("", "video/mp2t") if is_stream else Detected()
    text = _readable(head)
    marked = (
        _by_headers(text, suffix)
        or _by_markup(text, suffix)
        or _by_json(text, suffix, whole)
        or _by_other_marks(text, suffix)
    )
    return marked or _by_language(text, suffix)


def _looks_like_text(head: bytes, whole: bool = False) -> bool:
    """Return False if NUL or other control bytes rule out text; `whole` is False if `head` may cut a character."""
    if not head or head.startswith(_WIDE_MARKS) or utf16_without_mark(head):
        return True
    controls = len(head) - len(head.translate(None, _CONTROL_BYTES))
    try:
        # without the last bytes, which may be half a character
        (head if whole else head[:-4] or head).decode("utf-8")
    except UnicodeDecodeError:
        # text in 8-bit encodings has no control bytes; in compressed or compiled data about one byte in nine is one
        return controls <= 0.002 * len(head)
    # binary data is hardly ever valid UTF-8: text may have some stray NULs (padding, a dump)
    return controls <= 0.1 * len(head)


def _by_magic(head: bytes, suffix: str) -> Detected | None:
    if head.startswith(b"%PDF"):
        return Detected("pdf", "application/pdf")
    # before the search for a PDF further on, which may be the first member
    if is_tar_header(head[:TAR_BLOCK]):
        return Detected("archive", "application/x-tar")
    for kind, magic, media_type in _MAGICS:
        if head.startswith(magic) and not (magic.isalnum() and _goes_on_as_text(head, len(magic))):
            if magic[:2] == b"PK" and suffix in _TABLES["office"]:
                return _package(_TABLES["office"][suffix])
            return Detected(kind, media_type)
    # readable text without the suffix of a PDF is probably about PDF
    is_about_pdf = suffix != ".pdf" and head.isascii() and _looks_like_text(head)
    if b"%PDF" in head[:PDF_MARK_WITHIN] and not is_about_pdf:
        return Detected("pdf", "application/pdf")
    riff_format = _TABLES["riff_formats"].get(head[8:12].decode("latin-1"))
    if head.startswith(b"RIFF") and riff_format:
        return Detected(*riff_format)
    # "BM" may be text: the four reserved bytes of a bitmap's header are zero
    if head.startswith(b"BM") and head[6:10] == b"\x00\x00\x00\x00":
        return Detected("image", "image/bmp")
    if head[4:8] == b"ftyp" and not _looks_like_text(head):
        return Detected("", _TABLES["file_brands"].get(head[8:12].decode("latin-1"), "video/mp4"))
    return None


def _goes_on_as_text(head: bytes, start: int) -> bool:
    """Return True if the letters of a magic are followed by text; in files of that format, by binary bytes."""
    return not any(byte in _CONTROL_BYTES for byte in head[start : start + 4]) and _looks_like_text(head)


def _readable(head: bytes) -> str:
    """Decode the head well enough for the patterns, all of which are ASCII."""
    wide = utf16_without_mark(head)
    if wide or head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return head.decode(wide or "utf-16", "replace").lstrip("\ufeff")
    return head.removeprefix(b"\xef\xbb\xbf").decode("latin-1")


def _by_markup(text: str, suffix: str) -> Detected | None:
    start = _skip_comments(text)
    if not start.startswith("<"):
        # text before the first tag is HTML only by its suffix
        return Detected("text", "text/html") if suffix in _SUFFIXES["html"] and _TAG.search(text) else None
    has_prolog = start.startswith("<?xml")
    if has_prolog:
        start = _skip_comments(start[start.find("?>") + 2 :] if "?>" in start else "")
    doctype, element = _DOCTYPE.match(start), _ELEMENT.match(start)
    root = (doctype or element)[1].lower() if doctype or element else ""  # type: ignore[index]
    is_template = suffix in _SUFFIXES["template"]
    if root == "html" and not is_template:
        return Detected("text", "application/xhtml+xml" if has_prolog else "text/html")
    if (has_prolog or (doctype and suffix not in _SUFFIXES["html"])) and not is_template:
        return Detected("text", "image/svg+xml" if root == "svg" else "application/xml")
    if suffix in _SUFFIXES["html"]:
        return Detected("text", "text/html")
    if suffix in _SUFFIXES["xml"] and element:
        return Detected("text", "image/svg+xml" if root == "svg" else "application/xml")
    return None


def _skip_comments(text: str) -> str:
    text = text.lstrip()
    while text.startswith("<!--") and "-->" in text:
        text = text[text.index("-->") + 3 :].lstrip()
    return text


def _by_json(text: str, suffix: str, whole: bool) -> Detected | None:
    start = text.lstrip()
    may_be = suffix in _SUFFIXES["json"] or suffix in _SUFFIXES["json_lines"] or suffix in (".ipynb", "", ".txt")
    if not start.startswith(("{", "[")) or not may_be:
        return Detected("text", "application/json") if suffix in _SUFFIXES["json"] else None
    if start[0] == "{" and (suffix == ".ipynb" or (_NOTEBOOK_CELL.search(start) and '"cells"' in start)):
        return Detected("code", "application/x-ipynb+json")
    line, _, rest = start.partition("\n")
    is_lines = suffix in _SUFFIXES["json_lines"] or (rest.lstrip().startswith("{") and _is_json(line))
    if start[0] == "{" and is_lines:
        return Detected("text", JSON_LINES)
    if suffix in _SUFFIXES["json"] or suffix == ".ipynb" or (whole and _is_json(start)):
        return Detected("text", "application/json")
    return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _by_headers(text: str, suffix: str) -> Detected | None:
    """Detect mails and mailboxes; without the suffix of a mail, only a transported message is one."""
    text = text.replace("\r\n", "\n")
    envelope = _ENVELOPE.match(text)
    headers = _MAIL_HEADERS.match(text, envelope.end() if envelope else 0)
    names = {name.lower() for name in _MAIL_NAMES.findall(headers[0])} if headers else set()
    transported = bool(names & {"received", "message-id", "return-path", "delivered-to"})
    is_mail = "from" in names and (transported or (len(names) > 1 and envelope))
    if suffix in (".patch", ".diff") or not (is_mail or (suffix == ".eml" and len(names) > 1)):
        return None
    return Detected("archive", MBOX if envelope else EML)


def _by_other_marks(text: str, suffix: str) -> Detected | None:
    """Detect RTF, PostScript, which is not read, and TeX without its suffix."""
    if text.startswith("{\\rtf"):
        return Detected("text", "application/rtf")
    if text.startswith("%!PS"):
        return Detected("", "application/postscript")
    if suffix in ("", ".cls", ".clo", ".def", ".ins", ".txt") and _TEX.search(text):
        return Detected("text", "text/x-tex")
    return None


def _by_language(text: str, suffix: str) -> Detected:
    """Return code if the suffix or the content gives a language, else text."""
    media_type = TEXT_TYPES.get(suffix)
    if media_type == "text/plain":
        language = _by_shebang(text)
    elif media_type:
        return Detected("text", media_type)
    else:
        language = LANGUAGES.get(suffix)
        if language is None and (suffix in SHARED_SUFFIXES or suffix == ""):
            fitting = (name for name, marks in _marks(suffix) if all(mark.search(text) for mark in marks))
            language = _by_shebang(text) or _by_mode_line(text) or next(fitting, None)
        language = language or _by_shebang(text)
    if language is None:
        return Detected("text", "text/plain")
    name = language.lower().replace("+", "p").replace("#", "sharp").replace(" ", "-")
    return Detected("code", f"text/x-{name}", language)


def _by_shebang(head: str) -> str | None:
    match = _SHEBANG.match(head[:300].split("\n", 1)[0])
    if match is None:
        return None
    name = match[1].lower()
    return SHEBANGS.get(name) or SHEBANGS.get(name.rstrip("0123456789"))


def _by_mode_line(head: str) -> str | None:
    first = "\n".join(line[:500] for line in head.split("\n", _MODE_LINES)[:_MODE_LINES])
    match = _EMACS_MODE.search(first) or _VIM_MODE.search(first)
    return KERNELS.get(match[1].lower()) if match else None


@cache
def _marks(suffix: str) -> list[tuple[str, list[re.Pattern[str]]]]:
    """Return the languages of a shared or missing suffix, each with patterns that must all match."""
    if suffix:
        found = {language: [mark] for language, mark in _TABLES["by_suffix"][suffix].items()}
    else:
        found = _TABLES["without_suffix"]
    return [(language, [_compiled(mark, language) for mark in marks]) for language, marks in found.items()]


def _compiled(mark: Any, language: str) -> re.Pattern[str]:
    if isinstance(mark, str):
        return re.compile(mark, re.MULTILINE)
    lines = _TABLES["marks"][language] if mark is True else mark
    return re.compile("^[ \t]{0,40}(?:" + "|".join(lines) + ")", re.MULTILINE)


def _look_into_zip(data: bytes) -> Detected:
    """Distinguish office documents and other packages from archives."""
    archive = Detected("archive", "application/zip")
    if data.count(b"PK\x01\x02") > _MOST_ENTRIES:
        return archive
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as package:
            names = {info.filename: info for info in package.infolist()}
            if _CONTENT_TYPES in names:
                with package.open(names[_CONTENT_TYPES]) as part:
                    types = part.read(1024 * 1024)
                found = next((media_type for mark, media_type in _TABLES["office_parts"] if mark.encode() in types), "")
                return _package(found) if found else archive
            if "mimetype" in names:
                with package.open(names["mimetype"]) as part:
                    stated = part.read(200).decode("ascii", "replace").strip()
                return _package(stated) if _MEDIA_TYPE.fullmatch(stated) else archive
    # a damaged archive: reading it reports the damage
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, ValueError, EOFError, zlib.error):
        return archive
    if "AndroidManifest.xml" in names:
        return Detected("", "application/vnd.android.package-archive")
    return Detected("archive", "application/java-archive") if "META-INF/MANIFEST.MF" in names else archive


def _package(media_type: str) -> Detected:
    return Detected("text" if media_type in _PACKAGES else "", media_type)


def _look_into_ole(data: bytes) -> str:
    streams = ((name.encode("utf-16-le"), media_type) for name, media_type in _TABLES["ole_streams"])
    return next((media_type for name, media_type in streams if name in data), "application/x-ole-storage")

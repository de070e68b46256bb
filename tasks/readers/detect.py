"""What a file is: kind, media type and programming language, told from its content and its suffix.

The content decides, the suffix only refines: a PDF named `.txt` is a PDF, a binary named `.txt` is not text, and a web
page saved as `.py` is a web page. The suffix names a programming language only where it is used for nothing else of
note; where several languages share one, marks in the text decide (`tasks.readers.markers`), since an unknown
language does less harm than a wrong one. The file's name plays no part: the same bytes under the same suffix are one
document, wherever they lie.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from dataclasses import dataclass, replace

from tasks.readers.archives import TAR_BLOCK, is_tar_header
from tasks.readers.decode import utf16_without_mark
from tasks.readers.languages import LANGUAGES, TEXT_TYPES
from tasks.readers.magics import ARCHIVES, BINARIES, FILE_BRANDS, IMAGES, SQLITE_MEDIA, TABLES
from tasks.readers.records import ExtractionProblem, ExtractOptions, Kind
from tasks.readers.rows import LINES, Table, document_column, line_columns

HEAD_BYTES = 8192  # How much of a file `detect` wants to see.
PDF_MARK_WITHIN = 1024  # Readers accept junk of this length before "%PDF-".
CONTAINERS = ("archive", "table")
JSON_LINES = "application/jsonl"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
ENCRYPTED_OFFICE = "application/vnd.ms-office.encrypted"

_OCTETS = "application/octet-stream"
_OFFICE_SUFFIXES = {
    ".docx": DOCX,
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".odt": "application/vnd.oasis.opendocument.text",
    ".epub": "application/epub+zip",
}
# Content types of a package's main part, as they stand in its "[Content_Types].xml".
_OFFICE_PARTS = (
    (b"wordprocessingml.document.main+xml", DOCX),
    (b"ms-word.document.macroEnabled.main+xml", "application/vnd.ms-word.document.macroenabled.12"),
    (b"wordprocessingml.template.main+xml", "application/vnd.openxmlformats-officedocument.wordprocessingml.template"),
    (b"spreadsheetml.sheet.main+xml", _OFFICE_SUFFIXES[".xlsx"]),
    (b"ms-excel.sheet.macroEnabled.main+xml", "application/vnd.ms-excel.sheet.macroenabled.12"),
    (b"presentationml.presentation.main+xml", _OFFICE_SUFFIXES[".pptx"]),
    (b"presentationml.slideshow.main+xml", "application/vnd.openxmlformats-officedocument.presentationml.slideshow"),
)
# Names of the streams of older Office documents.
_OLE_STREAMS = (
    ("EncryptedPackage", ENCRYPTED_OFFICE),
    ("WordDocument", "application/msword"),
    ("PowerPoint Document", "application/vnd.ms-powerpoint"),
    ("Workbook", "application/vnd.ms-excel"),
    ("__nameid_version1.0", "application/vnd.ms-outlook"),
)
_CONTENT_TYPES = "[Content_Types].xml"
_MOST_ENTRIES = 200_000  # A ZIP that lists more is not looked into to learn what it is.
_MEDIA_TYPE = re.compile(r"[a-z]{1,40}/[A-Za-z0-9.+-]{1,100}")


def _words(names: str) -> frozenset[str]:
    """Names between spaces, as a set."""
    return frozenset(names.split())


# Suffixes of templates, which begin like the page that they become.
_TEMPLATES = _words(
    ".cfm .eex .erb .ejs .handlebars .hbs .heex .j2 .jinja .jinja2 .jsp .liquid .mustache .php .php5 .phtml .razor "
    ".svelte .twig .vue .asp .aspx .cshtml .ftl .mako .tpl .tmpl"
)
_HTML_SUFFIXES = frozenset((".htm", ".html", ".shtml", ".xht", ".xhtml"))
_JSON_SUFFIXES = frozenset((".har", ".json", ".json5", ".jsonc", ".jsonld", ".map", ".topojson", ".webmanifest"))
_JSON_LINES_SUFFIXES = frozenset((".jsonl", ".jsonlines", ".ndjson"))
_XML_SUFFIXES = _words(
    ".atom .axaml .csproj .dbk .dita .docbook .fb2 .fodt .gpx .iml .jats .kml .nuspec .nxml .opml .plist .pom .props "
    ".rdf .resx .rng .rss .storyboard .svg .targets .tei .tmx .ttml .ui .vbproj .vcxproj .wsdl .xaml .xib .xlf .xliff "
    ".xmi .xml .xsd .xsl .xslt"
)
_TAG = re.compile(r"<[A-Za-z!/]")
_ELEMENT = re.compile(r"<([A-Za-z_][\w:.-]{0,100})[\s>/]")
_DOCTYPE = re.compile(r"<!doctype\s{1,20}([\w:.-]{1,100})", re.IGNORECASE)
_TEX = re.compile(r"^[ \t]{0,20}\\(?:documentclass|documentstyle|NeedsTeXFormat|ProvidesClass|ProvidesPackage)\b", re.M)
_NOTEBOOK_CELL = re.compile(r"\"(?:cell_type|nbformat|nbformat_minor)\"\s{0,20}:")
_CONTROL_BYTES = bytes(set(range(32)) - set(b"\t\n\r\f\x08\x1b"))
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


@dataclass(frozen=True, slots=True)
class Detected:
    """What a file is.

    Attributes:
        kind: "pdf", "image", "code" or "text"; "archive" or "table" for a container; empty for anything else.
        media_type: For example "text/markdown"; "application/octet-stream" when unknown. It names the extractor, too.
        programming_language: Its name, or None; code without a known language is of kind "text".
    """

    kind: Kind
    media_type: str
    programming_language: str | None = None


def identify(data: bytes, suffix: str, options: ExtractOptions) -> Detected:
    """Tell what a whole file is, where its first bytes are not enough: what lies in a package, whether rows hold text.

    Args:
        data: The whole file.
        suffix: Its suffix with the dot, in any case; empty if it has none.
        options: What makes a table of documents.

    Returns:
        The kind, media type and programming language. Whatever is of the kind "archive" or "table" can be read as one.
    """
    detected = detect(data[:HEAD_BYTES], len(data), suffix)
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _look_into_zip(data)
    if detected.media_type == "application/x-ole-storage":
        return replace(detected, media_type=_look_into_ole(data))
    if detected.media_type == JSON_LINES and _holds_documents(data, options):
        return replace(detected, kind="table")
    if detected.media_type == SQLITE_MEDIA and not options.sqlite_query:
        return replace(detected, kind="")
    return detected


def _holds_documents(data: bytes, options: ExtractOptions) -> bool:
    """Whether the first lines of a file of JSON Lines have a column that holds documents."""
    try:
        return document_column(line_columns(Table(data, LINES)), options.table_columns) is not None
    except ExtractionProblem:
        return False


def detect(head: bytes, data_len: int, suffix: str) -> Detected:
    """Tell what a file is by its beginning.

    Args:
        head: Its first `HEAD_BYTES` bytes (or all of it).
        data_len: Its length in bytes.
        suffix: Its suffix with the dot, in any case; empty if it has none.

    Returns:
        The kind, media type and programming language.
    """
    head = head[:HEAD_BYTES]
    suffix = suffix.lower()
    whole = data_len <= len(head)
    binary = _by_magic(head, suffix)
    if binary:
        return binary
    if not looks_like_text(head, whole):
        is_stream = head[:1] == head[188:189] == head[376:377] == b"\x47"
        return Detected("", "video/mp2t" if is_stream else _OCTETS)
    text = _readable(head)
    marked = _by_markup(text, suffix) or _by_json(text, suffix, whole) or _by_other_marks(text, suffix)
    return marked or _by_language(text, suffix)


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
    if head.startswith(b"%PDF"):
        return Detected("pdf", "application/pdf")
    # Ahead of a PDF further on, which may be the first member.
    if is_tar_header(head[:TAR_BLOCK]):
        return Detected("archive", "application/x-tar")
    for kind, magics in (("archive", ARCHIVES), ("image", IMAGES), ("table", TABLES), ("", BINARIES)):
        for magic, media_type in magics:
            if head.startswith(magic) and not (magic.isalnum() and _goes_on_as_text(head, len(magic))):
                if magic[:2] == b"PK" and suffix in _OFFICE_SUFFIXES:
                    media_type = _OFFICE_SUFFIXES[suffix]
                    kind = "text" if media_type == DOCX else ""
                return Detected(kind, media_type)  # type: ignore[arg-type]
    if b"%PDF" in head[:PDF_MARK_WITHIN] and not _is_plain_ascii(head, suffix):
        return Detected("pdf", "application/pdf")
    if head.startswith(b"RIFF") and head[8:12] in (b"WEBP", b"WAVE", b"AVI "):
        if head[8:12] == b"WEBP":
            return Detected("image", "image/webp")
        return Detected("", "audio/wav" if head[8:12] == b"WAVE" else "video/x-msvideo")
    # "BM" also begins words: the four reserved bytes of a bitmap's header are zero.
    if head.startswith(b"BM") and head[6:10] == b"\x00\x00\x00\x00":
        return Detected("image", "image/bmp")
    if head[4:8] == b"ftyp" and not looks_like_text(head, whole=False):
        return Detected("", FILE_BRANDS.get(head[8:12], "video/mp4"))
    return None


def _goes_on_as_text(head: bytes, start: int) -> bool:
    """Whether the letters of a magic are only the beginning of a text.

    What follows them in a file of that format is binary at once, though the rest may be mostly text.
    """
    return not any(byte in _CONTROL_BYTES for byte in head[start : start + 4]) and looks_like_text(head, whole=False)


def _is_plain_ascii(head: bytes, suffix: str) -> bool:
    """Whether "%PDF" after other things is probably talk about PDF: readable, and not named as one."""
    return suffix != ".pdf" and head.isascii() and looks_like_text(head, whole=False)


def _readable(head: bytes) -> str:
    """The head as text, as far as marks go, all of which are ASCII."""
    wide = utf16_without_mark(head)
    if wide or head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return head.decode(wide or "utf-16", "replace").lstrip("\ufeff")
    return head.removeprefix(b"\xef\xbb\xbf").decode("latin-1")


def _by_markup(text: str, suffix: str) -> Detected | None:
    """HTML and XML, by their first elements."""
    start = _skip_comments(text)
    if not start.startswith("<"):
        # Text before the first tag is a fragment of a page only if it is named as one.
        return Detected("text", "text/html") if suffix in _HTML_SUFFIXES and _TAG.search(text) else None
    has_prolog = start.startswith("<?xml")
    if has_prolog:
        start = _skip_comments(start[start.find("?>") + 2 :] if "?>" in start else "")
    doctype, element = _DOCTYPE.match(start), _ELEMENT.match(start)
    root = (doctype or element)[1].lower() if doctype or element else ""  # type: ignore[index]
    is_template = suffix in _TEMPLATES
    if root == "html" and not is_template:
        return Detected("text", "application/xhtml+xml" if has_prolog else "text/html")
    if (has_prolog or (doctype and suffix not in _HTML_SUFFIXES)) and not is_template:
        return Detected("text", "image/svg+xml" if root == "svg" else "application/xml")
    if suffix in _HTML_SUFFIXES:
        return Detected("text", "text/html")
    if suffix in _XML_SUFFIXES and element:
        return Detected("text", "image/svg+xml" if root == "svg" else "application/xml")
    return None


def _skip_comments(text: str) -> str:
    text = text.lstrip()
    while text.startswith("<!--") and "-->" in text:
        text = text[text.index("-->") + 3 :].lstrip()
    return text


def _by_json(text: str, suffix: str, whole: bool) -> Detected | None:
    """Notebooks, JSON Lines and JSON."""
    start = text.lstrip()
    may_be = suffix in _JSON_SUFFIXES or suffix in _JSON_LINES_SUFFIXES or suffix in (".ipynb", "", ".txt")
    if not start.startswith(("{", "[")) or not may_be:
        return Detected("text", "application/json") if suffix in _JSON_SUFFIXES else None
    if start[0] == "{" and (suffix == ".ipynb" or (_NOTEBOOK_CELL.search(start) and '"cells"' in start)):
        return Detected("code", "application/x-ipynb+json")
    if start[0] == "{" and (suffix in _JSON_LINES_SUFFIXES or _is_json_lines(start)):
        return Detected("text", JSON_LINES)
    if suffix in _JSON_SUFFIXES or suffix == ".ipynb" or (whole and _is_json(start)):
        return Detected("text", "application/json")
    return None


def _is_json_lines(text: str) -> bool:
    """Whether the first line is a whole object, and the next begins like one."""
    line, _, rest = text.partition("\n")
    return rest.lstrip().startswith("{") and _is_json(line)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _by_other_marks(text: str, suffix: str) -> Detected | None:
    """Formats that are text, but not to be read, and TeX without its suffix."""
    if text.startswith("{\\rtf"):
        return Detected("", "application/rtf")
    if text.startswith("%!PS"):
        return Detected("", "application/postscript")
    if suffix in ("", ".cls", ".clo", ".def", ".ins", ".txt") and _TEX.search(text):
        return Detected("text", "text/x-tex")
    return None


def _by_language(text: str, suffix: str) -> Detected:
    """Code where the suffix or the content names a language, else text."""
    # only here: compiling its patterns is a notable part of a process's start, and PDFs never ask for them
    from tasks.readers.markers import AMBIGUOUS, by_shebang, language_by_content

    media_type = TEXT_TYPES.get(suffix)
    if media_type == "text/plain":
        language = by_shebang(text)
    elif media_type:
        return Detected("text", media_type)
    else:
        language = LANGUAGES.get(suffix)
        if language is None and (suffix in AMBIGUOUS or suffix == ""):
            language = language_by_content(text, suffix)
        language = language or by_shebang(text)
    if language:
        return Detected("code", _code_media_type(language), language)
    return Detected("text", "text/plain")


def _code_media_type(language: str) -> str:
    """A media type for source code, for example "text/x-python"."""
    return "text/x-" + language.lower().replace("+", "p").replace("#", "sharp").replace(" ", "-")


def _look_into_zip(data: bytes) -> Detected:
    """What a ZIP is: a document in a package, or an archive."""
    archive = Detected("archive", "application/zip")
    if data.count(b"PK\x01\x02") > _MOST_ENTRIES:
        return archive
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as package:
            names = {info.filename: info for info in package.infolist()}
            if _CONTENT_TYPES in names:
                with package.open(names[_CONTENT_TYPES]) as part:
                    types = part.read(1024 * 1024)
                found = next((media_type for mark, media_type in _OFFICE_PARTS if mark in types), "")
                return Detected("text" if found == DOCX else "", found) if found else archive
            if "mimetype" in names:
                with package.open(names["mimetype"]) as part:
                    stated = part.read(200).decode("ascii", "replace").strip()
                return Detected("", stated) if _MEDIA_TYPE.fullmatch(stated) else archive
    # A damaged archive is still one; reading it will say what is wrong.
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, ValueError, EOFError, zlib.error):
        return archive
    if "AndroidManifest.xml" in names:
        return Detected("", "application/vnd.android.package-archive")
    return Detected("archive", "application/java-archive") if "META-INF/MANIFEST.MF" in names else archive


def _look_into_ole(data: bytes) -> str:
    """The media type of an older Office document, by the names of its streams."""
    for name, media_type in _OLE_STREAMS:
        if name.encode("utf-16-le") in data:
            return media_type
    return "application/x-ole-storage"

"""Folders of documents for measurements of training: prose, manuals and code that Debian and Python install.

Documents are read in the order of the digest of their content, one kind after the other by bytes, so that the choice
depends on the installed packages only and a larger corpus contains a smaller one. The first ones are held out for
validation. A document of which most lines occurred in earlier ones is left out (licences, generated text, versions of a
file), and so are the documents of a package that would have more than a tenth of its kind.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

Paths = Callable[[], Iterator[Path]]

LEAST_BYTES, MOST_BYTES = 1_000, 16_384  # of a document; a longer one ends at the last line that fits
LARGEST_FILE = 2**21
GROUP_SHARE, GROUP_BYTES = 0.1, 5_000  # a package has at most this share of its kind, and these bytes in any case
SEEN_SHARE = 0.5  # of a document's lines, from which it counts as a copy
VALIDATION = (150_000, 200_000)  # fewest and most bytes; between them 5 % of the corpus
CONTENTS = "contents.txt"  # file with the bytes of each kind

_DOC, _MAN, _INFO = Path("/usr/share/doc"), Path("/usr/share/man"), Path("/usr/share/info")
_PROSE = {"", ".txt", ".md", ".rst", ".Debian", ".adoc", ".org"}
_LEFT_OUT = re.compile(r"(?i)changelog|changes|history|news|copyright|copying|licen[cs]e|record$|requirements")
_DEFINITION = re.compile(r"^\.\s*(?:de|ig)\b.*?^\.\.$\n?", re.M | re.S)
_KEPT_MACROS = re.compile(
    r"^\.\s*(?:SH|SS|B|I|SM|BR|BI|IB|IR|RB|RI|IP|TP|Sh|Ss|Nm|Nd|It|Fl|Ar|Op|Xr|Dq|Pa|Li|Cm|Em|Sy|Va|Ev)\b *(.*)$"
)
_ESCAPES = (
    (re.compile(r'\\".*'), ""),
    (re.compile(r"\\f(?:\[\w*\]|\(\w\w|.)"), ""),
    (re.compile(r"\\s[-+]?\d"), ""),
    (re.compile(r"\\\((?:aq|cq|oq)|\\\[(?:aq|cq|oq)\]"), "'"),
    (re.compile(r"\\\((?:lq|rq|dq)|\\\[(?:lq|rq|dq)\]|\\\*\(C\+|\\\*\([LR]\""), '"'),
    (re.compile(r"\\\((?:em|en|hy|mi)|\\\[(?:em|en|hy|mi)\]|\\-"), "-"),
    (re.compile(r"\\\(bu|\\\[bu\]"), "*"),
    (re.compile(r"\\[&|^/,:%c]"), ""),
    (re.compile(r"\\[~ 0]"), " "),
    (re.compile(r"\\e|\\\(rs|\\\[rs\]"), r"\\"),
)


def corpus(megabytes: float, folder: Path, kinds: Mapping[str, Paths] | None = None) -> tuple[list[str], list[str]]:
    """Write a corpus into `folder`, unless it is there; returns the texts for training and for validation.

    The files are in the folders `train` and `validation`, each of which `sheepfold run` can read.

    Args:
        megabytes: size of the training text.
        kinds: files of each kind of document; None means those of Debian and Python.

    Raises:
        RuntimeError: there is too little text on this machine.
    """
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / folder.name
            _write(megabytes, made, INSTALLED if kinds is None else kinds)
            made.rename(folder)
    return read(folder)


def read(folder: Path) -> tuple[list[str], list[str]]:
    """Return the texts below `train` and `validation`, in the order of their paths."""
    parts = ((folder / name).rglob("*") for name in ("train", "validation"))
    train, held = ([path.read_text(encoding="utf-8") for path in sorted(part) if path.is_file()] for part in parts)
    return train, held


def _write(megabytes: float, folder: Path, kinds: Mapping[str, Paths]) -> None:
    wanted = round(megabytes * 1e6)
    held = min(max(VALIDATION[0], wanted // 20), VALIDATION[1])
    sizes = {"validation": 0, "train": 0}
    by_kind = dict.fromkeys(kinds, 0)
    for kind, path, text in _documents(kinds):
        part = "validation" if sizes["validation"] < held else "train"
        data = text.encode()
        suffix = ".py" if kind == "code" else ".txt"
        target = folder / part / kind / f"{hashlib.sha256(data).hexdigest()[:12]}-{_plain(path.stem)}{suffix}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        sizes[part] += len(data)
        by_kind[kind] += len(data)
        if sizes["train"] >= wanted:
            break
    found = ", ".join(f"{size / 1e6:.2f} MB of {kind}" for kind, size in by_kind.items())
    if sizes["train"] < wanted:
        raise RuntimeError(f"this machine has {found}; expected {wanted / 1e6:g} MB and {held:,} bytes for validation")
    (folder / CONTENTS).write_text(f"{found}; {sizes}\n", encoding="utf-8")


def _plain(name: str) -> str:
    return re.sub(r"[^\w-]+", "-", name)[:40]


def _documents(kinds: Mapping[str, Paths]) -> Iterator[tuple[str, Path, str]]:
    """Yield kind, path and text of each document, next one of the kind with the fewest bytes so far."""
    seen: set[int] = set()
    queues = {kind: _ordered(list(paths())) for kind, paths in kinds.items()}
    taken, of_group = dict.fromkeys(kinds, 0), Counter[tuple[str, str]]()
    while queues:
        kind = min(queues, key=lambda name: taken[name])
        for path in queues[kind]:
            group = (kind, _package(path))
            if of_group[group] > GROUP_SHARE * taken[kind] + GROUP_BYTES:
                continue
            text = _text(path)
            if text is not None and not _is_copy(text, seen):
                size = len(text.encode())
                taken[kind] += size
                of_group[group] += size
                yield kind, path, text
                break
        else:
            del queues[kind]


def _package(path: Path) -> str:
    """Return the package of a file: the folder below one of packages, else its own, or the first word of a manual."""
    if _MAN in path.parents:
        return re.split(r"[\W_]", path.name)[0]
    parts = path.parent.parts
    places = [place for place, name in enumerate(parts) if name in ("doc", "site-packages", "dist-packages")]
    return "/".join(parts[: places[-1] + 2] if places else parts)


def _ordered(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the files in the order of the digests of their beginnings, equal ones once."""
    found: dict[bytes, Path] = {}
    for path in sorted(paths):
        head = _head(path)
        if len(head) >= LEAST_BYTES:
            found.setdefault(hashlib.sha256(head).digest(), path)
    yield from (found[digest] for digest in sorted(found))


def _head(path: Path) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(2 * MOST_BYTES)
    except (OSError, EOFError):
        return b""


def _text(path: Path) -> str | None:
    """Return the text of a file; None if it is too short or no text."""
    head = _head(path)
    try:
        text = head[: head.rfind(b"\n") + 1].decode()
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    if _MAN in path.parents:
        text = manual_text(text)
    text = text.replace("\r\n", "\n")
    data = text.encode()[:MOST_BYTES]
    if len(data) == MOST_BYTES:
        data = data[: data.rfind(b"\n") + 1]
    return data.decode() if len(data) >= LEAST_BYTES else None


def manual_text(source: str) -> str:
    """Return a manual page without macros and escapes of roff."""
    lines = []
    for line in _DEFINITION.sub("", source).splitlines():
        if line.startswith((".", "'")):
            macro = _KEPT_MACROS.match(line)
            if macro is None:
                continue
            line = macro[1].replace('"', "")
        for pattern, by in _ESCAPES:
            line = pattern.sub(by, line)
        lines.append(line.rstrip())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def _is_copy(text: str, seen: set[int]) -> bool:
    """Return True if most lines are in `seen`, else add them; lines are compared by their hashes."""
    lines = {_digest(line.strip()) for line in text.splitlines() if len(line.strip()) > 15}
    if not lines or len(lines & seen) > SEEN_SHARE * len(lines):
        return True
    seen |= lines
    return False


def _digest(line: str) -> int:
    return int.from_bytes(hashlib.blake2b(line.encode(), digest_size=8).digest(), "little")


def _files(root: Path) -> Iterator[Path]:
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink() and LEAST_BYTES // 5 < path.stat().st_size < LARGEST_FILE:
            yield path


def _python_files(suffixes: set[str]) -> Iterator[Path]:
    for root in {Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib", "platlib")}:
        yield from (path for path in _files(root) if path.suffix in suffixes and not _LEFT_OUT.search(path.name))


def _prose() -> Iterator[Path]:
    for path in _files(_DOC):
        suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
        if suffix in _PROSE and not _LEFT_OUT.search(path.name):
            yield path
    yield from _python_files({".txt", ".md", ".rst"})


def _manuals() -> Iterator[Path]:
    for section in sorted(_MAN.glob("man[1-9]*")):
        yield from _files(section)
    yield from (path for path in _files(_INFO) if path.suffix == ".gz" or path.suffix == ".info")


INSTALLED: dict[str, Paths] = {"prose": _prose, "manuals": _manuals, "code": lambda: _python_files({".py"})}


if __name__ == "__main__":
    corpus(float(sys.argv[1]), Path(sys.argv[2]))
    print((Path(sys.argv[2]) / CONTENTS).read_text(encoding="utf-8"), end="")

"""Text for benchmarks: source code and documentation of the installed packages, each document once.

Text is not repeated, because encoders cache words, and not synthetic, because random words are not realistic. Every
installation has these packages; figures depend slightly on their versions.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = frozenset({".py", ".pyi", ".md", ".rst", ".txt", ".json", ".h", ".hpp", ".js", ".html", ".css", ".yaml"})
MAX_CHARS = 20_000  # of one document; longer files give several


def documents(n_bytes: int) -> Iterator[str]:
    """Yield distinct documents of at most 20,000 characters, about `n_bytes` of UTF-8 in total.

    Raises:
        RuntimeError: if the installed packages have less text.
    """
    seen: set[bytes] = set()
    left = n_bytes
    for path in _files():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        for start in range(0, len(text), MAX_CHARS):
            part = text[start : start + MAX_CHARS]
            digest = hashlib.sha256(part.encode()).digest()
            if len(part) < 200 or digest in seen:
                continue
            seen.add(digest)
            yield part
            left -= len(part.encode())
            if left <= 0:
                return
    raise RuntimeError(f"the installed packages hold {n_bytes - left:,} bytes of text, {n_bytes:,} were asked for")


def _files() -> Iterator[Path]:
    """Yield files of the standard library and the installed packages, ordered by the digest of their names."""
    roots = {Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib", "platlib")}
    found = {path for root in roots for path in root.rglob("*") if path.suffix in SUFFIXES and path.is_file()}
    yield from sorted(found, key=lambda path: hashlib.sha256(str(path).encode()).digest())

"""What containers are made of: entries, the limits on unpacking them, and the names under which they are known.

Archives and tables both turn into a sequence of `Entry`. An entry's locator is its path inside the container, or
its row number, in a form that is unique there, is valid UTF-8, and climbs nowhere if somebody should join it to a
folder.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from io import BytesIO
from typing import IO

from tasks.readers.records import ExtractionProblem, ExtractOptions
from tasks.sources.folder import encode_path

CHUNK_BYTES = 1024 * 1024
LONGEST_LOCATOR = 2048  # Characters; formats allow names of 64 KiB and more.

_SEPARATORS = re.compile(r"[/\\]+")
_DRIVE = re.compile(r"[A-Za-z]:")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a container.

    Attributes:
        locator: Its place inside the container, unique there.
        data: Its bytes, for the entry of an archive.
        text: Its text, for the row of a table; None for the entry of an archive.
        suffix: The suffix of its name, with the dot and in lower case, or "".
        problem: Why it could not be read; then there are neither bytes nor text.
    """

    locator: str
    data: bytes = b""
    text: str | None = None
    suffix: str = ""
    problem: ExtractionProblem | None = None


class Budget:
    """How much one file may still unpack to, over all its entries and all archives inside it.

    What counts is what comes out of the decompressor. Sizes that an archive declares are never trusted.

    Args:
        options: Their `archive_max_bytes` is the whole, their `max_file_bytes` the most that one entry may take.
    """

    def __init__(self, options: ExtractOptions) -> None:
        self._total = self._left = options.archive_max_bytes
        self._entry_bytes = options.max_file_bytes

    @property
    def spent(self) -> bool:
        """Whether nothing more may be unpacked."""
        return self._left < 0

    def take(self, n_bytes: int) -> None:
        """Book unpacked bytes.

        Args:
            n_bytes: How many came out.

        Raises:
            ExtractionProblem: That is more than there was left ("too_large"); from now on the budget is `spent`.
        """
        self._left -= n_bytes
        if self.spent:
            raise ExtractionProblem(
                "rejected",
                "too_large",
                f"unpacking stopped: the members so far come to more than {self._total} bytes (archive_max_bytes)",
            )

    def read(self, stream: IO[bytes], chunk_bytes: int = CHUNK_BYTES, booked: bool = False) -> bytes:
        """Read one entry to its end.

        Args:
            stream: The entry.
            chunk_bytes: How much to ask for at a time.
            booked: Whether the stream books by itself what comes out of it.

        Returns:
            Its bytes.

        Raises:
            ExtractionProblem: The entry or all entries together are too large; nothing more was decompressed then.
        """
        whole = BytesIO()
        while chunk := stream.read(chunk_bytes):
            if not booked:
                self.take(len(chunk))
            if whole.tell() + len(chunk) > self._entry_bytes:
                raise self.too_large()
            whole.write(chunk)
        return whole.getvalue()

    def too_large(self) -> ExtractionProblem:
        """Return the problem of an entry that is larger than a file may be."""
        reason = f"the member unpacks to more than {self._entry_bytes} bytes (max_file_bytes)"
        return ExtractionProblem("rejected", "too_large", reason)


class Locators:
    """Give each entry of a container a locator of its own, and each member of a file one over all its containers."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def of(self, name: str) -> str:
        """Return the locator of the next entry with this name; an entry of the same name again gets a number."""
        return self.unique(_encode_name(name))

    def unique(self, locator: str) -> str:
        """Return the locator itself, or with the first free number if something else had it before."""
        found = locator
        while found in self._seen:
            # Counted on from the last one given: entries of one name must not take more steps the more they are.
            number = self._seen[locator] = self._seen[locator] + 1
            found = numbered(locator, number)
        self._seen[found] = 1
        return found


def numbered(locator: str, number: int) -> str:
    """Return a locator with a number; no name can look like it, since "%" in names is itself encoded."""
    return f"{locator}%23{number}"


def suffix_of(name: str) -> str:
    """Return the suffix of an entry's name, by the same rules as that of a file: in lower case, with the dot."""
    last = _SEPARATORS.split(name)[-1]
    stem, dot, suffix = last.rpartition(".")
    return encode_path(f".{suffix}".lower()) if dot and suffix and stem.strip(".") else ""


def unsafe_name(name: str) -> str:
    """Tell whether a name would lead out of the folder that the archive is unpacked in.

    Args:
        name: The name in the archive.

    Returns:
        What is wrong with it; empty if nothing is.
    """
    if _DRIVE.match(name):
        return "its name begins with a drive letter"
    parts = _SEPARATORS.split(name)
    if len(parts) > 1 and not parts[0]:
        return "its name is an absolute path"
    if ".." in parts:
        return 'its name climbs out of the archive with ".."'
    return ""


def _encode_name(name: str) -> str:
    """A name as a locator: no empty or "." parts, nothing that climbs, no more than a sane length."""
    if unsafe_name(name):
        encoded = encode_path(name).replace("..", "%2E%2E").replace(":", "%3A")
        if encoded.startswith(("/", "\\")):
            encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    else:
        encoded = encode_path("/".join(part for part in name.split("/") if part not in ("", ".")))
    # A name may hold any half of a surrogate pair, or nothing at all.
    encoded = encoded.encode("utf-8", "replace").decode("utf-8")
    if len(encoded) > LONGEST_LOCATOR:
        digest = hashlib.sha256(encoded.encode("utf-8")).hexdigest()
        encoded = f"{encoded[: LONGEST_LOCATOR // 2]}%23{digest}"
    return encoded or "%23"

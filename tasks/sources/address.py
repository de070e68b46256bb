"""Addresses of the sources of a corpus.

A source is written as

    docs                                     a folder or a file; relative paths start at the base
    docs/**/*.pdf                            files of a folder, `*` and `?` stand for parts of a name, `**` for folders
    file:///srv/docs                         the same as /srv/docs; %20 stands for a space
    git+/srv/project@v1.2                    a git repository at a branch, tag or commit; without @, at its HEAD
    git+https://host/project.git@main#subdir=docs      the same from a server (http, https, ssh, git, file), one folder
    /srv/project.git                         a bare repository, at its HEAD
    s3://bucket/prefix                       objects of a bucket; also s3://bucket/docs/*.pdf; %23 stands for #
    s3://bucket/prefix?endpoint_override=host:9000&scheme=http      with options of pyarrow
    documents:corpus                         any of these, where the rows of Parquet and JSON Lines are the documents

Credentials come from the environment, git's credential helpers or the ssh agent, never from an address: addresses are
stored with deployments and rows. A branch or a prefix is resolved anew by each listing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import re2
from pydantic.dataclasses import dataclass as pydantic_dataclass

from storage.errors import UserError
from tasks.core.option import STRICT, option
from tasks.sources.folder import Filters, FolderSource, WalkedFile
from tasks.sources.git import GitSource
from tasks.sources.ignore import Patterns
from tasks.sources.objects import ObjectSource

DOCUMENTS = "documents:"
DATE = r"\d{4}(-\d{2}){0,2}"  # a year, or with month and day
_WILDCARDS = frozenset("*?[")
_GIT_SCHEMES = frozenset({"file", "git", "http", "https", "ssh"})
_SSH = frozenset({"ssh", "git+ssh"})  # addresses may name a user, without a password
_PASSWORD = re.compile(r"([^/:@\s]+:)[^/@\s]+@")  # in an address without a scheme


@pydantic_dataclass(frozen=True, config=STRICT)
class WalkSettings:
    """Selection of files within the sources. A file that is itself a source is always selected."""

    include: str = option(
        "",
        "Patterns of the files to read, as in a .gitignore, one per line or separated by commas, matched from "
        "each source's top; empty reads every file.",
    )
    exclude: str = option("", "Patterns of files and folders to leave out, written alike.")
    respect_gitignore: bool = option(
        True,
        "Leave out what the .gitignore files of a git work tree name, tracked files included; .git/info/exclude "
        "and files above the source do not count.",
    )
    date_pattern: str = option(
        "",
        r"Regular expression whose first group is the date in a path, such as `(\d{4})/`: a year, or year, month and "
        "day with hyphens. `policy.before` and `policy.after` refuse by date.",
    )
    metadata: str = option(
        "",
        "CSV file with the columns `path` (as in the view `files`), and `date`, `title` or both, which go before "
        "the pattern and the titles in the files.",
    )

    def __post_init__(self) -> None:
        try:
            groups = re2.compile(self.date_pattern).groups  # as DuckDB, which applies it, has RE2
        except re2.error as error:
            raise ValueError(f"sources.date_pattern is no regular expression: {error}") from None
        if self.date_pattern and not groups:
            raise ValueError(f"sources.date_pattern {self.date_pattern!r} has no group: put the date in parentheses")

    def filters(self) -> Filters:
        """Return the settings with compiled patterns; raises UserError for a malformed one."""
        return Filters(_patterns("include", self.include), _patterns("exclude", self.exclude), self.respect_gitignore)


class Source(Protocol):
    """A set of files. `str(source)` is its canonical address, which resolves to an equal source."""

    @property
    def name(self) -> str:
        """Return the first component of its paths, which is used if there are several sources."""

    def rows(self, label: str, filters: Filters, excluded: frozenset[str], cache: Path) -> Iterator[WalkedFile | None]:
        """Yield one row per path, with None for each path that patterns exclude.

        Args:
            label: First component of the paths, encoded; "" for none.
            filters: Selection of the paths.
            excluded: Absolute paths of folders to skip without a row.
            cache: Folder for downloads.

        Raises:
            UserError: The source cannot be read.
        """


@dataclass(frozen=True)
class DocumentsSource:
    """Files of another source whose rows are documents, which are imported without extraction.

    Attributes:
        files: Source of the Parquet or JSON Lines files: a file, a folder, a pattern, a bucket, a repository.
    """

    files: Source

    def __str__(self) -> str:
        return f"{DOCUMENTS}{self.files}"

    @property
    def name(self) -> str:
        """Return the name of the source of the files."""
        return self.files.name

    def rows(self, label: str, filters: Filters, excluded: frozenset[str], cache: Path) -> Iterator[WalkedFile | None]:
        """Yield the rows of the files' source with the prefix `documents:`, without a size limit: rows are streamed."""
        for row in self.files.rows(label, replace(filters, max_bytes=None), excluded, cache):
            yield row and replace(row, source=f"{DOCUMENTS}{row.source}")


def is_corpus(source: str) -> bool:
    """Return True if the rows of the files of a source are documents."""
    return source.startswith(DOCUMENTS)


def resolve_sources(sources: Iterable[str], base: Path | None = None) -> list[Source]:
    """Resolve the addresses of sources; the docstring of this module lists their forms.

    Args:
        sources: Addresses; a string may hold several, one per line.
        base: Folder of relative paths; by default the current folder.

    Returns:
        Each source once, in the order given.

    Raises:
        UserError: There is no address, one is malformed, or a path does not exist. Servers are not contacted.
    """
    lines = [line.strip() for source in sources for line in source.splitlines() if line.strip()]
    if not lines:
        raise UserError("no source given: name at least one folder or file with documents")
    start = (base or Path.cwd()).expanduser().resolve()
    return list({str(found): found for found in (_resolve(line, start) for line in lines)}.values())


def _resolve(text: str, base: Path) -> Source:
    if is_corpus(text):
        return DocumentsSource(_resolve(text.removeprefix(DOCUMENTS).strip(), base))
    _refuse_credentials(text)
    if text.startswith("git+"):
        return _git_source(text.removeprefix("git+"), base)
    scheme, has_scheme, _ = text.partition("://")
    if not has_scheme or "/" in scheme:
        return _local_source(text, base)
    if scheme == "s3":
        return _object_source(text)
    if scheme == "file":
        return _local_source(_file_path(text), base)
    if scheme in _GIT_SCHEMES:
        raise UserError(f"source {text!r}: write git+{text} for a git repository; web pages are not read")
    raise UserError(f"source {text!r}: {scheme}:// is not supported; use a path, file://, git+... or s3://")


def _refuse_credentials(text: str) -> None:
    """Raise UserError for an address with credentials, before it is logged or stored."""
    scheme, has_scheme, rest = text.partition("://")
    if not has_scheme or "/" in scheme:
        return
    user, at, host = re.split("[/?#]", rest, maxsplit=1)[0].rpartition("@")
    port = host.rpartition(":")[2] if ":" in host and not host.endswith("]") else ""  # not of an IPv6 address, [::1]
    cut = bool(port.strip("0123456789"))  # the "host" is a user and the part of a password before its slash
    if cut or (at and (":" in user or scheme not in _SSH)):
        shown = "" if cut else host
        raise UserError(
            f"source {scheme}://...@{shown}: the address holds credentials, which would be stored with every row; "
            "leave them to git's credential helper, to ssh, or to AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )


def _mask_password(text: str) -> str:
    return _PASSWORD.sub(r"\1***@", text)


def _file_path(text: str) -> str:
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not parts.path or parts.query or parts.fragment:
        raise UserError(f"source {text!r}: write file:///absolute/path, with %3F for ? and %23 for #")
    return unquote(parts.path, errors="surrogateescape")


def _local_source(text: str, base: Path) -> Source:
    path = base / Path(text).expanduser()
    if not os.path.lexists(path):  # an existing name with a star is not a pattern
        folder, pattern = _split_wildcards(str(path))
        if pattern and Path(folder).is_dir():
            _check_pattern("source", text, pattern)
            return FolderSource(Path(folder).resolve(), (pattern,))
        repository, at, revision = str(path).rpartition("@")
        if at and _is_bare(Path(repository)):
            return GitSource(str(Path(repository).resolve()), revision)
        missing = _mask_password(folder if pattern else text)
        raise UserError(f"source {missing!r} does not exist (looked in {base}): name a folder or a file with documents")
    try:
        path = path.resolve(strict=True)  # a link is followed if it was named itself
    except (OSError, RuntimeError) as error:
        raise UserError(f"source {text!r} is a broken symbolic link: {error}") from None
    return GitSource(str(path)) if _is_bare(path) else FolderSource(path)


def _is_bare(path: Path) -> bool:
    return path.name.endswith(".git") and (path / "HEAD").is_file() and (path / "objects").is_dir()


def _split_wildcards(path: str) -> tuple[str, str]:
    """Return the folder before the first wildcard, and the rest as an anchored pattern; "" without wildcards."""
    parts = path.split("/")
    for number, part in enumerate(parts):
        if _WILDCARDS & set(part):
            return "/".join(parts[:number]) or "/", "/" + "/".join(parts[number:])
    return path, ""


def _git_source(text: str, base: Path) -> GitSource:
    """Resolve the part of an address after `git+`."""
    text, _, subdir = text.partition("#subdir=")
    scheme, has_scheme, rest = text.partition("://")
    if has_scheme and "/" not in scheme:
        host, slash, path = rest.partition("/")
        if scheme not in _GIT_SCHEMES or not slash or (not host and scheme != "file") or host.startswith("-"):
            raise UserError(
                f"source 'git+{scheme}://...': write git+https://host/path, git+ssh://host/path or git+/path"
            )
        path, _, revision = path.rpartition("@") if "@" in path else (path, "", "HEAD")
        repository = f"{scheme}://{host}/{path}"
        if scheme == "file":
            repository = _repository(str(Path(unquote(f"/{path}", errors="surrogateescape"))), text, base)
    else:
        path, at, revision = text.rpartition("@")
        if not at or (base / Path(text).expanduser()).exists():
            path, revision = text, "HEAD"
        repository = _repository(path, text, base)
    return GitSource(repository, revision, subdir.strip("/"))


def _repository(path: str, text: str, base: Path) -> str:
    found = base / Path(path).expanduser()
    if not found.is_dir():
        raise UserError(
            f"source 'git+{_mask_password(text)}': no repository at that path (looked in {base}; write "
            "git+PATH@REVISION or git+ssh://host/path)"
        )
    if not ((found / ".git").exists() or (found / "HEAD").is_file()):
        raise UserError(f"source 'git+{text}': {found} is not a git repository; leave out git+ to read it as a folder")
    return str(found.resolve())


def _object_source(text: str) -> ObjectSource:
    path, mark, query = text.partition("?")
    prefix, pattern = _split_wildcards(path.rstrip("/"))
    if pattern:
        _check_pattern("source", text, pattern)
    if any(part in (".", "..") for part in prefix.split("/")):
        raise UserError(f"source {text!r}: . and .. are not allowed in a prefix; write the full prefix")
    return ObjectSource(prefix.rstrip("/") + mark + query, (pattern,) if pattern else ())


def _patterns(setting: str, text: str) -> Patterns | None:
    lines = [part.strip() for line in text.splitlines() for part in line.split(",") if part.strip()]
    for line in lines:
        _check_pattern(setting, text, line)
    return Patterns(lines) if lines else None


def _check_pattern(where: str, text: str, pattern: str) -> None:
    if not Patterns([pattern]):
        raise UserError(f"{where} {text!r}: malformed pattern {pattern!r}; is a ] or a character after \\ missing?")

"""Fetch a git repository at a revision with the git program, and write the files of its commit into the cache.

Each address has a bare mirror. The files of a commit are exported once, listed like any folder, and removed when there
are later exports and none has used them for a day.

No code of a repository runs: blobs are written byte for byte without a checkout, so hooks, filters and attributes have
no effect. A tree is untrusted too: names may contain "..", links may point anywhere, and subtrees may repeat without
end. Links are therefore created after all files, so that no write follows one, and the number and size of the files are
bounded.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from storage.errors import UserError
from storage.locks import owner_lock
from tasks.sources.folder import Filters, WalkedFile, encode_path, walk_folder

FETCH_SECONDS = 3600.0
COMMAND_SECONDS = 1800.0
MAX_FILES = 2_000_000
MAX_BYTES = 200 * 2**30
BLOCK = 1 << 20
KEPT_EXPORTS = 2  # per repository, for a branch that was reset and for two runs that alternate
UNUSED_SECONDS = 24 * 3600.0  # before an export is removed: a run may still read the files that it listed
_STALLED = ("http.lowSpeedLimit=1000", "http.lowSpeedTime=120")  # bytes per second, seconds

_BOILERPLATE = ("Please make sure you have the correct access rights", "and the repository exists.")
_SCHEMES = "file:git:http:https:ssh"
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_ABBREVIATED = re.compile(r"[0-9a-f]{4,64}")
_EXPORT = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})(-[0-9a-f]{8})?")
_REVISION = re.compile(r"\w[\w./+-]*", re.ASCII)
# Set by a git hook, these make git work on the repository of the caller.
_REPOSITORY_VARIABLES = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
)


def without_commit(source: str) -> str:
    """Return the address of a git source without its commit, equal for all commits; other addresses are unchanged."""
    return re.sub(r"^(git\+.+)@[0-9a-f]{40,64}(#|$)", r"\1\2", source)


@dataclass(frozen=True)
class GitSource:
    """A repository at a revision.

    Attributes:
        address: Absolute path, or a `file`, `git`, `http`, `https` or `ssh` address without a password.
        revision: A branch, a tag, a commit, or `HEAD` for the repository's current branch.
        subdir: Folder of the repository to read; "" for all.
    """

    address: str
    revision: str = "HEAD"
    subdir: str = ""

    def __post_init__(self) -> None:
        if not _REVISION.fullmatch(self.revision) or ".." in self.revision:
            raise UserError(f"{self.revision!r} is not a revision: name a branch, a tag or a commit of {self.address}")
        if any(part in ("", ".", "..") for part in self.subdir.split("/")) and self.subdir:
            raise UserError(f"subdir {self.subdir!r} is not a folder of a repository: write it like docs/guide")

    def __str__(self) -> str:
        return self._at(self.revision)

    def _at(self, revision: str) -> str:
        return f"git+{self.address}@{revision}" + (f"#subdir={self.subdir}" if self.subdir else "")

    @property
    def name(self) -> str:
        """Return the repository's name, the first component of its paths if there are several sources."""
        return self.address.rstrip("/").rpartition("/")[2].removesuffix(".git") or "repository"

    def rows(self, label: str, filters: Filters, excluded: frozenset[str], cache: Path) -> Iterator[WalkedFile | None]:
        """Fetch and export the commit if needed, and yield its rows; see `tasks.sources.address.Source`.

        The cache may be deleted while no run uses it. The files stay for at least a day.

        Raises:
            UserError: The repository, the revision or the folder cannot be read, or git is not installed.
        """
        folder = self._folder(cache)
        mirror = folder / "mirror.git"
        with owner_lock(folder / "lock"):
            commit = self._resolve(mirror)
            subdir = hashlib.sha256(os.fsencode(self.subdir)).hexdigest()[:8] if self.subdir else ""
            target = folder / (f"{commit}-{subdir}" if subdir else commit)
            if not target.exists():
                self._export(mirror, commit, target)
            os.utime(target)  # the time of its last use, for `tidy`
        tree, source = (target / "tree").resolve(), encode_path(self._at(commit))
        prefix = "".join(f"{part}/" for part in (label, encode_path(self.subdir)) if part)
        for path, reason in json.loads((target / "left_out.json").read_text()):
            yield WalkedFile(prefix + path, source, f"{tree}/{path}", status="skipped", reason=reason)
        yield from walk_folder(tree, source, prefix, filters, excluded)

    def tidy(self, cache: Path) -> None:
        """Remove exports of the repository, except those used within the last day and the two used last.

        To be called after all sources are listed.
        """
        folder = self._folder(cache)
        with owner_lock(folder / "lock"):
            exports = [(entry.stat().st_mtime, entry) for entry in folder.iterdir() if _EXPORT.fullmatch(entry.name)]
            for used, export in sorted(exports, reverse=True)[KEPT_EXPORTS:]:
                if time.time() - used >= UNUSED_SECONDS:
                    # renamed first: a process killed here must not leave a partial export under the final name
                    removed = export.with_name(f".{export.name}")
                    shutil.rmtree(removed, ignore_errors=True)
                    export.rename(removed)
                    shutil.rmtree(removed, ignore_errors=True)

    def _folder(self, cache: Path) -> Path:
        return cache / "git" / hashlib.sha256(os.fsencode(self.address)).hexdigest()[:24]

    def _resolve(self, mirror: Path) -> str:
        """Return the commit that the revision names now; a full commit id is fetched only once."""
        if not (mirror / "HEAD").exists():
            _git(None, "init", "--bare", "--quiet", "--template=", str(mirror))
        is_commit = _COMMIT.fullmatch(self.revision) is not None
        commit = _find_commit(mirror, self.revision) if is_commit else None
        if commit is None:
            self._fetch(mirror)
            commit = self._find(mirror)
        if commit is None and is_commit:
            with contextlib.suppress(UserError):  # a commit on no branch, which not every server sends
                _fetch_refs(mirror, self.address, self.revision)
            commit = self._find(mirror)
        if commit is None:
            heads = _git(mirror, "for-each-ref", "--count=20", "--format=%(refname:short)", "refs/heads")
            known = ", ".join(heads.decode("utf-8", "replace").split()) or "none"
            raise UserError(
                f"{self.address} has no branch, tag or commit {self.revision!r} (branches: {known}): name one after @"
            )
        return commit

    def _fetch(self, mirror: Path) -> None:
        refs = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]
        if self.revision == "HEAD":
            refs.append("+HEAD:refs/sheepfold/head")
        try:
            _fetch_refs(mirror, self.address, *refs)
        except UserError as error:
            raise UserError(f"cannot fetch {self.address}: {error}; check the address and your access rights") from None

    def _find(self, mirror: Path) -> str | None:
        names = ["refs/sheepfold/head"] if self.revision == "HEAD" else []
        names += [f"refs/heads/{self.revision}", f"refs/tags/{self.revision}"]
        if _ABBREVIATED.fullmatch(self.revision):
            names.append(self.revision)
        return next((commit for name in names if (commit := _find_commit(mirror, name)) is not None), None)

    def _export(self, mirror: Path, commit: str, target: Path) -> None:
        """Write the files of a commit to `target` atomically."""
        tree = f"{commit}:{self.subdir}" if self.subdir else commit
        try:
            kind = _git(mirror, "cat-file", "-t", tree).strip()
        except UserError:
            kind = b""
        if kind not in (b"tree", b"commit"):
            raise UserError(f"{self.address} has no folder {self.subdir!r} at {self.revision}: name an existing one")
        for unfinished in target.parent.glob(".*"):  # of killed runs; this process holds the lock
            shutil.rmtree(unfinished, ignore_errors=True)
        work = target.with_name(f".{target.name}")
        try:
            (work / "tree").mkdir(parents=True)
            left_out = _write_tree(mirror, _list_tree(mirror, tree, str(self)), work / "tree", str(self))
            (work / "left_out.json").write_text(json.dumps(left_out))
            # one call for all files: their contents must reach the disk before the rename
            os.sync()
            work.rename(target)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise


class _Entry(NamedTuple):
    """One entry of a tree: mode and blob id as git writes them, and path."""

    mode: bytes
    blob: bytes
    path: str


def _list_tree(mirror: Path, tree: str, address: str) -> list[_Entry]:
    """List the files of a tree.

    Raises:
        UserError: A path is malformed or repeated, or there are too many files or bytes.
    """
    entries: list[_Entry] = []
    seen: set[str] = set()
    size = 0
    for record in _records(mirror, "ls-tree", "-r", "-z", "-l", "--full-tree", tree):
        facts, _, name = record.partition(b"\t")
        mode, _, blob, length = facts.split()
        path = os.fsdecode(name)
        if path in seen or any(part in ("", ".", "..") for part in path.split("/")):
            raise UserError(f"{address}: its tree is damaged at {encode_path(path)!r}; run `git fsck` on it")
        seen.add(path)
        entries.append(_Entry(mode, blob, path))
        size += int(length) if length.isdigit() else 0
        if len(entries) > MAX_FILES or size > MAX_BYTES:
            raise UserError(
                f"{address}: more than {MAX_FILES:,} files or {MAX_BYTES / 2**30:.0f} GiB; name a folder with #subdir="
            )
    return entries


def _write_tree(mirror: Path, entries: list[_Entry], folder: Path, address: str) -> list[tuple[str, str]]:
    """Write the files; return the encoded paths of entries that were not written, with reasons."""
    left_out: list[tuple[str, str]] = []
    links: list[_Entry] = []
    with _running(mirror, COMMAND_SECONDS, "cat-file", "--batch") as (requests, answers):
        for entry in entries:
            if entry.mode == b"160000":
                left_out.append((encode_path(entry.path), "git submodule, not fetched"))
                continue
            if entry.mode == b"120000":
                links.append(entry)
                continue
            try:
                target = _open_new(folder / entry.path)
            except (FileExistsError, NotADirectoryError):
                raise UserError(f"{address}: its tree is damaged at {encode_path(entry.path)!r}") from None
            except OSError as error:
                if error.errno not in (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ):
                    raise
                left_out.append((encode_path(entry.path), f"cannot be written here: {error.strerror}"))
                continue
            with target:
                _copy_blob(requests, answers, entry, target)
        for entry in links:  # after all files, so that no file is written through a link
            try:
                Path(folder, entry.path).parent.mkdir(parents=True, exist_ok=True)
                # a link is listed and never followed, so it gets a target that does not exist
                Path(folder, entry.path).symlink_to("link-of-the-repository")
            except OSError as error:
                left_out.append((encode_path(entry.path), f"symbolic link, cannot be written here: {error.strerror}"))
    return left_out


def _open_new(path: Path) -> IO[bytes]:
    """Create a file, not executable; raise FileExistsError if it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    return os.fdopen(descriptor, "wb")


def _copy_blob(requests: IO[bytes], answers: IO[bytes], entry: _Entry, target: IO[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):  # git ended; its answer below is empty then
        os.write(requests.fileno(), entry.blob + b"\n")  # unbuffered: a failed buffered write is repeated at close
    header = answers.readline().split()
    if len(header) != 3 or header[1] != b"blob":
        raise UserError(f"git has no content for {encode_path(entry.path)!r}: the repository is damaged or incomplete")
    left = int(header[2])
    while left > 0:
        block = answers.read(min(BLOCK, left))
        if not block:
            raise UserError(f"git ended in the middle of {encode_path(entry.path)!r}; `git fsck` checks the repository")
        target.write(block)
        left -= len(block)
    answers.read(1)  # the line feed after each blob


def _find_commit(mirror: Path, name: str) -> str | None:
    """Return the commit that a name resolves to, or None."""
    try:
        found = _git(mirror, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").decode().strip()
    except UserError:
        return None
    return found if _COMMIT.fullmatch(found) else None


def _fetch_refs(mirror: Path, address: str, *refs: str) -> None:
    """Fetch refs; `--` keeps addresses and refs from being read as options."""
    options = ("--quiet", "--force", "--prune", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
    _git(mirror, "fetch", *options, "--", address, *refs, seconds=FETCH_SECONDS)


def _git(mirror: Path | None, *arguments: str, seconds: float = COMMAND_SECONDS) -> bytes:
    with _running(mirror, seconds, *arguments) as (_, answers):
        return answers.read()


def _records(mirror: Path, *arguments: str) -> Iterator[bytes]:
    """Yield the NUL-terminated records of a git command's output."""
    with _running(mirror, COMMAND_SECONDS, *arguments) as (_, answers):
        rest = b""
        while block := answers.read1(BLOCK):  # type: ignore[attr-defined]
            *records, rest = (rest + block).split(b"\0")
            yield from records


@contextlib.contextmanager
def _running(mirror: Path | None, seconds: float, *arguments: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Run a git command in its own process group, which is killed at the end; yields its stdin and stdout.

    Raises:
        UserError: It failed, with its own message, or took longer than `seconds`; or git is not installed.
    """
    place = [f"--git-dir={mirror}"] if mirror is not None else []
    options = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "gc.auto=0", *_STALLED)
    settings = [argument for option in options for argument in ("-c", option)]
    with tempfile.TemporaryFile() as errors:
        try:
            git = subprocess.Popen(
                ["git", *place, *settings, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(),
                start_new_session=True,
            )
        except FileNotFoundError:
            raise UserError("a git source needs the git program: install git, or name a folder") from None
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            _kill(git)

        timer = threading.Timer(seconds, expire)
        timer.start()
        try:
            with git:  # closes the pipes and waits
                try:
                    assert git.stdin is not None
                    assert git.stdout is not None
                    yield git.stdin, git.stdout
                except BaseException:
                    _kill(git)
                    raise
        finally:
            timer.cancel()
            _kill(git)  # after an interrupted wait it still runs
        if expired.is_set():
            raise UserError(f"git {arguments[0]} did not end within {seconds:.0f} s")
        if git.returncode:
            errors.seek(0)
            lines = errors.read(BLOCK).decode("utf-8", "replace").strip().splitlines()
            causes = [line.removeprefix("fatal: ") for line in lines if line and line not in _BOILERPLATE]
            raise UserError("; ".join(causes[-3:]) or f"git {arguments[0]} failed")


def _kill(git: subprocess.Popen[bytes]) -> None:
    if git.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(git.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """Return an environment in which git never prompts and uses only the supported protocols."""
    environment = {name: value for name, value in os.environ.items() if name not in _REPOSITORY_VARIABLES}
    environment |= {
        "GIT_TERMINAL_PROMPT": "0",
        # also blocks an `insteadOf` that rewrites to ext::, which runs programs
        "GIT_ALLOW_PROTOCOL": _SCHEMES,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "SSH_ASKPASS_REQUIRE": "never",
        "LC_ALL": "C",
    }
    environment.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
    return environment

"""Fetch a git repository at a revision with the git program, and write the files of its commit into the cache.

Each address has a bare mirror. The files of a commit are written once, under the commit's name, walked like any folder,
and removed when later commits took their place and nobody has listed them for a day.

Nothing of a repository is executed: no checkout takes place, so that neither hooks nor filters nor attributes act, and
blobs are written byte for byte. A tree is somebody else's data too: its names may climb out, its links may point
anywhere, its trees may repeat without end. Links are therefore made last, when nothing is written any more that could
follow them, and number and size of the files are bounded.
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
KEPT_EXPORTS = 2  # of a repository: a branch that went back, two runs by turns
UNUSED_SECONDS = 24 * 3600.0  # before an export may go: a run may still read what it listed
_STALLED = ("http.lowSpeedLimit=1000", "http.lowSpeedTime=120")  # bytes per second, seconds

_BOILERPLATE = ("Please make sure you have the correct access rights", "and the repository exists.")
_SCHEMES = "file:git:http:https:ssh"
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_ABBREVIATED = re.compile(r"[0-9a-f]{4,64}")
_EXPORT = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})(-[0-9a-f]{8})?")
_REVISION = re.compile(r"\w[\w./+-]*", re.ASCII)
# They would have git work on the repository of whoever started us.
_INHERITED = (
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
    """A root's `source` without the commit: what one repository is called at all of them. Others stay as they are."""
    return re.sub(r"^(git\+.+)@[0-9a-f]{40,64}(#|$)", r"\1\2", source)


@dataclass(frozen=True)
class GitSource:
    """A repository at a revision.

    Attributes:
        address: Absolute path, or a `file`, `git`, `http`, `https` or `ssh` address without a password.
        revision: A branch, a tag, a commit, or `HEAD` for the branch that the repository itself is on.
        subdir: Folder of it to read; "" for all.
    """

    address: str
    revision: str = "HEAD"
    subdir: str = ""

    def __post_init__(self) -> None:
        if not _REVISION.fullmatch(self.revision) or ".." in self.revision:
            raise UserError(f"{self.revision!r} is no revision: name a branch, a tag or a commit of {self.address}")
        if any(part in ("", ".", "..") for part in self.subdir.split("/")) and self.subdir:
            raise UserError(f"subdir {self.subdir!r} is no folder of a repository: write it like docs/guide")

    def __str__(self) -> str:
        return self._at(self.revision)

    def _at(self, revision: str) -> str:
        return f"git+{self.address}@{revision}" + (f"#subdir={self.subdir}" if self.subdir else "")

    @property
    def name(self) -> str:
        """The repository's name."""
        return self.address.rstrip("/").rpartition("/")[2].removesuffix(".git") or "repository"

    def rows(self, label: str, filters: Filters, excluded: frozenset[str], cache: Path) -> Iterator[WalkedFile | None]:
        """Fetch what is missing, lay out the files, and yield their rows; see `tasks.sources.address.Source`.

        The cache may be deleted while nothing runs. The files stay for a day at least.

        Raises:
            UserError: The repository, the revision or the folder cannot be had; or git is not installed.
        """
        home = self._home(cache)
        mirror = home / "mirror.git"
        with owner_lock(home / "lock"):
            commit = self._resolve(mirror)
            folder = hashlib.sha256(os.fsencode(self.subdir)).hexdigest()[:8] if self.subdir else ""
            target = home / (f"{commit}-{folder}" if folder else commit)
            if not target.exists():
                self._export(mirror, commit, target)
            os.utime(target)  # in use from now on
        tree, source = (target / "tree").resolve(), encode_path(self._at(commit))
        prefix = "".join(f"{part}/" for part in (label, encode_path(self.subdir)) if part)
        for path, reason in json.loads((target / "left_out.json").read_text()):
            yield WalkedFile(prefix + path, source, f"{tree}/{path}", status="skipped", reason=reason)
        yield from walk_folder(tree, source, prefix, filters, excluded)

    def tidy(self, cache: Path) -> None:
        """Remove exports of the repository that nobody needs; to be called when all that is wanted is listed.

        Those used within the last day stay, and the two used last.
        """
        home = self._home(cache)
        with owner_lock(home / "lock"):
            exports = [(entry.stat().st_mtime, entry) for entry in home.iterdir() if _EXPORT.fullmatch(entry.name)]
            for used, export in sorted(exports, reverse=True)[KEPT_EXPORTS:]:
                if time.time() - used >= UNUSED_SECONDS:
                    # Under another name first: killed on the way, we must not leave half of it under the whole's name.
                    gone = export.with_name(f".{export.name}")
                    shutil.rmtree(gone, ignore_errors=True)
                    export.rename(gone)
                    shutil.rmtree(gone, ignore_errors=True)

    def _home(self, cache: Path) -> Path:
        return cache / "git" / hashlib.sha256(os.fsencode(self.address)).hexdigest()[:24]

    def _resolve(self, mirror: Path) -> str:
        """The commit that the revision names now. A full commit never changes, so that it is fetched once."""
        if not (mirror / "HEAD").exists():
            _git(None, "init", "--bare", "--quiet", "--template=", str(mirror))
        is_commit = _COMMIT.fullmatch(self.revision) is not None
        commit = _find_commit(mirror, self.revision) if is_commit else None
        if commit is None:
            self._fetch(mirror)
            commit = self._find(mirror)
        if commit is None and is_commit:
            with contextlib.suppress(UserError):  # A commit on no branch; not every server hands it out.
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
            raise UserError(f"cannot fetch {self.address}: {error}; check the address and your rights to it") from None

    def _find(self, mirror: Path) -> str | None:
        names = ["refs/sheepfold/head"] if self.revision == "HEAD" else []
        names += [f"refs/heads/{self.revision}", f"refs/tags/{self.revision}"]
        if _ABBREVIATED.fullmatch(self.revision):
            names.append(self.revision)
        return next((commit for name in names if (commit := _find_commit(mirror, name)) is not None), None)

    def _export(self, mirror: Path, commit: str, target: Path) -> None:
        """Write the files of a commit to `target`, all or nothing."""
        tree = f"{commit}:{self.subdir}" if self.subdir else commit
        try:
            kind = _git(mirror, "cat-file", "-t", tree).strip()
        except UserError:
            kind = b""
        if kind not in (b"tree", b"commit"):
            raise UserError(f"{self.address} has no folder {self.subdir!r} at {self.revision}: name one that is there")
        for unfinished in target.parent.glob(".*"):  # of runs that were killed; we hold the lock
            shutil.rmtree(unfinished, ignore_errors=True)
        work = target.with_name(f".{target.name}")
        try:
            (work / "tree").mkdir(parents=True)
            left_out = _write_tree(mirror, _list_tree(mirror, tree, str(self)), work / "tree", str(self))
            (work / "left_out.json").write_text(json.dumps(left_out))
            # One call for all files: the rename must not reach the disk before their contents.
            os.sync()
            work.rename(target)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise


class _Entry(NamedTuple):
    """One line of a tree: its type and mode as git writes them, and its path."""

    mode: bytes
    blob: bytes
    path: str


def _list_tree(mirror: Path, tree: str, address: str) -> list[_Entry]:
    """All files of a tree; refuses names that leave it and trees that have no end."""
    entries: list[_Entry] = []
    seen: set[str] = set()
    size = 0
    for record in _records(mirror, "ls-tree", "-r", "-z", "-l", "--full-tree", tree):
        facts, _, name = record.partition(b"\t")
        mode, _, blob, length = facts.split()
        path = os.fsdecode(name)
        if path in seen or any(part in ("", ".", "..") for part in path.split("/")):
            raise UserError(f"{address}: its tree is damaged at {encode_path(path)!r}; `git fsck` says more")
        seen.add(path)
        entries.append(_Entry(mode, blob, path))
        size += int(length) if length.isdigit() else 0
        if len(entries) > MAX_FILES or size > MAX_BYTES:
            raise UserError(
                f"{address}: more than {MAX_FILES:,} files or {MAX_BYTES / 2**30:.0f} GiB; name a folder by #subdir="
            )
    return entries


def _write_tree(mirror: Path, entries: list[_Entry], folder: Path, address: str) -> list[tuple[str, str]]:
    """Write the files; return the paths, encoded, that are none, with the reasons."""
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
        for entry in links:  # After all files: nothing is written through them.
            try:
                Path(folder, entry.path).parent.mkdir(parents=True, exist_ok=True)
                # Where it points to does not matter, it is never followed; so it points nowhere.
                Path(folder, entry.path).symlink_to("link-of-the-repository")
            except OSError as error:
                left_out.append((encode_path(entry.path), f"symbolic link, cannot be written here: {error.strerror}"))
    return left_out


def _open_new(path: Path) -> IO[bytes]:
    """Open a file that must not exist yet; nothing executable comes about."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    return os.fdopen(descriptor, "wb")


def _copy_blob(requests: IO[bytes], answers: IO[bytes], entry: _Entry, target: IO[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):  # It ended; the empty answer below says so.
        os.write(requests.fileno(), entry.blob + b"\n")  # past the buffer, which would be written again at the end
    header = answers.readline().split()
    if len(header) != 3 or header[1] != b"blob":
        raise UserError(f"git has no content for {encode_path(entry.path)!r}: the repository is damaged or incomplete")
    left = int(header[2])
    while left > 0:
        block = answers.read(min(BLOCK, left))
        if not block:
            raise UserError(f"git ended within {encode_path(entry.path)!r}")
        target.write(block)
        left -= len(block)
    answers.read(1)  # the line end behind each blob


def _find_commit(mirror: Path, name: str) -> str | None:
    """The commit behind a name; None where there is none."""
    try:
        found = _git(mirror, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").decode().strip()
    except UserError:
        return None
    return found if _COMMIT.fullmatch(found) else None


def _fetch_refs(mirror: Path, address: str, *refs: str) -> None:
    """Fetch refs; addresses and refs come behind `--`, so that none can be taken for an option."""
    options = ("--quiet", "--force", "--prune", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
    _git(mirror, "fetch", *options, "--", address, *refs, seconds=FETCH_SECONDS)


def _git(mirror: Path | None, *arguments: str, seconds: float = COMMAND_SECONDS) -> bytes:
    """Return the output of a git command."""
    with _running(mirror, seconds, *arguments) as (_, answers):
        return answers.read()


def _records(mirror: Path, *arguments: str) -> Iterator[bytes]:
    """Yield the output of a git command, cut at its NULs as it comes."""
    with _running(mirror, COMMAND_SECONDS, *arguments) as (_, answers):
        rest = b""
        while block := answers.read1(BLOCK):  # type: ignore[attr-defined]
            *records, rest = (rest + block).split(b"\0")
            yield from records


@contextlib.contextmanager
def _running(mirror: Path | None, seconds: float, *arguments: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Input and output of a git command, in a process group of its own that is gone afterwards, whatever happens.

    Raises:
        UserError: It failed, with what it says itself, or took longer than `seconds`; or there is no git.
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
            with git:  # which closes the pipes and waits for its end
                try:
                    assert git.stdin is not None
                    assert git.stdout is not None
                    yield git.stdin, git.stdout
                except BaseException:
                    _kill(git)
                    raise
        finally:
            timer.cancel()
            _kill(git)  # a wait that was interrupted leaves it running
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
    """Surroundings in which git asks nobody, and speaks to servers by the protocols that are meant alone."""
    environment = {name: value for name, value in os.environ.items() if name not in _INHERITED}
    environment |= {
        "GIT_TERMINAL_PROMPT": "0",
        # Also keeps an `insteadOf` from leading to ext::, which runs programs.
        "GIT_ALLOW_PROTOCOL": _SCHEMES,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "SSH_ASKPASS_REQUIRE": "never",
        "LC_ALL": "C",
    }
    environment.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
    return environment

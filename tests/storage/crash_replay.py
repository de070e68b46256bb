"""States of a disk that are possible after a power failure, derived from a log of a process's calls.

A kill loses nothing that was written: the kernel brings it to the disk later. A machine that loses its power does, so
what a file or a folder holds is sure only from its fsync on. `states` gives, for the moment after each call, folders as
the disk could then hold them:

- of changes of names (a file or folder made, renamed, removed) those that an fsync of one of their folders forced, and
  besides: none, all, those before a certain one, or some at random; a rename is there wholly or not at all;
- of what was written into files that which their fsync forced, or all of it.
"""

from __future__ import annotations

import hashlib
import random
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

NAMES = "mkdir mkdirat rename renameat renameat2 unlink unlinkat rmdir link linkat symlink symlinkat"
DATA = "openat creat write pwrite64 writev ftruncate truncate copy_file_range sendfile fallocate fsync fdatasync"
TRACED = "trace=" + ",".join(f"?{call}" for call in f"{NAMES} {DATA}".split())
AT_RANDOM = 3  # choices of unforced changes of names at each moment
_LINE = re.compile(r"^\d+ +(\w+)\((.*)\) += (\d+)", re.MULTILINE)
_FIELD = re.compile(r'(?:\w+)?<((?:\\x..)*)>|"((?:\\x..)*)"|([^,<"]+)')

Tree = dict[str, "bytes | None"]  # path -> what a file holds; None for a folder


def record(log: Path, command: list[str]) -> str:
    """Run a command to its end; returns the log of its calls."""
    arguments = ["strace", "-f", "-qq", "-y", "-xx", "-s", "1000000", "-o", str(log), "-e", TRACED]
    subprocess.run([*arguments, *command], check=True, capture_output=True, timeout=120)
    return log.read_text()


@dataclass(eq=False)
class _File:
    """A file, under whatever name."""

    written: bytes = b""
    forced: bytes = b""


@dataclass(eq=False)
class _Folder:
    """A folder, under whatever name."""

    entries: dict[str, _File | _Folder] = field(default_factory=dict)


_Node = _File | _Folder
_Edit = tuple[_Folder, str, _Node | None]  # in a folder, a name comes to stand for this, or for nothing


@dataclass
class _Change:
    """Names that change together."""

    edits: list[_Edit]
    forced: bool = False


class _Disk:
    """The files below a folder while the calls are made, and which changes of names have been forced."""

    def __init__(self, root: Path, before: Path) -> None:
        self.root = root
        self.top = _Folder()
        self.changes: list[_Change] = []
        if before.is_dir():
            _load(before, self.top)
        self.before = _taken(self.top)

    def _find(self, path: str) -> tuple[_Folder, str, _Node | None]:
        """The folder that a path leads into, the last name in it, and what it stands for."""
        *folders, name = Path(path).relative_to(self.root).parts
        place = self.top
        for part in folders:
            found = place.entries[part]
            assert isinstance(found, _Folder)
            place = found
        return place, name, place.entries.get(name)

    def _change(self, *edits: _Edit) -> None:
        for folder, name, node in edits:
            if node is None:
                folder.entries.pop(name)
            else:
                folder.entries[name] = node
        self.changes.append(_Change(list(edits)))

    def apply(self, call: str, given: list[str]) -> bool:
        """Carry out a call on something below the folder; False if it is none of those, or changes nothing."""
        paths = _paths(call, given)
        if not all(Path(path).is_relative_to(self.root) and Path(path) != self.root for path in paths):
            if call == "fsync" and Path(paths[0]) == self.root:
                return self._force(self.top)
            return False
        folder, name, node = self._find(paths[0])
        match call:
            case "openat" | "creat":
                return self._open(folder, name, node, given[-1] if call == "creat" else given[2])
            case "mkdir" | "mkdirat":
                self._change((folder, name, _Folder()))
            case "rename" | "renameat" | "renameat2":
                assert node is not None
                target, new, _ = self._find(paths[1])
                self._change((folder, name, None), (target, new, node))
            case "unlink" | "unlinkat" | "rmdir":
                self._change((folder, name, None))
            case "write":
                assert isinstance(node, _File)
                node.written += _bytes(given[1])
            case "ftruncate":
                assert isinstance(node, _File)
                node.written = node.written[: int(given[1])]
            case "fsync" | "fdatasync":
                assert node is not None
                return self._force(node)
            case _:
                raise AssertionError(f"the replay does not know what {call} does")
        return True

    def _open(self, folder: _Folder, name: str, node: _Node | None, flags: str) -> bool:
        if node is None:
            self._change((folder, name, _File()))
            return True
        if "O_TRUNC" in flags and isinstance(node, _File) and node.written:
            node.written = b""
            return True
        return False

    def _force(self, node: _Node) -> bool:
        if isinstance(node, _File):
            node.forced = node.written
        else:
            for change in self.changes:
                change.forced = change.forced or any(folder is node for folder, _, _ in change.edits)
        return True

    def left(self, kept: set[int], forced_only: bool) -> Tree:
        """Return the tree if, of the changes of names, only `kept` and the synced ones reached the disk."""
        entries = {folder: dict(names) for folder, names in self.before.items()}
        for number, change in enumerate(self.changes):
            if change.forced or number in kept:
                for folder, name, node in change.edits:
                    names = entries.setdefault(folder, {})
                    if node is None:
                        names.pop(name, None)
                    else:
                        names[name] = node
        return dict(_walk(self.top, entries, "", forced_only))


def _walk(
    folder: _Folder, entries: dict[_Folder, dict[str, _Node]], prefix: str, forced_only: bool
) -> Iterator[tuple[str, bytes | None]]:
    for name, node in sorted(entries.get(folder, {}).items()):
        path = f"{prefix}{name}"
        if isinstance(node, _File):
            yield path, node.forced if forced_only else node.written
        else:
            yield path, None
            yield from _walk(node, entries, f"{path}/", forced_only)


def _load(path: Path, folder: _Folder) -> None:
    for entry in path.iterdir():
        if entry.is_dir():
            inner = folder.entries[entry.name] = _Folder()
            _load(entry, inner)
        else:
            folder.entries[entry.name] = _File(entry.read_bytes(), entry.read_bytes())


def _taken(folder: _Folder) -> dict[_Folder, dict[str, _Node]]:
    """The names in a folder and in all below it."""
    found = {folder: dict(folder.entries)}
    for node in folder.entries.values():
        if isinstance(node, _Folder):
            found |= _taken(node)
    return found


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _fields(text: str) -> list[str]:
    """The arguments of a call; of a file descriptor that of the file, and paths as they are."""
    found = []
    for descriptor, string, other in _FIELD.findall(text):
        if descriptor:
            found.append(_bytes(descriptor).decode())
        elif string:
            found.append(string)
        elif other.strip():
            found.append(other.strip())
    return found


def _paths(call: str, given: list[str]) -> list[str]:
    """The absolute paths that a call is about."""
    if call in ("write", "ftruncate", "fsync", "fdatasync"):
        return given[:1]
    if call in ("openat", "mkdirat", "unlinkat"):
        return [str(Path(given[0], _bytes(given[1]).decode()))]
    if call in ("renameat", "renameat2"):
        return [str(Path(given[at], _bytes(given[at + 1]).decode())) for at in (0, 2)]
    return [_bytes(part).decode() for part in given[: 2 if call == "rename" else 1]]


def states(root: Path, before: Path, log: str, seed: int = 0) -> Iterator[tuple[str, Tree, bool]]:
    """The different things that the disk may hold, after each call.

    Args:
        root: the folder that the calls were about.
        before: a copy of it as it was before them, all of which is sure; it need not be there.
        log: of the calls, as `record` gives it.

    Yields:
        After which call; what there is, by path; whether it was the last call.
    """
    disk = _Disk(root, before)
    chance, seen = random.Random(seed), set()
    calls = [(call, _fields(text)) for call, text, _ in _LINE.findall(log)]
    for number, (call, given) in enumerate(calls):
        last = number == len(calls) - 1
        if not disk.apply(call, given) and not last:
            continue
        loose = [number for number, change in enumerate(disk.changes) if not change.forced]
        choices = [set(loose[:count]) for count in range(len(loose) + 1)]
        choices += [{at for at in loose if chance.random() < 0.5} for _ in range(AT_RANDOM)]
        for kept in choices:
            for forced_only in (True, False):
                tree = disk.left(kept, forced_only)
                mark = hashlib.sha256(repr((tree, last)).encode()).digest()
                if mark not in seen:
                    seen.add(mark)
                    yield f"{call} number {number + 1} of {len(calls)}", tree, last


def write(tree: Tree, folder: Path) -> Path:
    """Make a folder that holds this."""
    folder.mkdir()
    for path, data in tree.items():
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)
    return folder

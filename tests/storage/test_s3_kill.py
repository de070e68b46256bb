"""A process that is killed at each of the requests by which it changes a store on S3; the store is whole every time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commit_child import KEY, REF, STAGE, text_in
from proxy import KILL_AFTER, KILL_BEFORE, PASS, Proxy

from storage.s3 import S3Store

OLD, NEW = "the old text ", "the new text "


class Children:
    """Actions in processes of their own, through the proxy."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder = address, folder
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("s3_child.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def act(self, action: str, name: str, text: str) -> int:
        """The exit status of an action on the store and in the cache of this name."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\t".join([action, f"{self.address}/{name}", str(self.folder / name), text]) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def elsewhere(self, name: str) -> S3Store:
        """The store as another machine sees it."""
        return S3Store(f"{self.address}/{name}", self.folder / f"{name}-elsewhere")


@pytest.fixture
def children(s3_address: str, proxy: Proxy, tmp_path: Path) -> Iterator[Children]:
    children = Children(s3_address, tmp_path)
    yield children
    children.process.communicate(timeout=30)


@pytest.mark.parametrize(
    "action",
    ["commit", pytest.param("refresh", marks=pytest.mark.full), pytest.param("remove", marks=pytest.mark.full)],
)
def test_a_kill_after_any_write_leaves_a_whole_store_and_the_next_attempt_ends_at_once(
    action: str, children: Children, proxy: Proxy
) -> None:
    before = None if action == "commit" else OLD
    after = None if action == "remove" else NEW
    killed = 0
    for number in range(40):
        name = f"store-{number}"
        if before is not None:
            assert children.act("commit", name, OLD) == 0
        proxy.nth_write(number, KILL_AFTER)
        status = children.act(action, name, NEW)
        proxy.decide = lambda method, path: PASS
        if not status:
            break
        assert status == -9
        killed += 1
        assert text_in(children.elsewhere(name)) in (before, after)
        assert children.act(action, name, NEW) == 0
        store = children.elsewhere(name)
        assert text_in(store) == after
        assert store.unfinished() == store.unfinished(owned=True) == []
        if action == "remove":
            assert store.removed() == [(STAGE, KEY)]
    assert killed >= {"commit": 7, "refresh": 4, "remove": 3}[action]


def test_a_name_that_is_moved_when_a_kill_comes_stands_at_the_old_or_the_new(children: Children, proxy: Proxy) -> None:
    for number, answer in enumerate((KILL_BEFORE, KILL_AFTER)):
        store = children.elsewhere(f"store-{number}")
        assert children.act("ref", f"store-{number}", OLD) == 0
        proxy.nth_write(0, answer)
        assert children.act("ref", f"store-{number}", NEW) == -9
        proxy.decide = lambda method, path: PASS
        assert store.read_ref(REF) == {"text": OLD if answer == KILL_BEFORE else NEW}

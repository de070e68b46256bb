"""The pool: every document an outcome, whatever it does to the process, and nothing left behind."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import pytest
from extraction import load
from ingest_samples import dense_page, picture_of, saved, text_pdf
from PIL import Image

from tasks.ingest import pool as pool_module
from tasks.ingest.journal import part_file
from tasks.ingest.pool import ExtractionPool, ExtractJob, PoolError
from tasks.readers.records import ExtractOptions, Limits

ROOT = Path(__file__).resolve().parents[3]
FAKE_WORKER = (sys.executable, "-P", str(Path(__file__).with_name("fake_worker.py")))
QUICK = Limits(page_seconds=0.5, document_seconds=1.5)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, of which nothing may be left; and no process either."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    strangers.clear()
    strangers.update(children_of(os.getpid()))
    yield folder
    assert list(folder.iterdir()) == []
    assert children_of(os.getpid()) == []


def process_table() -> dict[int, tuple[str, int, int]]:
    """Name, parent and session of every living process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, _, fields = (entry / "stat").read_text().partition("(")[2].rpartition(")")
        except (OSError, ValueError):
            continue
        state, parent, _, session = fields.split()[:4]
        if state != "Z":
            found[int(entry.name)] = (name, int(parent), int(session))
    return found


def processes_that_mention(path: Path) -> list[int]:
    """Processes with the path in their command line."""
    found = []
    for pid in process_table():
        with contextlib.suppress(OSError):
            if os.fsencode(path) in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def libraries_of(pid: int) -> str:
    """Return the memory map of a process; empty if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_text()
    return ""


strangers: set[int] = set()  # children of this process that tests of other files keep


def children_of(pid: int) -> list[int]:
    return [child for child, (_, parent, _) in process_table().items() if parent == pid and child not in strangers]


def wait_until(condition, seconds: float = 20.0):
    """Wait until the condition is true and return its result; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return value


numbers = itertools.count()


def place() -> Path:
    """Where a document goes; beside the folder for temporary files."""
    return Path(tempfile.gettempdir()).with_name(f"document {next(numbers)}")


def job(path: Path, **options) -> ExtractJob:
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return ExtractJob(path, digest, path.suffix, place(), ExtractOptions(**options))


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def fake(name: str) -> ExtractJob:
    return ExtractJob(Path(name), "", "", place())


class Pool(ExtractionPool):
    """Gives documents with their pages and members; closed at the end of a with block."""

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, job: ExtractJob) -> Future:
        future = super().submit(job)

        def result(timeout: float | None = None):
            outcome, document = Future.result(future, timeout), load(job.out)
            assert all(getattr(document, item.name) == getattr(outcome, item.name) for item in fields(outcome)[:8])
            assert not list(job.out.parent.glob(f"{job.out.name}.*.part"))
            return document

        future.result = result
        return future


# With the real worker.


def test_documents_come_out_as_they_do_in_process(tmp_path, tesseract):
    paths = [
        write(tmp_path / "a.pdf", text_pdf(["first page", ""], title="T")),
        write(tmp_path / "b.py", b"print(1)\n"),
        write(tmp_path / "c.png", saved(picture_of("picture"), "PNG")),
        write(tmp_path / "empty.txt", b""),
        write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")), b"caf\xe9 au lait " * 20),
    ]
    from extraction import extract_document

    with Pool(2, Limits()) as pool:
        found = [future.result() for future in [pool.submit(job(path)) for path in paths]]
    assert found == [extract_document(path.read_bytes(), path.suffix, ExtractOptions()) for path in paths]
    assert [outcome.status for outcome in found] == ["ok", "ok", "ok", "skipped", "ok"]


def test_files_that_changed_vanished_or_grew_say_so(tmp_path):
    changed = job(write(tmp_path / "changed.txt", b"before"))
    gone = job(write(tmp_path / "gone.txt", b"before"))
    grown = job(write(tmp_path / "grown.txt", b"before"), max_file_bytes=10)
    pipe = job(write(tmp_path / "pipe.txt", b"before"))
    write(changed.path, b"after")
    gone.path.unlink()
    write(grown.path, b"x" * 11)
    pipe.path.unlink()
    os.mkfifo(pipe.path)
    with Pool(1) as pool:
        found = [pool.submit(item).result() for item in (changed, gone, grown, pipe)]
    assert [(outcome.status, outcome.reason_code) for outcome in found] == [
        ("failed", "changed"),
        ("failed", "changed"),
        ("failed", "changed"),
        ("failed", "unreadable"),
    ]
    assert all(outcome.reason and str(tmp_path) not in outcome.reason for outcome in found)


def test_a_document_that_needs_too_much_memory_fails_and_the_next_is_fine(tmp_path):
    bomb = write(tmp_path / "bomb.png", saved(Image.new("RGB", (6500, 6500)), "PNG"))
    small = write(tmp_path / "small.txt", b"some text")
    with Pool(1, Limits(memory_bytes=100 * 1024**2)) as pool:
        outcome = pool.submit(job(bomb)).result()
        assert (outcome.status, outcome.reason_code) == ("failed", "memory")
        assert "100 MiB of memory (limits.memory_bytes)" in outcome.reason
        assert pool.submit(job(small)).result().status == "ok"


@pytest.mark.full
def test_ocr_that_takes_too_long_is_killed_with_its_temporary_files(tmp_path, tesseract, temporary):
    slow = write(tmp_path / "slow.png", saved(dense_page(), "PNG"))
    with Pool(1, Limits(page_seconds=3.0)) as pool:
        outcome = pool.submit(job(slow)).result()
        assert (outcome.status, outcome.reason_code) == ("failed", "timeout")
        assert outcome.reason == "page 1 took more than 3 s (limits.page_seconds)"
        assert (outcome.kind, outcome.media_type) == ("image", "image/png")
        # What was killed may need a moment to be gone.
        wait_until(lambda: not processes_that_mention(temporary), seconds=2)
        assert [path for path in temporary.rglob("*") if path.is_file()] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_full_disk_is_an_error_and_no_documents_fault(tmp_path):
    document = job(write(tmp_path / "a.txt", b"some text"))
    part_file(document.out, 0).symlink_to("/dev/full")
    with Pool(1) as pool, pytest.raises(PoolError, match="No space left"):
        pool.submit(document).result()


def test_importing_the_worker_loads_no_orchestration_and_hides_nothing():
    script = (
        "import sys, tasks.ingest.worker, numpy, pandas\n"
        "print([name for name in ('prefect', 'mlflow', 'torch', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_worker_process_loads_nothing_heavy_even_for_ocr(tmp_path, tesseract):
    picture = write(tmp_path / "a.png", saved(picture_of("picture"), "PNG"))
    with Pool(1) as pool:
        assert pool.submit(job(picture)).result().status == "ok"
        (worker,) = children_of(os.getpid())
        libraries = libraries_of(worker)
    assert "/PIL/" in libraries
    assert [name for name in ("numpy", "pandas", "pyarrow", "torch") if f"/{name}/" in libraries] == []


def test_modules_in_the_current_folder_are_not_imported(tmp_path, monkeypatch):
    write(tmp_path / "json.py", b"raise SystemExit('a document was run')")
    document = write(tmp_path / "a.txt", b"some text")
    monkeypatch.chdir(tmp_path)
    with Pool(1) as pool:
        assert pool.submit(job(document)).result().status == "ok"


PARENT = """
import signal, sys
from contextlib import closing
from pathlib import Path
from tasks.ingest.journal import part_file
from tasks.ingest.pool import ExtractionPool, ExtractJob

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background hands Ctrl-C down ignored
path, digest = Path(sys.argv[1]), sys.argv[2]
with closing(ExtractionPool(2)) as pool:
    futures = [pool.submit(ExtractJob(path, digest, ".png", path.parent / name)) for name in "ab"]
    print("submitted", flush=True)
    [future.result() for future in futures]
"""


@pytest.mark.parametrize(
    "kill", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.full)], ids=["sigkill", "ctrl-c"]
)
def test_when_the_parent_dies_its_workers_are_gone_at_once_in_the_middle_of_ocr(tmp_path, tesseract, kill, temporary):
    pytest.importorskip("tesserocr")
    slow = job(write(tmp_path / "slow.png", saved(dense_page(), "PNG")))
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(slow.path), slow.sha256],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with parent:
        workers = wait_until(lambda: len(found := children_of(parent.pid)) == 2 and found)

        def family() -> list[str]:
            return [name for name, _, session in process_table().values() if session in workers]

        wait_until(lambda: all("tesserocr" in libraries_of(pid) for pid in workers))
        parent.send_signal(kill)
        wait_until(lambda: not family(), seconds=5)
    if kill == signal.SIGINT:
        assert not list(tmp_path.glob("sheepfold-extract-*"))


# With a worker that does what the worst documents do.


def test_a_worker_whose_parent_died_while_it_started_clears_up(tmp_path):
    folder = tmp_path / "sheepfold-extract-x"
    (folder / "worker-0").mkdir(parents=True)
    read_end, write_end = os.pipe()
    os.close(read_end)
    # Its standard input stays open, so that only what it wants to say tells it.
    with subprocess.Popen(
        pool_module.WORKER_COMMAND,
        stdin=subprocess.PIPE,
        stdout=write_end,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "worker-0")},
        start_new_session=True,
    ) as process:
        os.close(write_end)
        assert process.wait(60) == -signal.SIGKILL
    assert not folder.exists()


def test_a_page_that_hangs_is_given_up_and_the_other_pages_are_kept(temporary):
    with Pool(1, QUICK, FAKE_WORKER) as pool:
        outcome = pool.submit(fake("hang")).result()
        assert (outcome.status, outcome.reason_code) == ("ok", "timeout")
        assert outcome.reason.endswith("took more than 0.5 s (limits.page_seconds)")
        assert [page.page for page in outcome.pages] == [1, 2, 3, 4, 5, 6]
        assert outcome.pages[2].error == "page 3 took more than 0.5 s (limits.page_seconds)"
        assert pool.submit(fake("fine")).result().status == "ok"


def test_a_document_that_hangs_while_it_is_opened_fails():
    with Pool(1, QUICK, FAKE_WORKER) as pool:
        outcome = pool.submit(fake("mute")).result()
    assert (outcome.status, outcome.reason_code, outcome.pages) == ("failed", "timeout", [])
    assert outcome.reason == "page 1 took more than 0.5 s (limits.page_seconds)"


@pytest.mark.parametrize(
    ("name", "n_pages", "lost"), [("worse", 6, [2, 3, 4, 5, 6]), ("rough", 40, [8, 16, 24, 32, 40])]
)
def test_a_document_keeps_its_pages_however_many_of_them_crash(name, n_pages, lost):
    with Pool(1, QUICK, FAKE_WORKER) as pool:
        outcome = pool.submit(fake(name)).result()
    assert (outcome.status, outcome.reason_code) == ("ok", "crashed")
    assert [page.page for page in outcome.pages] == list(range(1, n_pages + 1))
    assert [page.page for page in outcome.pages if page.error] == lost
    assert all(page.text for page in outcome.pages if not page.error)


@pytest.mark.parametrize(("name", "status"), [("endless", "ok"), ("endless-blank", "failed")])
def test_pages_that_crash_without_end_do_not_hold_the_pool(monkeypatch, name, status):
    monkeypatch.setattr(pool_module, "MAX_LOSSES", 5)
    with Pool(1, QUICK, FAKE_WORKER) as pool:
        outcome = pool.submit(fake(name)).result()
    assert (outcome.status, outcome.reason_code) == (status, "crashed")
    assert [page.page for page in outcome.pages if page.error] == [2, 3, 4, 5, 6]
    assert outcome.reason.endswith(
        "on page 6; what follows was not read, because 5 extraction processes ended or hung on this document"
    )


def test_pages_put_off_for_ocr_are_shared_by_all_processes():
    with Pool(2, Limits(), FAKE_WORKER) as pool:
        outcome = pool.submit(fake("shared")).result()
    assert [page.page for page in outcome.pages] == [1, 2, 3, 4, 5, 6]
    assert {page.method for page in outcome.pages} == {"ocr"}
    assert outcome.status == "ok"


def test_a_shared_part_that_fails_leaves_a_document_that_says_which_page_it_lacks_and_why():
    with Pool(1, Limits(), FAKE_WORKER) as pool:
        outcome = pool.submit(fake("shared-then-gone")).result()
    assert [bool(page.error) for page in outcome.pages] == [False, True, True, True, True, True]
    assert (outcome.status, outcome.reason_code) == ("ok", "changed")
    assert outcome.reason == "page 2: the file is gone since its folder was walked"


def test_the_rest_of_a_document_speaks_for_itself_and_not_for_the_pages_before_it():
    """The process had served another document, so its death at page 5 counts as no loss of this one."""
    with Pool(1, Limits(), FAKE_WORKER) as pool:
        pool.submit(fake("fine")).result()
        outcome = pool.submit(fake("blank-rest")).result()
    assert [page.page for page in outcome.pages] == [1, 2, 3, 4, 5, 6]
    assert (outcome.status, outcome.reason_code, outcome.reason) == ("ok", "", "")


def test_a_file_that_changes_between_two_parts_is_there_but_says_so():
    with Pool(1, Limits(), FAKE_WORKER) as pool:
        pool.submit(fake("fine")).result()
        outcome = pool.submit(fake("changed-rest")).result()
    assert [page.page for page in outcome.pages] == [1, 2, 3, 4]
    assert (outcome.status, outcome.reason_code) == ("ok", "changed")


def test_members_that_crash_or_hang_cost_no_other_member():
    with Pool(1, QUICK, FAKE_WORKER) as pool:
        outcome = pool.submit(fake("archive")).result()
    assert [(member.locator, member.status, member.reason_code) for member in outcome.members] == [
        ("1.txt", "ok", ""),
        ("2.txt", "failed", "crashed"),
        ("3.txt", "failed", "timeout"),
        ("4.txt", "ok", ""),
    ]
    assert "member '2.txt'" in outcome.members[1].reason
    assert outcome.members[-1].pages[0].text == "some text"
    assert (outcome.status, outcome.reason) == ("ok", "")


def test_a_document_that_never_ends_fails_even_if_each_page_is_quick():
    with Pool(1, QUICK, FAKE_WORKER) as pool:
        outcome = pool.submit(fake("stall")).result()
    assert outcome.reason_code == "timeout"
    assert outcome.reason.startswith("the document took more than 1.5 s (limits.document_seconds); it was on page")


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("crash", "crashed", "signal 11) on page 1"),
        ("exit", "crashed", "exit status 3) on page 1"),
        ("oom", "memory", "killed on page 1"),
        ("garbage", "crashed", "unreadable"),
    ],
)
def test_a_process_that_dies_costs_only_its_document(name, code, words):
    with Pool(1, QUICK, FAKE_WORKER) as pool:
        futures = [pool.submit(fake(kind)) for kind in ("fine", name, "fine")]
        outcomes = [future.result() for future in futures]
    assert [outcome.status for outcome in outcomes] == ["ok", "failed", "ok"]
    assert outcomes[1].reason_code == code
    assert words in outcomes[1].reason


def test_a_document_is_tried_again_if_the_process_was_not_fresh():
    with Pool(1, QUICK, FAKE_WORKER) as pool:
        outcomes = [pool.submit(fake(name)).result() for name in ("fine", "crash-unless-fresh")]
    assert [outcome.status for outcome in outcomes] == ["ok", "ok"]


def test_a_process_that_died_while_idle_is_replaced():
    with Pool(1, QUICK, FAKE_WORKER) as pool:
        pid = int(pool.submit(fake("fine")).result().pages[0].text)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: pid not in process_table())
        assert pool.submit(fake("fine")).result().status == "ok"


def test_a_waiting_thread_keeps_no_document():
    with contextlib.closing(ExtractionPool(1, QUICK, FAKE_WORKER)) as pool:
        future = pool.submit(fake("fine"))
        future.result()
        kept = weakref.ref(future)
        del future
        assert wait_until(lambda: kept() is None)


def test_processes_are_recycled(monkeypatch):
    monkeypatch.setattr(pool_module, "DOCUMENTS_PER_WORKER", 3)
    with Pool(1, QUICK, FAKE_WORKER) as pool:
        pids = [pool.submit(fake("fine")).result().pages[0].text for _ in range(7)]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]


def test_no_process_starts_before_there_is_work():
    with Pool(4, QUICK, FAKE_WORKER):
        assert children_of(os.getpid()) == []


@pytest.mark.full
def test_several_threads_may_submit_at_once():
    with Pool(3, QUICK, FAKE_WORKER) as pool, ThreadPoolExecutor(8) as threads:
        names = ["fine", "crash", "fine", "fine"] * 10
        outcomes = list(threads.map(lambda name: pool.submit(fake(name)).result(), names))
    assert [outcome.status for outcome in outcomes] == ["ok", "failed", "ok", "ok"] * 10


def test_a_text_whose_process_died_after_its_page_has_one_page():
    with Pool(1, QUICK, FAKE_WORKER) as pool:
        outcome = pool.submit(fake("text")).result()
    assert [(page.page, page.text) for page in outcome.pages] == [(1, "some text")]
    assert (outcome.status, outcome.encoding, outcome.reason_code) == ("ok", "utf-8", "memory")


def test_closing_kills_what_is_running_and_cancels_the_rest():
    with Pool(1, Limits(), FAKE_WORKER) as pool:
        futures = [pool.submit(fake("hang")), pool.submit(fake("fine"))]
        wait_until(lambda: len(children_of(os.getpid())) == 1)
    with pytest.raises(PoolError, match="closed"):
        futures[0].result(timeout=5)
    with pytest.raises(CancelledError):
        futures[1].result(timeout=5)


def test_a_closed_pool_takes_no_documents():
    pool = Pool(1, QUICK, FAKE_WORKER)
    pool.close()
    pool.close()
    with pytest.raises(PoolError, match="closed"):
        pool.submit(fake("fine"))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((sys.executable, "-c", "raise SystemExit('no such module')"), "no such module"),
        (("/nonexistent/python",), "/nonexistent/python"),
    ],
)
def test_a_worker_that_cannot_start_is_an_error_and_no_documents_fault(command, words):
    with Pool(1, QUICK, command) as pool, pytest.raises(PoolError, match=words):
        pool.submit(fake("fine")).result()


def killed_until(path: Path, start: int) -> tuple[str, ...]:
    """A worker's command line: it is killed while it starts, but for the given start, which is noted in a file."""
    script = (
        "import os, runpy, signal, sys\n"
        f"noted = {str(path)!r}\n"
        "open(noted, 'a').write('x')\n"
        f"if os.path.getsize(noted) < {start}:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"runpy.run_path({FAKE_WORKER[-1]!r}, run_name='__main__')\n"
    )
    return (sys.executable, "-P", "-c", script)


def test_a_worker_that_is_killed_while_it_starts_is_replaced(tmp_path):
    with Pool(1, Limits(), killed_until(tmp_path / "starts", 3)) as pool:
        assert pool.submit(fake("fine")).result().status == "ok"


def test_workers_that_are_all_killed_while_they_start_are_an_error(tmp_path):
    with (
        Pool(1, Limits(), killed_until(tmp_path / "starts", 100)) as pool,
        pytest.raises(PoolError, match="memory"),
    ):
        pool.submit(fake("fine")).result()
    assert (tmp_path / "starts").read_text() == "x" * pool_module.STARTS

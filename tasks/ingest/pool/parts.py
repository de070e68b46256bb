"""Divide a document over the pool's processes and join their answers into one outcome.

A document is usually one part. It is divided where many of its pages need OCR, so that all processes share them, and
where a page or a member of a container ends its process: the rest is then requested again without it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.ingest.pool.spool import MemberSpool
from tasks.readers.records import Extraction, ExtractOptions, Limits, PageText, ReasonCode, judge_pages

OCR_PAGES_PER_PART = 4  # Some 10 s of work: enough to be worth opening a document for, little enough to share evenly.
# Processes that one document may end or hang. Each costs a new process and up to `limits.page_seconds`, so a file that
# was built to end one at every page or member holds a worker for 50 deadlines at most.
MAX_LOSSES = 50


@dataclass(frozen=True, slots=True)
class ExtractJob:
    """A document to extract.

    Attributes:
        path: The file.
        sha256: The digest that its bytes must have; if they do not, the outcome is "changed".
        suffix: The suffix with the dot, or "".
        options: Options that change the result.
        passwords: Tried on encrypted documents and members.
    """

    path: Path
    sha256: str
    suffix: str
    options: ExtractOptions = field(default_factory=ExtractOptions)
    passwords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessLoss:
    """Why a process ended before its answer.

    Attributes:
        whole_document: True if it missed the document's deadline, after which nothing more is tried.
    """

    code: ReasonCode
    reason: str
    whole_document: bool = False


@dataclass(slots=True)
class PartResult:
    """Answer of one process to a part.

    Attributes:
        pages: The pages that arrived.
        n_members: Number of finished members of a container; the document has them.
        member: Locator of the member that was in work at the end, if any.
        detected: Type of the document, in case the process sends no more.
        done: The process's own outcome, without pages and members; None if the process was lost.
        loss: Why the process was lost; None if it was not.
    """

    pages: list[PageText] = field(default_factory=list)
    n_members: int = 0
    member: str | None = None
    detected: Extraction = field(default_factory=lambda: Extraction("failed"))
    done: Extraction | None = None
    loss: ProcessLoss | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Request to one process.

    Attributes:
        pages: Only these pages, in order; None for all.
        first_page: First page to read, if `pages` is None.
        skip: Number of members of a container that were done before.
        share_ocr: Defer pages that need OCR to other processes.
    """

    document: Document
    pages: tuple[int, ...] | None = None
    first_page: int = 1
    skip: int = 0
    share_ocr: bool = True

    def message(self, limits: Limits) -> dict[str, Any]:
        """Return the message to the worker."""
        job = self.document.job
        return {
            "path": str(job.path),
            "sha256": job.sha256,
            "suffix": job.suffix,
            "options": job.options.to_dict(),
            "passwords": list(job.passwords),
            "limits": limits.to_dict(),
            "pages": self.pages,
            "first_page": self.first_page,
            "skip": self.skip,
            "ocr_pages": OCR_PAGES_PER_PART if self.share_ocr else None,
        }

    def where(self, result: PartResult) -> str:
        """Name the page or member that the process is on."""
        if result.member is not None:
            return f"member {result.member!r}"
        return f"page {self.page_in_work(result)}"

    def rest(self, result: PartResult, lost: bool) -> Part | None:
        """Return the part that is left after a process was lost; None if that was all.

        Args:
            lost: Leave out the page or member in work.
        """
        if result.member is not None or result.n_members:
            return dataclasses.replace(self, skip=self.skip + result.n_members + lost)
        if self.pages is not None:
            left = self.pages[len(result.pages) + lost :]
            return dataclasses.replace(self, pages=left) if left else None
        return dataclasses.replace(self, first_page=self.page_in_work(result) + lost)

    @property
    def is_whole(self) -> bool:
        """True if the part is all of the document, so that the process's outcome holds for the document.

        A container's process goes through the members that were done before, so its parts always are.
        """
        return self.pages is None and self.first_page == 1

    def opens_document(self, result: PartResult) -> bool:
        """True if the process had not passed the document's beginning."""
        return self.pages is None and self.first_page == 1 and not result.pages

    def page_in_work(self, result: PartResult) -> int:
        """Return the number of the page that the process was on."""
        if self.pages is not None:
            return self.pages[min(len(result.pages), len(self.pages) - 1)]
        return result.pages[-1].page + 1 if result.pages else self.first_page


class Document:
    """Collects the answers to a document's parts, from several threads.

    Args:
        job: The document.
        folder: Place of a temporary file for containers with many members.

    Attributes:
        future: Receives the outcome.
    """

    def __init__(self, job: ExtractJob, folder: Path | None = None) -> None:
        self.job = job
        self.future: Future[Extraction] = Future()
        self._lock = threading.Lock()
        self._parts = 1
        self._pages: dict[int, PageText] = {}
        self._members = MemberSpool(folder)
        self._verdicts: list[Extraction] = []
        self._whole_verdict: Extraction | None = None
        self._failure: Extraction | None = None
        self._detected = Extraction("failed")
        self._losses: list[ProcessLoss] = []
        self._given_up = False

    def first_part(self) -> Part:
        """Return the part that asks for all of the document."""
        return Part(self)

    def take_member(self, member: Extraction) -> None:
        """Keep a finished member of a container."""
        with self._lock:
            self._members.append(member)

    def take(self, part: Part, result: PartResult) -> None:
        """Keep the pages and the outcome of a part."""
        with self._lock:
            self._pages.update((page.page, page) for page in result.pages)
            if result.detected.media_type != self._detected.media_type:
                self._detected = result.detected
            if result.done is not None:
                self._verdicts.append(result.done)
                if part.is_whole:
                    self._whole_verdict = result.done
                # Damaged pages carry their own errors.
                damaged = result.pages and result.done.reason_code == "corrupt"
                if result.done.status == "failed" and not damaged:
                    self._failure = self._failure or result.done

    def lose(self, part: Part, result: PartResult) -> Part | None:
        """Record a lost process against its page or member; return the part to try next, if any.

        Pages that were read stay. After `MAX_LOSSES` no more is tried, and the last lost page or the container says so.
        """
        loss = result.loss
        assert loss is not None
        with self._lock:
            is_last = len(self._losses) + 1 >= MAX_LOSSES
            if is_last and not loss.whole_document:
                ended = f"{MAX_LOSSES} extraction processes ended or hung on this document"
                loss = dataclasses.replace(loss, reason=f"{loss.reason}; what follows was not read, because {ended}")
            self._losses.append(loss)
            if loss.whole_document:
                self._given_up = True
            elif result.member is not None:
                self._members.append(Extraction("failed", loss.reason, loss.code, locator=result.member))
                self._given_up = self._given_up or is_last
            elif result.n_members or part.skip or part.opens_document(result):
                self._given_up = True  # The way to the next member or to the first page is the trouble.
            else:
                number = part.page_in_work(result)
                self._pages[number] = _unread(self._pages.get(number), number, loss.reason, loss.code)
            return None if self._given_up or is_last else part.rest(result, lost=True)

    def shared_out(self, part: Part) -> Iterator[Part]:
        """Yield parts for the pages that the first one deferred for OCR."""
        if not part.share_ocr:
            return
        with self._lock:
            waiting = sorted(number for number, page in self._pages.items() if page.method == "deferred")
            chunks = [waiting[at : at + OCR_PAGES_PER_PART] for at in range(0, len(waiting), OCR_PAGES_PER_PART)]
            self._parts += len(chunks)
        for chunk in chunks:
            yield Part(self, pages=tuple(chunk), share_ocr=False)

    def end_part(self) -> None:
        """End a part; the last one sets the outcome."""
        with self._lock:
            self._parts -= 1
            if not self._parts and not self.future.done():
                self.future.set_result(self._outcome())

    def fail(self, error: BaseException) -> None:
        """Pass an error of the pool to the future; only the first one counts."""
        with self._lock:
            if not self.future.done():
                self.future.set_exception(error)

    def _outcome(self) -> Extraction:
        # The outcome of a part holds for the document's type, but not for its status.
        verdicts = [self._whole_verdict] if self._whole_verdict else []
        verdicts += [verdict for verdict in self._verdicts if verdict.status == "ok"] + self._verdicts
        outcome = dataclasses.replace(verdicts[0] if verdicts else self._detected)
        outcome.pages = [self._final_page(self._pages[number]) for number in sorted(self._pages)]
        outcome.members = self._members.result()
        if not self._losses and self._whole_verdict and len(self._verdicts) == 1:
            return outcome
        if not self._members:
            self._judge(outcome)
        if self._losses and (self._given_up or not self._members):
            last = self._losses[-1]
            outcome.reason_code, outcome.reason = last.code, last.reason
            if self._given_up or outcome.status != "ok":
                outcome.status = "failed"
        return outcome

    def _judge(self, outcome: Extraction) -> None:
        judge_pages(outcome, self.job.options.ocr)
        failure = self._failure
        if failure and (outcome.status != "ok" or not outcome.reason_code):
            outcome.status = "ok" if outcome.status == "ok" else "failed"
            outcome.reason_code, outcome.reason = failure.reason_code, failure.reason

    def _final_page(self, page: PageText) -> PageText:
        """The page itself, or for a deferred page that was never read one with the reason."""
        if page.method != "deferred":
            return page
        if self._failure:
            return _unread(page, page.page, self._failure.reason, self._failure.reason_code)
        if self._losses:
            return _unread(page, page.page, self._losses[-1].reason, self._losses[-1].code)
        return _unread(page, page.page, "not read by OCR", "")


def _unread(layer: PageText | None, number: int, error: str, code: ReasonCode) -> PageText:
    text, engine = (layer.text, layer.engine) if layer else ("", "")
    return PageText(number, text, "text" if text.strip() else "none", engine, error=error, error_code=code)

"""The application that `sheepfold serve` runs: OpenAI's completions over HTTP, health and metrics."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tasks.serving.batcher import Progress
from tasks.serving.chat import AskedChat, ChatForm
from tasks.serving.completions import Asked, Refusal, Spelling, finish_reason
from tasks.serving.served import Served, page
from tasks.serving.worker import Busy, Scores, Worker

MOST_BYTES = 2**20  # of the body of a request
FAILED = "an error of the server; its log has the trace"
Handler = Callable[[Request], Awaitable[Response]]
_HEADERS = {413: {"connection": "close"}, 429: {"retry-after": "1"}}  # the rest of a body is not waited for
_log = logging.getLogger("sheepfold.serve")


@dataclass
class Server:
    """The served model, and the limits of serving it.

    Attributes:
        current: the model; another takes its place for later requests. None while there is none.
        newest: returns the model that is to be served if it is not the one given, else None; called every `poll`
            seconds.
        batch_size: completions of a batch.
        most: completions that run or wait.
        api_key: what requests have to name; "" lets everyone in.
        deterministic: give equal requests equal answers, to the bit.
        every: least seconds between two events of a stream; a fast network puts several tokens into each.
        hosts: names by which requests may call the server, so that no page of another site asks it; () for any.
    """

    current: Served | None
    newest: Callable[[Served | None], Served | None] | None = None
    batch_size: int = 32
    most: int = 256
    api_key: str = ""
    deterministic: bool = False
    hosts: tuple[str, ...] = ()
    poll: float = 2.0
    every: float = 0.03

    def __post_init__(self) -> None:
        self.worker = Worker(self.batch_size, self.most, self.deterministic)
        if self.current is not None:
            self.worker.load(self.current.bundle.folder)
            self.worker.serve(self.current.bundle.folder)
        self.metrics = Metrics()

    def served(self) -> Served:
        """Return the served model.

        Raises:
            Refusal: there is none yet.
        """
        if self.current is None:
            raise Refusal(503, "there is no model yet; it is served as soon as there is one", code="no_model")
        return self.current

    def model(self, name: str) -> Served:
        """Return the served model, if it has this name.

        Raises:
            Refusal: it has not, or there is none yet.
        """
        served = self.served()
        if name not in (served.name, *served.names):
            known = ", ".join((served.name, *served.names))
            raise Refusal(404, f"model {name!r} is not served; served is {known}", "model", "model_not_found")
        return served

    async def watch(self) -> None:
        """Serve a newer model as soon as there is one; keep the old one while the new cannot be loaded."""
        told = ""
        while self.newest is not None:
            await asyncio.sleep(self.poll)
            try:
                found = await run_in_threadpool(self.newest, self.current)
                if found is not None:
                    await run_in_threadpool(self.worker.load, found.bundle.folder)
            except Exception as error:  # noqa: BLE001 — the old model is served on, and this is tried again
                if str(error) != told:
                    kept = self.current.name if self.current else "nothing"
                    _log.error("%s is served on, as the newer model cannot be loaded: %s", kept, error)
                told = str(error)
                self.metrics.failed_swaps.inc()
                continue
            told = ""
            if found is not None:
                _log.info("%s is served from now on", found.name)
                self.current = found
                self.worker.serve(found.bundle.folder)


class Metrics:
    """Figures in the form of Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "sheepfold_requests", "Requests by HTTP status.", ["path", "status"], registry=self.registry
        )
        self.prompt_tokens = Counter("sheepfold_prompt_tokens", "Tokens of prompts.", registry=self.registry)
        self.tokens = Counter("sheepfold_completion_tokens", "Tokens of completions.", registry=self.registry)
        self.first_token = Histogram(
            "sheepfold_first_token_seconds",
            "Time from a request to its first token, of streams.",
            registry=self.registry,
        )
        self.seconds = Histogram(
            "sheepfold_request_seconds", "Time from a request to the end of its answer.", registry=self.registry
        )
        self.load = Gauge("sheepfold_completions_in_progress", "Completions that run or wait.", registry=self.registry)
        self.failed_swaps = Counter(
            "sheepfold_failed_swaps", "Attempts to load a newer model that failed.", registry=self.registry
        )


class TextForm:
    """Answers of `/v1/completions`."""

    prefix, name, event_name = "cmpl-", "text_completion", "text_completion"

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the choice of the event that opens a stream; there is none."""
        return None

    def choice(self, index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
        """Return a choice of an answer or an event."""
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    event = choice


class Answer:
    """The continuations of one request; may be made in any thread.

    Args:
        loop: that of the request.

    Raises:
        Refusal: the request cannot be answered, or too many wait.
    """

    def __init__(self, server: Server, request: Asked | AskedChat, loop: asyncio.AbstractEventLoop) -> None:
        self.server, self.served = server, server.model(request.model)
        self.form: TextForm | ChatForm = TextForm()
        if isinstance(request, AskedChat):
            if self.served.template is None:
                message = "this model has no chat template: it continues texts; use /v1/completions"
                raise Refusal(400, message, "model", "unsupported_model")
            self.form = ChatForm(request.top_logprobs)
            request = request.completion(self.served.template, self.served.bundle.model_config.max_seq_len)
        self.asked = asked = request
        bundle = self.served.bundle
        self.prompts = asked.prompts(bundle)
        config = asked.settings(bundle, self.served.defaults, server.deterministic)
        if len(self.prompts) * asked.n > server.most:
            message = f"{len(self.prompts)} prompts with n={asked.n} are more than {server.most} completions"
            raise Refusal(400, message, "n", "invalid_value")
        self.id, self.created = f"{self.form.prefix}{uuid.uuid4().hex}", int(time.time())
        self.started = time.perf_counter()
        self.queue: asyncio.Queue[Progress] = asyncio.Queue()
        self.is_told = False

        def tell(progress: Progress) -> None:
            loop.call_soon_threadsafe(self.queue.put_nowait, progress)

        every = server.every if asked.stream else None
        self.choices = range(len(self.prompts) * asked.n)
        # the id that begins texts was not asked for
        self.begin = int(bundle.start_id is not None and not asked.has_ids)
        self.scored: dict[int, Scores] = {}  # of prompts
        self.n_made = 0
        if asked.max_tokens:
            try:
                self.number = server.worker.begin(bundle.folder, self.prompts, asked.n, config, every, tell)
            except Busy as error:
                raise Refusal(429, str(error), code="rate_limit_exceeded") from error

    async def progress(self) -> AsyncIterator[Progress]:
        """Yield what is generated, until all continuations have ended.

        Raises:
            Refusal: a continuation failed.
        """
        n_left = len(self.choices) if self.asked.max_tokens else 0
        while n_left:
            found = await self.queue.get()
            if found.error is not None:
                raise Refusal(500, f"the model failed: {found.error}", code="model_failed")
            if self.asked.stream and not self.is_told:
                self.server.metrics.first_token.observe(time.perf_counter() - self.started)
                self.is_told = True
            self.n_made += len(found.ids)
            n_left -= found.ended
            yield found

    def finish(self) -> None:
        """Generate no more, and count what was generated."""
        if self.asked.max_tokens:
            self.server.worker.cancel(self.number)
        metrics = self.server.metrics
        metrics.prompt_tokens.inc(sum(map(len, self.prompts)))
        metrics.tokens.inc(self.n_made)
        metrics.seconds.observe(time.perf_counter() - self.started)

    def prompt_of(self, choice: int) -> list[int]:
        return self.prompts[choice // self.asked.n]

    def echoed(self, choice: int) -> str:
        """Return the text of a prompt."""
        return self.served.bundle.tokenizer.decode(self.prompt_of(choice)[self.begin :])

    def document(self, choices: Sequence[dict[str, Any]], name: str = "", **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": name or self.form.event_name,
            "created": self.created,
            "model": self.served.name,
            "choices": list(choices),
            **more,
        }

    def usage(self) -> dict[str, int]:
        n_prompt = sum(map(len, self.prompts))
        return {"prompt_tokens": n_prompt, "completion_tokens": self.n_made, "total_tokens": n_prompt + self.n_made}

    async def whole(self) -> dict[str, Any]:
        """Return the answer."""
        ended: dict[int, Progress] = {}
        async for found in self.progress():
            ended[found.choice] = found
        choices: list[dict[str, Any]] = []
        for number in self.choices:
            end = ended.get(number)
            text, reason = (end.text, finish_reason(end.finish_reason)) if end else ("", "length")
            text = self.echoed(number) + text if self.asked.echo else text
            choice = self.form.choice(number, text, await self._logprobs(number, end), reason)
            if self.asked.sources:
                choice["sources"] = await self._sources(text)
            choices.append(choice)
        return self.document(choices, self.form.name, usage=self.usage())

    async def _logprobs(self, choice: int, end: Progress | None) -> dict[str, Any] | None:
        n_top = self.asked.logprobs
        if n_top is None:
            return None
        bundle, ids = self.served.bundle, self.prompt_of(choice)
        own: list[float | None] = []
        tops: list[list[tuple[int, float]] | None] = []
        if self.asked.echo:
            place = choice // self.asked.n
            if place not in self.scored:
                scores = self.server.worker.score(bundle.folder, ids, n_top)
                self.scored[place] = await asyncio.wrap_future(scores)
            scored, best = self.scored[place]
            own, tops = [None, *scored][self.begin :], [None, *best][self.begin :]
            spelling, told = Spelling(bundle, []), ids[self.begin :]
        else:
            spelling, told = Spelling(bundle, ids), []
        if end:
            told, own, tops = [*told, *end.ids], [*own, *end.logprobs], [*tops, *end.top_logprobs]
        return await run_in_threadpool(spelling.logprobs, told, own, tops)

    async def _sources(self, text: str) -> dict[str, Any] | None:
        find = self.served.sources
        return None if find is None else await run_in_threadpool(find, text)

    async def events(self) -> AsyncIterator[str]:
        """Yield the answer as server-sent events."""
        spelled = {choice: Spelling(self.served.bundle, self.prompt_of(choice)) for choice in self.choices}
        texts = dict.fromkeys(self.choices, "")
        try:
            for choice in self.choices:
                if opening := self.form.opening(choice):
                    yield _event(self.document([opening]))
                if self.asked.echo:
                    texts[choice] = self.echoed(choice)
                    yield self._event(choice, texts[choice])
            async for found in self.progress():
                texts[found.choice] += found.text
                logprobs = None
                if self.asked.logprobs is not None:
                    parts = found.ids, found.logprobs, found.top_logprobs
                    logprobs = await run_in_threadpool(spelled[found.choice].logprobs, *parts)
                more: dict[str, Any] = {}
                if found.ended and self.asked.sources:
                    more["sources"] = await self._sources(texts[found.choice])
                reason = finish_reason(found.finish_reason) if found.ended else None
                yield self._event(found.choice, found.text, reason, logprobs, **more)
            if not self.asked.max_tokens:
                for choice in self.choices:
                    yield self._event(choice, "", "length")
            options = self.asked.stream_options
            if options and options.include_usage:
                yield _event(self.document([], usage=self.usage()))
        except Refusal as error:
            yield _event(error.document())
        except Exception:  # noqa: BLE001 — the client is told
            _log.exception("an answer failed")
            yield _event(Refusal(500, FAILED).document())
        yield "data: [DONE]\n\n"

    def _event(
        self,
        choice: int,
        text: str,
        reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
        **more: Any,
    ) -> str:
        return _event(self.document([{**self.form.event(choice, text, logprobs, reason), **more}]))


class _Streamed(StreamingResponse):
    """An answer as server-sent events; generation ends when the client goes, also before the first event."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.events(), media_type="text/event-stream")
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.answer.finish()


def _event(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document)}\n\n"


def application(server: Server) -> Starlette:
    """Return the application."""

    def described(name: str, served: Served) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": served.created, "owned_by": "sheepfold"}

    async def models(_: Request) -> Response:
        served = server.current
        data = [described(name, served) for name in (served.name, *served.names)] if served else []
        return JSONResponse({"object": "list", "data": data})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        return JSONResponse(described(name, server.model(name)))

    def completions(kind: type[Asked] | type[AskedChat]) -> Handler:
        async def respond(request: Request) -> Response:
            asked: Asked | AskedChat = await run_in_threadpool(kind.read, await _body(request))
            answer = await run_in_threadpool(Answer, server, asked, asyncio.get_running_loop())
            if answer.asked.stream:
                return _Streamed(answer)
            try:
                return JSONResponse(await _until_gone(request, answer.whole()))
            finally:
                answer.finish()

        return respond

    async def playground(_: Request) -> Response:
        return HTMLResponse(page(server.served(), bool(server.api_key)))

    async def health(_: Request) -> Response:
        if not server.worker.is_alive:
            raise Refusal(503, "the server generates nothing any more: start it again")
        served = server.current
        if served is None:
            return JSONResponse({"status": "waiting for a model"})
        return JSONResponse({"status": "ok", "model": served.name, "checkpoint": served.digest})

    async def metrics(_: Request) -> Response:
        server.metrics.load.set(server.worker.n_open)
        return Response(generate_latest(server.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(server.watch())
        yield
        watching.cancel()
        await run_in_threadpool(server.worker.close)

    def route(path: str, handle: Handler, method: str = "GET", needs_key: bool = True) -> Route:
        async def respond(request: Request) -> Response:
            status = 500
            try:
                if server.hosts and request.url.hostname not in server.hosts:
                    raise Refusal(403, f"the server is not called {request.url.hostname}; ask {server.hosts[-1]}")
                if needs_key:
                    _check_key(request, server.api_key)
                response = await handle(request)
                status = response.status_code
            except Refusal as error:
                status = error.status
                response = JSONResponse(error.document(), status, _HEADERS.get(status))
            except ClientDisconnect:
                status = 499  # nobody reads it
                response = Response(status_code=status)
            finally:
                server.metrics.requests.labels(path, str(status)).inc()
            return response

        return Route(path, respond, methods=[method])

    async def unknown(_: Request, error: Exception) -> Response:
        known = "known are /, /v1/models, /v1/completions, /v1/chat/completions, /health and /metrics"
        status = error.status_code if isinstance(error, HTTPException) else 500
        message = f"{error.detail}: {known}" if isinstance(error, HTTPException) else FAILED
        return JSONResponse(Refusal(status, message).document(), status)

    routes = [
        route("/", playground, needs_key=False),
        route("/health", health, needs_key=False),
        route("/metrics", metrics),
        route("/v1/models", models),
        route("/v1/models/{name:path}", model),
        route("/v1/completions", completions(Asked), "POST"),
        route("/v1/chat/completions", completions(AskedChat), "POST"),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: unknown, 500: unknown})


def _check_key(request: Request, key: str) -> None:
    given = request.headers.get("authorization", "").removeprefix("Bearer ").encode("latin-1")
    if key and not hmac.compare_digest(given, key.encode()):
        raise Refusal(
            401, "the API key is missing or wrong: send it as `Authorization: Bearer KEY`", code="invalid_api_key"
        )


async def _body(request: Request) -> bytes:
    """Return the body, of which no more than allowed is read."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_BYTES:
            raise Refusal(413, f"the body has more than {MOST_BYTES:,} bytes; send less", code="too_large")
        parts.append(part)
    return b"".join(parts)


async def _until_gone(request: Request, answer: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Return the answer, unless the client goes before.

    Raises:
        ClientDisconnect: it went.
    """

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answering, leaving = asyncio.ensure_future(answer), asyncio.create_task(gone())
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ClientDisconnect
        return answering.result()
    finally:
        answering.cancel()
        leaving.cancel()

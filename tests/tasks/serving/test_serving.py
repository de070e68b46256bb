"""The server: OpenAI's client gets what the model completes, whoever else asks, and clear errors."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
import uvicorn

from model import ModelConfig, Transformer, save_weights
from tasks.chat.template import Template
from tasks.generation.completions import noise_key
from tasks.serving.app import MOST_BYTES, Server, application
from tasks.serving.run import Announced
from tasks.serving.served import Served
from tasks.tokens.tokenizer_kinds import ByteTokenizer
from tasks.training.bundle import Bundle, TextCompletion

CONTEXT = 64
KEYS = [noise_key(str(number)) for number in range(3)]
PROMPTS = ["Wool is warm", "The fold", "\U0001f411 a sheep", "In 1914 the", "x"]


def bundle_at(folder: Path, seed: int) -> Bundle:
    """A model of random weights that are large enough for clear preferences."""
    tokenizer = ByteTokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Transformer(
            ModelConfig(tokenizer.vocab_size, max_seq_len=CONTEXT, n_layer=2, n_head=2, d_model=16, init_std=0.3)
        )
    folder.mkdir()
    save_weights(folder / "model.safetensors", model)
    (folder / "config.json").write_text(json.dumps({"model": model.config.to_dict()}))
    tokenizer.save(folder / "tokenizer.json")
    return Bundle(folder)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle_at(tmp_path_factory.mktemp("served") / "one", 1)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle_at(tmp_path_factory.mktemp("served") / "two", 2)


@contextmanager
def running(bundle: Bundle | None, template: Template | None = None, **options: Any) -> Iterator[tuple[Server, str]]:
    """A server on a free port of the loopback; yields it and its address."""
    served = Served("sheepfold/1", ("sheepfold",), "one", bundle, template=template) if bundle else None
    server = Server(served, **{"deterministic": True, "every": 0.0, **options})
    config = uvicorn.Config(application(server), host="127.0.0.1", port=0, log_level="error")
    ready = threading.Event()

    program = Announced(config, ready.set)
    socket = config.bind_socket()
    thread = threading.Thread(target=program.run, kwargs={"sockets": [socket]})
    thread.start()
    ready.wait()
    try:
        yield server, f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        program.should_exit = True
        thread.join()


def client_of(address: str, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def address(bundle: Bundle) -> Iterator[str]:
    with running(bundle) as (_, address):
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> openai.OpenAI:
    return client_of(address)


def alone(bundle: Bundle, prompt: str, **sampling: Any) -> TextCompletion:
    return bundle.complete([prompt], deterministic=True, keys=[noise_key("0")], **sampling)[0]


def ask(client: openai.OpenAI, prompt: Any, **options: Any) -> Any:
    return client.completions.create(model="sheepfold", prompt=prompt, **options)


def test_the_served_model_is_listed_by_its_names(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["sheepfold/1", "sheepfold"]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_completion_is_what_the_model_completes(client: openai.OpenAI, bundle: Bundle, prompt: str) -> None:
    found = ask(client, prompt, max_tokens=24, temperature=0.9, top_p=0.95, seed=7)
    expected = alone(bundle, prompt, max_new_tokens=24, temperature=0.9, top_p=0.95, seed=7)
    assert (found.choices[0].text, found.choices[0].finish_reason) == (expected.text, expected.finish_reason)
    assert found.model == "sheepfold/1"
    assert found.usage.completion_tokens == expected.n_tokens
    assert found.usage.prompt_tokens == len(bundle.encode([prompt])[0])


def test_prompts_and_samples_have_an_order(client: openai.OpenAI, bundle: Bundle) -> None:
    found = ask(client, PROMPTS[:3], max_tokens=8, n=2, seed=3, temperature=1)
    expected = bundle.complete(
        PROMPTS[:3], max_new_tokens=8, n_samples=2, seed=3, temperature=1.0, deterministic=True, keys=KEYS
    )
    assert [choice.text for choice in found.choices] == [one.text for one in expected]
    assert [choice.index for choice in found.choices] == list(range(6))
    ids = bundle.encode(PROMPTS[:3])
    assert [choice.text for choice in ask(client, ids, max_tokens=8, n=2, seed=3, temperature=1).choices] == [
        one.text for one in expected
    ]
    assert ask(client, ids[0], max_tokens=8, seed=3, temperature=1).choices[0].text == expected[0].text


def test_a_stream_has_the_same_text_in_pieces(client: openai.OpenAI, bundle: Bundle) -> None:
    sampling = {"seed": 5, "temperature": 1.0}
    whole = alone(bundle, PROMPTS[2], max_new_tokens=40, **sampling)
    stop = whole.text[10:13]
    expected = alone(bundle, PROMPTS[2], max_new_tokens=40, stop=(stop,), **sampling)
    events = list(
        ask(
            client,
            PROMPTS[2],
            max_tokens=40,
            stop=stop,
            stream=True,
            stream_options={"include_usage": True},
            **sampling,
        )
    )
    assert "".join(event.choices[0].text for event in events[:-1]) == expected.text
    assert [event.choices[0].finish_reason for event in events[:-1]][-1] == "stop"
    assert len(events) > 4
    assert events[-1].usage.completion_tokens == expected.n_tokens


def test_events_of_a_stream_keep_apart(bundle: Bundle) -> None:
    with running(bundle, every=3600.0) as (_, address):
        events = list(ask(client_of(address), "x", max_tokens=40, temperature=0, stream=True, logprobs=0))
    assert len(events) == 2  # the first token, and the rest
    expected = alone(bundle, "x", max_new_tokens=40, temperature=0.0)
    assert "".join(event.choices[0].text for event in events) == expected.text
    assert [one for event in events for one in event.choices[0].logprobs.token_logprobs] == expected.logprobs


def test_log_probabilities_are_those_of_the_tokens(client: openai.OpenAI, bundle: Bundle) -> None:
    expected = alone(bundle, PROMPTS[0], max_new_tokens=6, temperature=0.0, top_logprobs=2)
    found = ask(client, PROMPTS[0], max_tokens=6, temperature=0, logprobs=2).choices[0].logprobs
    assert found.token_logprobs == expected.logprobs
    assert [max(best.values()) for best in found.top_logprobs] == [best[0][1] for best in expected.top_logprobs]
    streamed = [
        logprob
        for event in ask(client, PROMPTS[0], max_tokens=6, temperature=0, logprobs=2, stream=True)
        for logprob in event.choices[0].logprobs.token_logprobs
    ]
    assert streamed == expected.logprobs


def test_an_echo_has_the_log_probabilities_of_the_prompt(client: openai.OpenAI, bundle: Bundle) -> None:
    choice = ask(client, PROMPTS[0], max_tokens=0, echo=True, logprobs=1).choices[0]
    assert choice.text == PROMPTS[0]
    ids = bundle.encode([PROMPTS[0]])[0]
    with torch.no_grad():
        logprobs = bundle.model(torch.tensor([ids]))[0].log_softmax(-1)
    expected = [float(logprobs[place, index]) for place, index in enumerate(ids[1:])]
    told = choice.logprobs.token_logprobs
    assert [one for one in told if one is not None] == pytest.approx(expected, abs=1e-5)
    assert "".join(choice.logprobs.tokens) == PROMPTS[0]
    assert choice.logprobs.text_offset == list(range(len(PROMPTS[0])))


def test_many_clients_get_what_each_gets_alone(client: openai.OpenAI, bundle: Bundle) -> None:
    draw = random.Random(1)
    asked = [
        (draw.choice(PROMPTS), {"seed": number, "temperature": draw.choice([0.0, 0.8])}, draw.randrange(1, 30))
        for number in range(40)
    ]

    def fetch(item: tuple[str, dict[str, Any], int]) -> str:
        prompt, sampling, limit = item
        if limit % 3:
            return str(ask(client, prompt, max_tokens=limit, **sampling).choices[0].text)
        events = ask(client, prompt, max_tokens=limit, stream=True, **sampling)
        if limit % 2:
            next(iter(events))
            events.close()  # the client goes
            return ""
        return "".join(event.choices[0].text for event in events)

    with ThreadPoolExecutor(8) as pool:
        for (prompt, sampling, limit), text in zip(asked, pool.map(fetch, asked), strict=True):
            if text or limit % 3:
                assert text == alone(bundle, prompt, max_new_tokens=limit, **sampling).text


def test_another_model_takes_the_place_without_a_lost_request(bundle: Bundle, other: Bundle) -> None:
    fresh = Served("sheepfold/2", ("sheepfold",), "two", other)
    is_there = threading.Event()

    def newest(current: Served) -> Served | None:
        return fresh if is_there.is_set() and current.digest != fresh.digest else None

    bundles = {"sheepfold/1": bundle, "sheepfold/2": other}
    with running(bundle, newest=newest, poll=0.01) as (server, address), ThreadPoolExecutor(4) as pool:
        client = client_of(address)
        models: list[str] = []

        def fetch(number: int) -> None:
            while len(models) < 400 and models.count("sheepfold/2") < 8:
                found = ask(client, PROMPTS[0], max_tokens=20, seed=number)
                expected = alone(bundles[found.model], PROMPTS[0], max_new_tokens=20, seed=number)
                assert found.choices[0].text == expected.text
                models.append(found.model)
                if len(models) > 8:
                    is_there.set()

        for done in [pool.submit(fetch, number) for number in range(4)]:
            done.result()
        assert server.current is fresh
        assert {"sheepfold/1", "sheepfold/2"} == set(models)


def test_a_model_that_cannot_be_loaded_leaves_the_old_one(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    tried = threading.Event()

    def newest(_: Served) -> Served | None:
        if server.metrics.failed_swaps._value.get() > 1:  # the first failure was told
            tried.set()
        raise OSError("model.safetensors is cut off")

    with running(bundle, newest=newest, poll=0.01) as (server, address):
        tried.wait()
        assert ask(client_of(address), "x", max_tokens=1).model == "sheepfold/1"
    (record,) = [record for record in caplog.records if record.name == "sheepfold.serve"]
    assert "sheepfold/1 is served on" in record.getMessage() and "cut off" in record.getMessage()


@pytest.mark.parametrize(
    ("options", "param", "code", "message"),
    [
        ({"model": "gpt-4"}, "model", "model_not_found", "served is sheepfold/1, sheepfold"),
        ({"prompt": "x" * CONTEXT}, "prompt", "context_length_exceeded", f"the model's context holds {CONTEXT}"),
        ({"prompt": [1, 9_999]}, "prompt", "invalid_value", "has the token 9999"),
        ({"prompt": [""] * 129}, "prompt", "invalid_value", "129 prompts, expected up to 128"),
        ({"prompt": []}, "prompt", "invalid_value", "prompt 0 is empty"),
        ({"max_tokens": -1}, "max_tokens", "invalid_value", "greater than or equal to 0"),
        ({"temperature": -0.1}, "temperature", "invalid_value", "greater than or equal to 0"),
        ({"n": 0}, "n", "invalid_value", "greater than or equal to 1"),
        ({"stop": ["a", ""]}, "stop", "invalid_value", "at least 1 character"),
        ({"stop": ["a"] * 17}, "stop", "invalid_value", "at most 16 items"),
        ({"stop": "a" * 501}, "stop", "invalid_value", "at most 500 characters"),
        ({"prompt": ["x"] * 100, "n": 3}, "n", "invalid_value", "more than 256 completions"),
        ({"logit_bias": {"wool": 1}}, "logit_bias", "invalid_value", "numbers from -100 to 100"),
        ({"suffix": "wool"}, "suffix", "unsupported_parameter", "only continue a text"),
        ({"best_of": 5}, "best_of", "unsupported_parameter", "it must be n"),
        ({"tempreature": 1}, "tempreature", "unknown_parameter", "known are model, temperature, top_p"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_bad_request_is_refused_with_its_field(
    address: str, options: dict[str, Any], param: str, code: str, message: str
) -> None:
    response = httpx.post(f"{address}/v1/completions", json={"model": "sheepfold", "prompt": "x", **options})
    error = response.json()["error"]
    assert response.status_code == (404 if code == "model_not_found" else 400)
    assert (error["param"], error["code"]) == (param, code) and message in error["message"]


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b'{"prompt": "\xff"}', b"[1]", b'{"a": ' * 5_000, b"null"])
def test_what_is_no_json_object_is_refused(address: str, body: bytes) -> None:
    response = httpx.post(f"{address}/v1/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


def test_a_large_body_is_not_read_to_its_end(address: str) -> None:
    sent = 0

    def body() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(1_000):
            sent += MOST_BYTES // 8
            yield b" " * (MOST_BYTES // 8)

    try:
        response = httpx.post(f"{address}/v1/completions", content=body())
        assert response.status_code == 413 and "1,048,576 bytes" in response.json()["error"]["message"]
    except (httpx.WriteError, httpx.ReadError):
        pass  # the connection was closed meanwhile
    assert sent < 100 * MOST_BYTES
    assert httpx.get(f"{address}/health").json()["status"] == "ok"


def test_a_model_without_a_template_does_not_chat(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        client.chat.completions.create(model="sheepfold", messages=[{"role": "user", "content": "Hello"}])


def test_other_addresses_are_told_in_the_same_form(address: str) -> None:
    response = httpx.get(f"{address}/v1/embeddings")
    assert response.status_code == 404 and "/v1/completions" in response.json()["error"]["message"]


def test_more_completions_than_may_wait_are_refused_at_once(bundle: Bundle) -> None:
    with running(bundle, most=2) as (_, address):
        client = client_of(address)
        with ask(client, "x", max_tokens=CONTEXT - 2, n=2, stream=True) as running_on:
            next(iter(running_on))
            with pytest.raises(openai.RateLimitError, match="2 completions run or wait, and 2 may") as refused:
                ask(client, "x", max_tokens=1)
        assert refused.value.response.headers["retry-after"] == "1"


def test_a_key_is_asked_for_if_there_is_one(bundle: Bundle) -> None:
    with running(bundle, api_key="wool") as (_, address):
        with pytest.raises(openai.AuthenticationError):
            ask(client_of(address, "cotton"), "x", max_tokens=1)
        assert ask(client_of(address, "wool"), "x", max_tokens=1).choices
        assert httpx.get(f"{address}/health").status_code == 200


@pytest.mark.parametrize("deterministic", [True, False])
def test_nothing_is_generated_for_clients_that_are_gone(bundle: Bundle, deterministic: bool) -> None:
    with running(bundle, deterministic=deterministic, most=1_000) as (server, address):
        client = client_of(address)
        body = {"model": "sheepfold", "prompt": "x", "max_tokens": CONTEXT - 2, "n": 128}
        with httpx.stream("POST", f"{address}/v1/completions", json={**body, "stream": True}) as response:
            next(response.iter_lines())
        with pytest.raises(httpx.ReadTimeout):  # its answer would come as a whole
            httpx.post(f"{address}/v1/completions", json=body, timeout=httpx.Timeout(5, read=1e-3))
        # the worker takes one message after the other
        while server.worker.n_open:
            ask(client, "x", max_tokens=1)


def test_a_batch_that_shrank_goes_on_when_a_client_goes(bundle: Bundle) -> None:
    with running(bundle, deterministic=False) as (server, address):
        client = client_of(address)
        for _ in range(4):
            events = [iter(ask(client, "x", max_tokens=CONTEXT - 2, seed=1, stream=True)) for _ in range(3)]
            next(events[0])
            ask(client, "x", max_tokens=1)  # ends, and its slot with it
            for one in events:
                next(one)
                one.close()
        while server.worker.n_open:
            ask(client, "x", max_tokens=1)
        assert httpx.get(f"{address}/health").json()["status"] == "ok"


def test_more_settings_than_batches_take_turns(bundle: Bundle) -> None:
    with running(bundle) as (_, address), ThreadPoolExecutor(24) as pool:
        client = client_of(address)
        heats = [1 + number / 100 for number in range(24)]
        found = list(pool.map(lambda heat: ask(client, "x", max_tokens=12, temperature=heat, seed=4), heats))
    for heat, one in zip(heats, found, strict=True):
        assert one.choices[0].text == alone(bundle, "x", max_new_tokens=12, temperature=heat, seed=4).text


def test_requests_without_a_seed_differ(bundle: Bundle) -> None:
    with running(bundle, deterministic=False) as (_, address):
        client = client_of(address)
        found = {ask(client, "x", max_tokens=30, temperature=2).choices[0].text for _ in range(5)}
    assert len(found) > 1


def test_null_means_left_out(address: str) -> None:
    body = {"model": "sheepfold", "prompt": "x", "max_tokens": 2, "n": None, "stream": None, "stop": None, "seed": None}
    assert httpx.post(f"{address}/v1/completions", json=body).status_code == 200


def test_ids_are_echoed_and_scored_as_they_were_given(client: openai.OpenAI, bundle: Bundle) -> None:
    ids = bundle.encode(["wool"])[0]
    assert ids[0] == bundle.start_id
    choice = ask(client, ids, max_tokens=1, echo=True, logprobs=1).choices[0]
    assert len(choice.logprobs.token_logprobs) == len(ids) + 1  # as lm-evaluation-harness counts
    assert choice.logprobs.token_logprobs[0] is None


def test_a_served_model_is_told_by_name(client: openai.OpenAI) -> None:
    assert client.models.retrieve("sheepfold/1").id == "sheepfold/1"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_pages_of_other_sites_cannot_ask(bundle: Bundle) -> None:
    with running(bundle, hosts=("localhost", "127.0.0.1")) as (_, address):
        assert httpx.get(f"{address}/health").status_code == 200
        refused = httpx.get(f"{address}/health", headers={"host": "evil.example:80"})
        assert refused.status_code == 403 and "not called evil.example" in refused.json()["error"]["message"]


def test_what_fails_in_a_stream_is_told_in_it(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    def sources(_: str) -> dict[str, Any]:
        raise OSError("the index is gone")

    with running(bundle) as (server, address):
        server.current = Served("sheepfold/1", ("sheepfold",), "one", bundle, sources=sources)
        body = {"model": "sheepfold", "prompt": "x", "max_tokens": 2, "stream": True, "sources": True}
        told = httpx.post(f"{address}/v1/completions", json=body).text
    assert "its log has the trace" in told and told.endswith("data: [DONE]\n\n")
    assert "the index is gone" in caplog.text


def test_weights_that_are_not_finite_fail_the_request_and_not_the_server(tmp_path: Path) -> None:
    broken = bundle_at(tmp_path / "broken", 3)
    with torch.no_grad():
        broken.model.token_embedding.weight.fill_(torch.nan)
    save_weights(tmp_path / "broken" / "model.safetensors", broken.model)
    with running(broken) as (server, address):
        with pytest.raises(openai.InternalServerError, match="weights are not finite"):
            ask(client_of(address), "x", max_tokens=4)
        assert server.worker.n_open == 0


def test_requests_learn_that_the_process_that_generates_was_killed(
    bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    with running(bundle) as (server, address):
        client = client_of(address)
        body = {"model": "sheepfold", "prompt": "x", "max_tokens": CONTEXT - 2, "n": 64, "stream": True}
        with httpx.stream("POST", f"{address}/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(server.worker.pid, signal.SIGKILL)
            told = [line for line in lines if line]
        assert "the process that generates has ended" in told[-2] and told[-1] == "data: [DONE]"
        with pytest.raises(openai.InternalServerError, match="the process that generates has ended"):
            ask(client, "x", max_tokens=1)
        assert httpx.get(f"{address}/health").status_code == 503
        assert server.worker.n_open == 0
    assert "start the server again" in caplog.text


def test_a_client_that_leaves_while_its_prompt_is_scored_harms_nobody(bundle: Bundle) -> None:
    with running(bundle) as (server, address):
        client = client_of(address)
        body = {"model": "sheepfold", "prompt": ["x" * 40] * 64, "max_tokens": 0, "echo": True, "logprobs": 1}
        for _ in range(8):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{address}/v1/completions", json=body, timeout=httpx.Timeout(5, read=0.02))
        assert ask(client, "x", max_tokens=2).choices
        assert server.worker.is_alive


def test_large_requests_and_large_answers_pass_each_other(bundle: Bundle) -> None:
    # both directions of the pipe hold 64 KiB
    with running(bundle, most=1_000) as (_, address), ThreadPoolExecutor(8) as pool:
        client = client_of(address)
        prompts = ["x" * 50] * 128

        def fetch(seed: int) -> int:
            return len(ask(client, prompts, max_tokens=4, logprobs=20, seed=seed).choices)

        assert list(pool.map(fetch, range(7))) == [128] * 7


def test_figures_are_told_in_the_form_of_prometheus(bundle: Bundle) -> None:
    with running(bundle) as (_, address):
        ask(client_of(address), "x", max_tokens=3)
        told = dict(
            line.rsplit(" ", 1)
            for line in httpx.get(f"{address}/metrics").text.splitlines()
            if not line.startswith("#")
        )
    assert float(told["sheepfold_completion_tokens_total"]) == 3
    assert float(told['sheepfold_requests_total{path="/v1/completions",status="200"}']) == 1


def test_a_server_may_wait_for_its_first_model(bundle: Bundle) -> None:
    is_there = threading.Event()

    def newest(current: Served | None) -> Served | None:
        if is_there.is_set() and current is None:
            return Served("sheepfold/1", ("sheepfold",), "one", bundle)
        return None

    with running(None, newest=newest, poll=0.01) as (_, address):
        client = client_of(address)
        assert httpx.get(f"{address}/health").json() == {"status": "waiting for a model"}
        assert client.models.list().data == []
        assert httpx.get(address).status_code == 503
        with pytest.raises(openai.InternalServerError, match="there is no model yet"):
            ask(client, "x")
        is_there.set()
        while httpx.get(f"{address}/health").json()["status"] != "ok":
            pass
        assert ask(client, "x", max_tokens=1).model == "sheepfold/1"

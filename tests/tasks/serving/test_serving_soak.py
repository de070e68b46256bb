"""Ten thousand requests to one server: whole ones, streams, clients that go, bad bodies, while models change."""

from __future__ import annotations

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from test_serving import CONTEXT, PROMPTS, alone, bundle_at, running

from tasks.serving.served import Served
from tasks.training.bundle import Bundle

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

REQUESTS, CLIENTS, PER_MODEL = 10_000, 8, 250
NAMES = ("sheepfold/1", "sheepfold/2")
BAD: list[bytes] = [
    b"",
    b"\xff\xfe",
    b'{"model": "sheepfold"}',
    b'{"model": "other", "prompt": "x"}',
    b'{"model": "sheepfold", "prompt": "x", "max_tokens": -1}',
    json.dumps({"model": "sheepfold", "prompt": "x" * CONTEXT}).encode(),
    b" " * (2**20 + 1),
]


def test_no_answer_is_mixed_up_and_no_memory_is_kept(tmp_path: Path) -> None:
    bundles = {name: bundle_at(tmp_path / name[-1], int(name[-1])) for name in NAMES}
    asks = [
        {"prompt": prompt, "max_tokens": limit, "temperature": heat, "seed": seed}
        for prompt in PROMPTS
        for limit, heat, seed in ((1, 0.0, 1), (9, 0.8, 2), (24, 1.3, 3), (24, 0.0, 4))
    ]
    expected = {
        (name, number): alone(
            bundle,
            item["prompt"],
            max_new_tokens=item["max_tokens"],
            temperature=item["temperature"],
            seed=item["seed"],
        ).text
        for name, bundle in bundles.items()
        for number, item in enumerate(asks)
    }
    lock, n_done, models, memory = threading.Lock(), 0, [NAMES[0]], []

    def newest(current: Served) -> Served | None:
        name = NAMES[n_done // PER_MODEL % 2]
        if current.name == name:
            return None
        models.append(name)
        return Served(name, ("sheepfold",), name, Bundle(tmp_path / name[-1]))

    def answered(client: httpx.Client, draw: random.Random) -> None:
        number, kind = draw.randrange(len(asks)), draw.random()
        body: dict[str, Any] = {"model": "sheepfold", **asks[number]}
        if kind < 0.1:
            assert 400 <= client.post("/v1/completions", content=draw.choice(BAD)).status_code < 500
        elif kind < 0.2:  # the client goes in the middle
            with client.stream("POST", "/v1/completions", json={**body, "max_tokens": 40, "stream": True}) as response:
                next(response.iter_lines())
        elif kind < 0.3:  # the client goes before the answer
            with suppress(httpx.ReadTimeout):
                client.post("/v1/completions", json={**body, "n": 4}, timeout=httpx.Timeout(60, read=1e-3))
        elif kind < 0.6:
            found = client.post("/v1/completions", json=body).raise_for_status().json()
            assert found["choices"][0]["text"] == expected[found["model"], number]
        else:
            told = client.post("/v1/completions", json={**body, "stream": True}).raise_for_status().text
            events = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: {")]
            text = "".join(event["choices"][0]["text"] for event in events)
            assert text == expected[events[0]["model"], number]

    def work(seed: int) -> None:
        nonlocal n_done
        draw = random.Random(seed)
        with httpx.Client(base_url=address, timeout=60) as client:
            for _ in range(REQUESTS // CLIENTS):
                answered(client, draw)
                with lock:
                    n_done += 1
                    if n_done % (REQUESTS // 5) == 0:
                        both = (psutil.Process(), psutil.Process(server.worker.pid))
                        memory.append([process.memory_info().rss for process in both])

    with running(bundles[NAMES[0]], newest=newest, poll=0.05) as (server, address):
        with ThreadPoolExecutor(CLIENTS) as pool:
            for done in [pool.submit(work, seed) for seed in range(CLIENTS)]:
                done.result()
        while server.worker.n_open:
            httpx.post(f"{address}/v1/completions", json={"model": "sheepfold", "prompt": "x", "max_tokens": 1})
        assert httpx.get(f"{address}/health").json()["status"] == "ok"
    assert len(models) > REQUESTS // PER_MODEL // 2
    for of_one in zip(*memory[1:], strict=True):
        assert max(of_one) <= 1.05 * of_one[0], memory

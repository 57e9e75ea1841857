"""The real model through the real command line, asked by the official client: answers, streams, disconnects, nonsense."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.e2e.real_server import RealServer
from tests.patience import PATIENCE_S, eventually

MODEL = "smollm2-135m"
# Without the request to complete, this model wavers between two languages, and the last bit of a sum decides.
QUESTION: Any = [{"role": "user", "content": "Complete this sentence: The capital of France is"}]
PROMPT = "The mill wheel turns because the water"


def test_it_answers_a_question(server: RealServer) -> None:
    answer = server.client().chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=30)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def test_a_stream_makes_the_same_text_as_a_whole_answer(server: RealServer) -> None:
    client = server.client()
    asked: Any = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 60}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**asked, stream=True)]
    assert "".join(pieces) == whole
    assert len(pieces) > 3


def test_a_text_is_continued_and_stops_where_it_should(server: RealServer) -> None:
    asked: Any = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "max_tokens": 40}
    whole = server.client().completions.create(**asked).choices[0].text
    stop = whole[len(whole) // 2 :][:4]
    stopped = server.client().completions.create(**asked, stop=stop).choices[0]
    assert stopped.text == whole.split(stop)[0]
    assert stopped.finish_reason == "stop"


def test_a_seed_gives_the_same_tokens_whatever_runs_beside_it(server: RealServer) -> None:
    asked: Any = {"model": MODEL, "prompt": PROMPT, "temperature": 1.0, "seed": 11, "max_tokens": 24}

    async def crowd() -> list[str]:
        client = server.async_client()
        others = [client.completions.create(**{**asked, "seed": seed, "max_tokens": 8 + seed}) for seed in range(10)]
        answers = await asyncio.gather(client.completions.create(**asked), *others)
        return [answer.choices[0].text for answer in answers]

    alone = server.client().completions.create(**asked).choices[0].text
    in_a_crowd = asyncio.run(crowd())
    assert in_a_crowd[0] == alone
    assert len(set(in_a_crowd)) > 5


def test_a_prompt_asked_again_is_found_in_the_cache(server: RealServer) -> None:
    asked: Any = {"model": MODEL, "prompt": PROMPT + " runs" * 200, "temperature": 0, "max_tokens": 4}
    first, second = (server.client().completions.create(**asked) for _ in range(2))
    assert first.choices[0].text == second.choices[0].text
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) > 150


def test_the_seconds_of_the_start_are_kept_as_metrics(server: RealServer) -> None:
    text = httpx.get(f"{server.url}/metrics", timeout=PATIENCE_S).text
    for phase in ("start_process", "load_weights", "allocate_kv_cache", "warm_up", "load_tokenizer"):
        assert f'phase="{phase}"' in text


def test_the_http_process_computes_nothing(server: RealServer) -> None:
    """Its memory maps hold nothing that computes. The engine's hold the native kernels, or torch where there are none; not
    both."""

    def what_computes(pid: int) -> list[str]:
        maps = Path(f"/proc/{pid}/maps").read_text()
        return [name for name in ("libtorch", "ops/native/_kernels") if name in maps]

    assert what_computes(server.process.pid) == []
    assert len(what_computes(server.engine_pid)) == 1


# Clients that go away


def long_request(*, stream: bool, n: int = 1) -> dict[str, Any]:
    return {
        "model": MODEL, "prompt": PROMPT, "max_tokens": 1500, "ignore_eos": True, "stream": stream, "n": n,
    }  # fmt: skip


def test_a_stream_that_nobody_reads_any_more_frees_every_block(server: RealServer) -> None:
    with httpx.stream("POST", f"{server.url}/v1/completions", json=long_request(stream=True), timeout=PATIENCE_S) as answer:
        lines = answer.iter_lines()  # kept, since httpx hangs up when nobody holds the iterator any more
        assert next(lines).startswith("data:")
        assert not server.is_at_rest()
    eventually(server.is_at_rest, "all blocks are free")


def test_a_whole_answer_that_nobody_waits_for_any_more_frees_every_block(server: RealServer) -> None:
    with contextlib.suppress(httpx.ReadTimeout):
        httpx.post(
            f"{server.url}/v1/completions", json=long_request(stream=False, n=3), timeout=httpx.Timeout(PATIENCE_S, read=1.0)
        )
        pytest.fail("the answer came before the client lost its patience")
    eventually(server.is_at_rest, "all blocks are free")


def test_many_who_go_at_once_leave_nothing_behind(server: RealServer) -> None:
    async def one(client: httpx.AsyncClient, patience_s: float, stream: bool) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await client.post("/v1/completions", json=long_request(stream=stream))

    async def crowd() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as client:
            await asyncio.gather(*(one(client, 0.05 * number, number % 2 == 0) for number in range(40)))

    asyncio.run(crowd())
    eventually(server.is_at_rest, "all blocks are free")
    assert server.health() == 200


# Nonsense

BAD_BODIES: dict[str, tuple[str, bytes | dict[str, Any]]] = {
    "no JSON": ("chat/completions", b"{'model': 1"),
    "not UTF-8": ("chat/completions", b'{"model": "\xff\xfe"}'),
    "half a character": ("completions", b'{"model": "smollm2-135m", "prompt": "\\ud800"}'),
    "JSON without end": ("completions", b"[" * 100_000),
    "another kind of JSON": ("completions", b"[]"),
    "no messages": ("chat/completions", {"model": MODEL, "messages": []}),
    "an unknown role": ("chat/completions", {"model": MODEL, "messages": [{"role": "miller", "content": "x"}]}),
    "an unknown field": ("completions", {"model": MODEL, "prompt": "x", "temprature": 1}),
    "another model": ("completions", {"model": "gpt-9", "prompt": "x"}),
    "too warm": ("completions", {"model": MODEL, "prompt": "x", "temperature": 1e9}),
    "no probability": ("completions", {"model": MODEL, "prompt": "x", "top_p": 0}),
    "no answer": ("completions", {"model": MODEL, "prompt": "x", "max_tokens": 0}),
    "a number as text": ("completions", {"model": MODEL, "prompt": "x", "max_tokens": "many"}),
    "too many answers": ("completions", {"model": MODEL, "prompt": "x", "n": 10_000}),
    "more answers than fit": ("completions", {"model": MODEL, "prompt": "x", "n": 100}),
    "a prompt too long": ("completions", {"model": MODEL, "prompt": "water " * 5000}),
    "an answer too long": ("completions", {"model": MODEL, "prompt": "x", "max_tokens": 1_000_000}),
    "a token that is none": ("completions", {"model": MODEL, "prompt": [10_000_000]}),
    "a negative token": ("completions", {"model": MODEL, "prompt": [-1]}),
    "a bias for no token": ("completions", {"model": MODEL, "prompt": "x", "logit_bias": {"999999": 1}}),
    "an empty stop": ("completions", {"model": MODEL, "prompt": "x", "stop": ""}),
    "a priority where none counts": ("completions", {"model": MODEL, "prompt": "x", "priority": 3}),
    "a seed too large": ("completions", {"model": MODEL, "prompt": "x", "seed": 10**40}),
}


@pytest.mark.parametrize("what", BAD_BODIES)
def test_nonsense_is_refused_and_harms_nobody(server: RealServer, what: str) -> None:
    door, body = BAD_BODIES[what]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{server.url}/v1/{door}", content=content, headers=headers, timeout=PATIENCE_S)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["error"]["message"]
    assert server.health() == 200


def test_after_all_that_it_answers_as_before(server: RealServer) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.client().completions.create(model=MODEL, prompt="x", max_tokens=10**6)
    assert caught.value.param == "max_tokens"
    answer = server.client().chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=30)
    assert "Paris" in (answer.choices[0].message.content or "")
    eventually(server.is_at_rest, "all blocks are free")

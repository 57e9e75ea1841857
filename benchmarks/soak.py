"""2,000 requests, many of which are given up at random moments: every block must come back, and memory must not grow."""

import argparse
import asyncio
import time
from random import Random

import httpx
from benchmarks.harness import Figure, Result, Target
from benchmarks.served import MODEL, Served, serve
from benchmarks.texts import long_text

from headrace.base.rng import stream
from headrace.base.units import MIB

NUM_AT_ONCE = 48
SHARE_GIVEN_UP = 0.4
MAX_GROWTH = 0.05
"""Of resident memory, from a quarter of the way to the end: what an allocator's own unevenness explains."""


async def send(client: httpx.AsyncClient, rng: Random, text: str) -> str:
    start = rng.randrange(len(text) - 400)
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text[start : start + rng.randrange(10, 200)]}],
        "max_tokens": rng.randrange(1, 32),
        "n": rng.choice([1, 1, 1, 3]),
        "stream": rng.random() < 0.5,
        "temperature": rng.choice([0.0, 1.0]),
        "ignore_eos": True,
    }
    patience_s = rng.uniform(0.0, 4.0) if rng.random() < SHARE_GIVEN_UP else 300.0
    try:
        async with asyncio.timeout(patience_s):
            if body["stream"]:
                async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                    async for _ in response.aiter_lines():
                        pass
            else:
                response = await client.post("/v1/chat/completions", json=body)
            return f"status {response.status_code}"
    except TimeoutError:
        return "given up"


async def drive(served: Served, num_requests: int, seed: int) -> dict[str, int]:
    rng, text = stream(seed, "soak"), long_text()
    outcomes: dict[str, int] = {}
    room = asyncio.Semaphore(NUM_AT_ONCE)
    limits = httpx.Limits(max_connections=NUM_AT_ONCE)

    async with httpx.AsyncClient(base_url=served.url, timeout=300, limits=limits) as client:

        async def one(own: Random) -> None:
            async with room:
                outcome = await send(client, own, text)
                outcomes[outcome] = outcomes.get(outcome, 0) + 1

        await asyncio.gather(*(one(Random(rng.getrandbits(64))) for _ in range(num_requests)))
    return outcomes


def wait_until_idle(served: Served) -> None:
    deadline = time.monotonic() + 60
    while served.metric("vllm:num_requests_running") + served.metric("vllm:num_requests_waiting") > 0:
        assert time.monotonic() < deadline, "requests remain that nobody waits for"
        time.sleep(0.2)
    time.sleep(1.5)  # an idle engine is asked for its numbers every second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-requests", type=int, default=2_000)
    options = parser.parse_args()
    quarter = options.num_requests // 4
    outcomes: dict[str, int] = {}
    memory: list[dict[str, int]] = []
    usage: list[float] = []
    with serve("--kv-cache-memory", "256M", "--max-model-len", "2048") as served:
        for index in range(4):
            for name, count in asyncio.run(drive(served, quarter, index)).items():
                outcomes[name] = outcomes.get(name, 0) + count
            wait_until_idle(served)
            memory.append(served.resident_bytes())
            usage.append(served.metric("vllm:kv_cache_usage_perc"))
            print(f"  {sum(outcomes.values())} requests: {outcomes}, KV in use {usage[-1]:.0%}, {memory[-1]}", flush=True)
    growth = max(memory[-1][name] / memory[0][name] - 1 for name in memory[0])
    figures = [Figure(f"resident, {name}", "MiB", tuple(m[name] / MIB for m in memory)) for name in memory[0]]
    failed = sum(count for name, count in outcomes.items() if name not in ("status 200", "given up"))
    Result(
        "soak",
        f"{sum(outcomes.values())} requests over HTTP, {outcomes.get('given up', 0)} of them given up at random moments, "
        "streaming and not; memory after each quarter",
        figures=figures,
        targets=[
            Target("no block is held at the end", 100 * usage[-1], "% of blocks", usage[-1] == 0),
            Target(
                f"memory grows by less than {MAX_GROWTH:.0%} after the first quarter", 100 * growth, "%", growth < MAX_GROWTH
            ),
            Target("every request is answered or given up by its client", failed, "others", failed == 0),
        ],
    ).save()


if __name__ == "__main__":
    main()

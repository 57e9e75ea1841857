"""Short requests beside long prompts: how long the short ones wait for their first token, with prompts cut into chunks and
not, and what that costs in throughput."""

import argparse
import asyncio
import time

import httpx
from benchmarks.harness import Figure, Result, Target
from benchmarks.served import MODEL, Served, serve
from benchmarks.texts import long_text

LONG_CHARACTERS = 5_000  # some 1,400 tokens
NUM_LONG = 4
NUM_SHORT = 24
SETTINGS = {
    "chunks of 256": ("--max-num-batched-tokens", "512", "--max-tokens-per-prompt-chunk", "256"),
    "whole prompts": (
        "--max-num-batched-tokens",
        "2048",
        "--max-tokens-per-prompt-chunk",
        "2048",
        "--min-prompt-tokens-per-step",
        "2048",
    ),
}


async def ask(client: httpx.AsyncClient, prompt: str, max_tokens: int) -> float:
    """Seconds to the first token."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "stream": True, "temperature": 0, "ignore_eos": True}
    began, first = time.perf_counter(), 0.0
    async with client.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data:") and not first:
                first = time.perf_counter() - began
    return first


async def drive(served: Served) -> tuple[list[float], float]:
    """Long prompts one after another, four at a time, while short ones come by every 300 ms."""
    text = long_text()
    async with httpx.AsyncClient(base_url=served.url, timeout=300) as client:
        began = time.perf_counter()
        longs = [
            asyncio.create_task(ask(client, text[i * LONG_CHARACTERS : (i + 1) * LONG_CHARACTERS], 16))
            for i in range(NUM_LONG)
        ]
        shorts = []
        for index in range(NUM_SHORT):
            start = (NUM_LONG * LONG_CHARACTERS) + 100 * index
            shorts.append(asyncio.create_task(ask(client, text[start : start + 60], 16)))
            await asyncio.sleep(0.3)
        waits = await asyncio.gather(*shorts)
        await asyncio.gather(*longs)
        return list(waits), time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-runs", type=int, default=3)
    options = parser.parse_args()
    waits: dict[str, list[float]] = {name: [] for name in SETTINGS}
    totals: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for _ in range(options.num_runs):
        for name, flags in SETTINGS.items():
            with serve("--no-enable-prefix-caching", *flags) as served:
                run_waits, total = asyncio.run(drive(served))
            waits[name].append(sorted(run_waits)[-1])
            totals[name].append(total)
            print(f"  {name}: worst wait of a short one {waits[name][-1]:.3g} s, everything {total:.3g} s", flush=True)
    figures = [Figure(f"worst TTFT of {NUM_SHORT} short requests, {name}", "s", tuple(waits[name])) for name in SETTINGS]
    figures += [Figure(f"all requests done, {name}", "s", tuple(totals[name])) for name in SETTINGS]
    ratio = figures[1].median / figures[0].median
    Result(
        "chunked_prefill",
        f"{NUM_LONG} prompts of about 1,400 tokens at once, and {NUM_SHORT} of about 15 tokens, one every 300 ms",
        figures=figures,
        targets=[Target("chunks shorten the worst wait of a short request", ratio, "x", ratio > 1)],
    ).save()


if __name__ == "__main__":
    main()

"""32 requests that share a 1024-token beginning, prefix cache on and off: the time, and whether the text is the same."""

import argparse
import time

from benchmarks.harness import Figure, Result, Target, interleave, ratios
from benchmarks.local_engine import LocalEngine
from benchmarks.models import smollm2_path
from benchmarks.texts import prompts

from headrace.engine.host.tokenizer import load_tokenizer

NUM_REQUESTS = 32
SHARED, OWN = 1024, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-runs", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    path = smollm2_path()
    tokenizer = load_tokenizer(path)
    shared, *own = prompts(tokenizer, [SHARED] + [OWN] * NUM_REQUESTS)
    batch = [shared + ids for ids in own]
    engine = LocalEngine(path, dtype=options.dtype)
    answers: dict[bool, list[list[int]]] = {}

    def run(is_on: bool) -> float:
        engine.restart(enable_prefix_caching=is_on)
        began = time.perf_counter()
        answers[is_on] = engine.generate(batch, max_tokens=options.max_tokens)
        return time.perf_counter() - began

    runs = interleave({"on": lambda: run(True), "off": lambda: run(False)}, num_runs=options.num_runs, num_warm_ups=0)
    speedup = Figure("off / on", "x", ratios(runs["off"], runs["on"]))
    num_equal = sum(a == b for a, b in zip(answers[True], answers[False], strict=True))
    result = Result(
        "prefix_cache",
        f"{NUM_REQUESTS} requests sharing {SHARED} prompt tokens, {OWN} of their own, {options.max_tokens} generated, "
        f"{engine.worker.dtype}, all at once",
        figures=[Figure("cache on", "s", tuple(runs["on"])), Figure("cache off", "s", tuple(runs["off"])), speedup],
        targets=[
            Target("at least 4x faster with the cache on than off", speedup.median, "x", speedup.median >= 4),
            Target("identical text", num_equal, f"of {NUM_REQUESTS} answers equal", num_equal == NUM_REQUESTS),
        ],
    )
    result.save()
    engine.close()


if __name__ == "__main__":
    main()

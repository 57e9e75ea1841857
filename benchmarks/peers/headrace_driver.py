"""This engine for `contenders.Driver`: the real mind and worker in one process.

Reads tasks as JSON lines, answers with times.
"""

import json
import sys
import time
from pathlib import Path

from benchmarks.local_engine import LocalEngine


def main() -> None:
    engine = LocalEngine(Path(sys.argv[1]), num_blocks=6144, max_model_len=4096, max_num_batched_tokens=512)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        began = time.perf_counter()
        answers = engine.generate(task["prompts"], max_tokens=task["max_tokens"])
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "num_tokens": sum(map(len, answers))}), flush=True)
    engine.close()


if __name__ == "__main__":
    main()

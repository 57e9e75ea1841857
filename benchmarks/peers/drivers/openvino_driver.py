"""OpenVINO GenAI for `contenders.Driver`, run in that peer's own environment: continuous batching, prefix cache on, greedy.

Reads tasks as JSON lines, answers with times. Imports nothing of this project.
"""

import json
import sys
import time

import numpy as np
import openvino
import openvino_genai


def main() -> None:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 3  # GB
    scheduler.max_num_seqs = 64
    scheduler.enable_prefix_caching = True
    scheduler.dynamic_split_fuse = True
    pipeline = openvino_genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU")
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = task["max_tokens"], True, False
        prompts = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in task["prompts"]]
        began = time.perf_counter()
        answers = pipeline.generate(prompts, [config] * len(prompts))
        seconds = time.perf_counter() - began
        num_tokens = sum(len(answer.m_generation_ids[0]) for answer in answers)
        print(json.dumps({"seconds": seconds, "num_tokens": num_tokens}), flush=True)


if __name__ == "__main__":
    main()

"""vLLM's CPU build for `contenders.Driver`, run in that peer's own environment: BF16, prefix cache on, greedy.

Reads tasks as JSON lines, answers with times. Imports nothing of this project.
"""

import json
import os
import sys
import time


def main() -> None:
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints must not come between the answers
    from vllm import LLM, SamplingParams

    engine = LLM(model=sys.argv[1], dtype="bfloat16", max_model_len=4096, max_num_seqs=64, disable_log_stats=True)
    answers_to.write(json.dumps({"ready": True}) + "\n")
    answers_to.flush()
    for line in sys.stdin:
        task = json.loads(line)
        sampling = SamplingParams(temperature=0.0, max_tokens=task["max_tokens"], ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": prompt} for prompt in task["prompts"]]
        began = time.perf_counter()
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - began
        num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        answers_to.write(json.dumps({"seconds": seconds, "num_tokens": num_tokens}) + "\n")
        answers_to.flush()


if __name__ == "__main__":
    main()

"""The embedded model for real: greedy answers are those of `transformers`, token for token, however the work is cut.

The reference reads the same GGUF file with `transformers`' own loader, in float32. A greedy answer is checked with one plain
forward pass over prompt and answer: every token must be the most probable one after all before it.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cpu.engine_driver import BLOCK_SIZE, EngineDriver, answers_of, make_worker
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from headrace.engine.host.tokenizer import load_tokenizer
from headrace.engine.mind.sampling_params import BeamSearch, SamplingParams
from headrace.engine.worker.worker import Worker

NUM_BLOCKS = 1600
NUM_ANSWER_TOKENS = 16
END_OF_TURN = 2

Prompts = Mapping[str, Sequence[int]]

_SUBJECTS = ["The miller", "A young engineer", "My grandmother", "The river", "Nobody in town", "The committee", "A heron"]
_VERBS = ["repaired", "described", "measured", "forgot about", "was proud of", "painted", "asked about", "slowly crossed"]
_OBJECTS = [
    "the old water wheel", "a bridge of 12 arches", "three letters from Lisbon", "the price of flour", "an unusual theory",
    "the sluice gate", "a map of the valley", "the first snow", "π = 3.14159", "the naïve café owner's recipe", "水車",
]  # fmt: skip
_ENDS = [".", ", because it was late.", "; nobody noticed!", ' and said: "Again?"', ".\n\n", ".\n- ", " (see section 4)."]


def text(rng: random.Random, num_sentences: int) -> str:
    return " ".join(
        f"{rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.choice(_OBJECTS)}{rng.choice(_ENDS)}"
        for _ in range(num_sentences)
    )


def varied_prompts(path: Path, lengths: Sequence[int]) -> dict[str, list[int]]:
    """Prose of exactly so many tokens each, no two beginning alike."""
    tokenizer = load_tokenizer(path)
    prompts = {}
    for i, length in enumerate(lengths):
        words = text(random.Random(i), num_sentences=length // 6 + 2)
        prompts[f"{i}: {length} tokens"] = tokenizer.encode(words)[i % 3 :][:length]
    assert [len(prompt) for prompt in prompts.values()] == list(lengths)
    return prompts


@pytest.fixture(scope="module")
def reference(smollm2_path: Path) -> Any:
    return transformers_model(smollm2_path, LlamaConfig, LlamaForCausalLM)


@pytest.fixture(scope="module")
def worker(smollm2_path: Path) -> Worker:
    return make_worker(smollm2_path, dtype="float32", num_blocks=NUM_BLOCKS, max_model_len=2048, num_threads=1)


def transformers_model(path: Path, config_class: Any, model_class: Any) -> Any:
    """The library's own reading of a GGUF file, in float32. (Its `from_pretrained` would ask for another package.)"""
    facts = load_gguf_checkpoint(str(path))["config"]
    config = config_class(**{key: value for key, value in facts.items() if key != "model_type"})
    with torch.device("meta"):
        shapes = model_class(config)
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=shapes)["tensors"]
    model = model_class(config)
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model.eval().float()


@pytest.mark.parametrize("width", [2, 4])
def test_beams_of_the_real_model_are_those_of_transformers(
    smollm2_path: Path, worker: Worker, reference: Any, width: int
) -> None:
    (prompt,) = varied_prompts(smollm2_path, [37]).values()
    with torch.inference_mode():
        found = reference.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
            num_beams=width, num_return_sequences=width, max_new_tokens=NUM_ANSWER_TOKENS, eos_token_id=END_OF_TURN,
            pad_token_id=0, return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
    driver = EngineDriver(worker, num_blocks=NUM_BLOCKS)
    search = BeamSearch(width=width)
    sampling = SamplingParams(max_tokens=NUM_ANSWER_TOKENS, logprobs=0, stop_token_ids=(END_OF_TURN,), beam_search=search)
    driver.add("beams", prompt, sampling, num_sequences=width)
    answers = driver.run()
    driver.close()
    for index, row in enumerate(found.sequences[:, len(prompt) :].tolist()):
        assert row[: len(answers["beams", index])] == answers["beams", index]
    scores = [sum(entry.logprob for entry in one.logprobs) / len(one.new_token_ids) for one in driver.updates]
    assert scores == pytest.approx(found.sequences_scores.tolist(), abs=1e-3)


def greedy(num_tokens: int = NUM_ANSWER_TOKENS) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, temperature=0.0)


def assert_greedy(reference: Any, prompt: Sequence[int], answer: Sequence[int]) -> None:
    assert len(answer) == NUM_ANSWER_TOKENS
    with torch.inference_mode():
        logits = reference(torch.tensor([[*prompt, *answer[:-1]]]), logits_to_keep=len(answer)).logits[0]
    assert list(answer) == logits.argmax(dim=-1).tolist()


def batched(worker: Worker, prompts: Prompts, **config: Any) -> dict[str, list[int]]:
    return answers_of(worker, {name: (p, greedy()) for name, p in prompts.items()}, num_blocks=NUM_BLOCKS, **config)


def chunked(worker: Worker, prompts: Prompts) -> dict[str, list[int]]:
    """No prompt of any length in one piece, and no piece a multiple of a block."""
    return batched(worker, prompts, max_num_batched_tokens=203, max_num_seqs=24, max_tokens_per_prompt_chunk=83)


def one_by_one(worker: Worker, prompts: Prompts) -> dict[str, list[int]]:
    """Alone; and all once more, together, through the same mind: each finds its full blocks, and is answered as before."""
    driver = EngineDriver(worker, num_blocks=NUM_BLOCKS)
    for name, prompt in prompts.items():
        driver.add(name, prompt, greedy())
        driver.run()
    for name, prompt in prompts.items():
        driver.add(f"again {name}", prompt, greedy())
    answers = {name: answer for (name, _), answer in driver.run().items()}
    driver.close()
    for update in driver.updates:
        if update.finish_reason is not None:
            prompt = prompts[update.request_id.removeprefix("again ")]
            num_known = (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE if update.request_id.startswith("again") else 0
            assert update.num_cached_tokens == num_known
    for name in prompts:
        assert answers[f"again {name}"] == answers[name]
    return {name: answers[name] for name in prompts}


def assert_all_ways_agree(worker: Worker, reference: Any, prompts: Prompts, *, most_tokens_batched: int = 10_000) -> None:
    answers = one_by_one(worker, prompts)
    for name, prompt in prompts.items():
        assert_greedy(reference, prompt, answers[name])
    short = {name: prompt for name, prompt in prompts.items() if len(prompt) <= most_tokens_batched}
    assert batched(worker, short) == {name: answers[name] for name in short}
    assert chunked(worker, prompts) == answers


def test_a_few_greedy_answers_are_those_of_transformers(worker: Worker, reference: Any, smollm2_path: Path) -> None:
    assert_all_ways_agree(worker, reference, varied_prompts(smollm2_path, [1, 2, 16, 17, 60, 130]))


@pytest.mark.slow
def test_fifty_greedy_answers_are_those_of_transformers(worker: Worker, reference: Any, smollm2_path: Path) -> None:
    """Most of them short, at every place of a block: a long prompt takes as long as many of these, and a step of its own."""
    lengths = [*range(1, 34), 47, 48, 64, 65, 90, 100, 127, 128, 129, 150, 191, 192, 193, 257, 300, 511, 512, 513, 777, 1500]
    assert len(lengths) >= 50
    assert_all_ways_agree(worker, reference, varied_prompts(smollm2_path, lengths), most_tokens_batched=200)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampled_answers_do_not_depend_on_what_runs_beside_them(dtype: str, smollm2_path: Path) -> None:
    worker = make_worker(smollm2_path, dtype=dtype, num_blocks=NUM_BLOCKS, max_model_len=2048, num_threads=1)
    lengths = [1, 16, 30, 75, 130]
    requests = {
        name: (prompt, SamplingParams(max_tokens=8, temperature=[0.0, 0.8, 1.2][i % 3], seed=i, top_p=0.95))
        for i, (name, prompt) in enumerate(varied_prompts(smollm2_path, lengths).items())
    }
    alone: dict[str, list[int]] = {}
    for name, request in requests.items():
        alone |= answers_of(worker, {name: request}, num_blocks=NUM_BLOCKS)
    together = answers_of(worker, requests, num_blocks=NUM_BLOCKS)
    assert together == alone
    settings = {"max_num_batched_tokens": 37, "max_num_seqs": 5, "max_tokens_per_prompt_chunk": 19}
    assert answers_of(worker, requests, num_blocks=NUM_BLOCKS, **settings) == alone

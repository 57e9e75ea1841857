"""A second real model, of another structure: Gemma 3 270M, quantised three ways, its windows shorter than the prompts."""

from pathlib import Path

import pytest
from tests.cpu.engine_driver import make_worker
from tests.cpu.test_worker_smollm2 import NUM_BLOCKS, assert_all_ways_agree, transformers_model, varied_prompts
from transformers import Gemma3ForCausalLM, Gemma3TextConfig


@pytest.mark.slow
def test_gemmas_greedy_answers_are_those_of_transformers(gemma3_path: Path) -> None:
    reference = transformers_model(gemma3_path, Gemma3TextConfig, Gemma3ForCausalLM)
    worker = make_worker(gemma3_path, dtype="float32", num_blocks=NUM_BLOCKS, max_model_len=2048, num_threads=1)
    windows = {layer.window for layer in worker.spec.layers}
    assert windows == {512, None}
    prompts = varied_prompts(gemma3_path, [1, 7, 16, 33, 100, 250, 505, 512, 530, 1100])
    assert_all_ways_agree(worker, reference, prompts)

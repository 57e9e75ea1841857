"""An answer's log-probabilities have the same bits whatever is computed beside it, and however its prompt was computed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checkpoint_files import LLAMA_CONFIG, Array, write_folder
from tests.cpu.engine_driver import EngineDriver

from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import TokenLogprobs
from headrace.engine.worker.worker import Worker, WorkerConfig

pytest.importorskip("headrace.engine.ops.native._kernels", reason="the native kernels were not built here")

NUM_BLOCKS = 2048
NUM_TOKENS = 10
CONFIG = LLAMA_CONFIG | {
    "vocab_size": 290,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
FORMS = [("none", "float32"), ("q8_0", "bfloat16"), ("q4_1", "int8"), ("q4_0", "fp8_e4m3")]
TARGET = [(37 * i * i + 11 * i) % 290 for i in range(600)]  # more than one part of a context

Scores = list[tuple[int, TokenLogprobs]]


def checkpoint(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    shapes = {"model.embed_tokens": (290, 96), "lm_head": (290, 96)}
    for layer in range(2):
        for name, shape in {
            "self_attn.q_proj": (96, 96), "self_attn.k_proj": (32, 96), "self_attn.v_proj": (32, 96),
            "self_attn.o_proj": (96, 96), "mlp.gate_proj": (160, 96), "mlp.up_proj": (160, 96), "mlp.down_proj": (96, 160),
        }.items():  # fmt: skip
            shapes[f"model.layers.{layer}.{name}"] = shape
    tensors: dict[str, Array] = {
        f"{name}.weight": (rng.standard_normal(shape) / 4).astype(np.float32) for name, shape in shapes.items()
    }
    norms = ["model.norm", *(f"model.layers.{i}.{n}_layernorm" for i in range(2) for n in ("input", "post_attention"))]
    return write_folder(folder, CONFIG, tensors | {f"{name}.weight": np.ones(96, np.float32) for name in norms})


@pytest.fixture(scope="module", params=FORMS, ids="-".join)
def worker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    quantization, kv_dtype = request.param
    config = WorkerConfig(
        model_path=str(checkpoint(tmp_path_factory.mktemp("model"))), ops="native", dtype="float32", device="cpu",
        quantization=quantization, kv_cache_dtype=kv_dtype, batch_invariant=True, num_threads=2,
    )  # fmt: skip
    made = Worker(config, lambda *_: None)
    made.allocate_kv_cache(NUM_BLOCKS)
    yield made
    made.close()


class Engine:
    def __init__(self, worker: Worker, **limits: Any) -> None:
        settings: dict[str, Any] = {"num_blocks": NUM_BLOCKS, "max_num_batched_tokens": 512, **limits}
        self.driver = EngineDriver(worker, **settings)

    def add(self, name: str, prompt: list[int], *, num_tokens: int = NUM_TOKENS) -> None:
        sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True, logprobs=3)
        self.driver.add(name, prompt, sampling)

    def scores_of_target(self) -> Scores:
        self.driver.run()
        updates = [update for update in self.driver.updates if update.request_id == "target"]
        self.driver.close()
        return [pair for update in updates for pair in zip(update.new_token_ids, update.logprobs, strict=True)]


@pytest.fixture(scope="module")
def alone(worker: Worker) -> Scores:
    engine = Engine(worker)
    engine.add("target", TARGET)
    scores = engine.scores_of_target()
    assert len(scores) == NUM_TOKENS
    assert len({logprobs.logprob for _, logprobs in scores}) == NUM_TOKENS, "numbers that tell something"
    return scores


def companions(engine: Engine, first: int, end: int) -> None:
    for i in range(first, end):
        engine.add(f"companion {i}", [(7 * i + 3 * j * j) % 290 for j in range(1 + 29 * i % 40)], num_tokens=5 + i % 9)


@pytest.mark.parametrize("count", [1, 7, 63])
def test_beside_others(worker: Worker, alone: Scores, count: int) -> None:
    engine = Engine(worker)
    companions(engine, 0, count // 2)
    engine.add("target", TARGET)
    companions(engine, count // 2, count)
    assert engine.scores_of_target() == alone


@pytest.mark.parametrize(("budget", "chunk"), [(64, 17), (33, 33), (300, 299)])
def test_in_chunks_of_any_size_beside_others(worker: Worker, alone: Scores, budget: int, chunk: int) -> None:
    engine = Engine(worker, max_num_batched_tokens=budget, max_tokens_per_prompt_chunk=chunk, max_num_seqs=16)
    companions(engine, 0, 5)
    engine.add("target", TARGET)
    assert engine.scores_of_target() == alone


@pytest.mark.parametrize("num_shared", [16, 100, 599])
def test_from_a_beginning_that_another_has_computed(worker: Worker, alone: Scores, num_shared: int) -> None:
    engine = Engine(worker, max_num_batched_tokens=90, max_tokens_per_prompt_chunk=50)
    companions(engine, 0, 3)
    engine.add("author", [*TARGET[:num_shared], 5])
    engine.driver.run()
    engine.add("target", TARGET)
    assert engine.scores_of_target() == alone
    cached = [update.num_cached_tokens for update in engine.driver.updates if update.request_id == "target"]
    assert max(cached) == num_shared // 16 * 16


@pytest.mark.parametrize("count", [1, 31])
def test_beside_others_that_go_on_from_the_same_beginning(worker: Worker, alone: Scores, count: int) -> None:
    engine = Engine(worker)
    for i in range(count):
        if i == count // 2:
            engine.add("target", TARGET)
        num_shared = (599, 560, 512, 200)[i % 4]
        engine.add(f"sibling {i}", [*TARGET[:num_shared], i, *TARGET[: 20 + i]], num_tokens=20)
    assert engine.scores_of_target() == alone
    cached = [update.num_cached_tokens for update in engine.driver.updates]
    assert max(cached) >= 512, "blocks were shared"


def test_after_a_preemption(worker: Worker, alone: Scores) -> None:
    limits: dict[str, Any] = {
        "max_model_len": 640,
        "num_blocks": 44,
        "max_num_batched_tokens": 64,
        "max_tokens_per_prompt_chunk": 32,
    }
    engine = Engine(worker, enable_prefix_caching=False, **limits)
    for i in range(3):
        engine.add(f"elder {i}", [3 + i, 5, 9], num_tokens=120)
    engine.add("target", TARGET)
    assert engine.scores_of_target() == alone
    assert engine.driver.core.stats().num_preemptions > 0, "the pool was too large to make the point"


def test_another_format_of_weights_or_cache_is_another_execution(worker: Worker) -> None:
    digests = {worker.identity.digest()}
    for quantization, kv_dtype in (("none", "int8"), ("q8_0", "float32")):
        config = WorkerConfig(
            model_path=worker.config.model_path, ops="native", dtype="float32", device="cpu",
            quantization=quantization, kv_cache_dtype=kv_dtype, num_threads=1,
        )  # fmt: skip
        digests.add(Worker(config, lambda *_: None).identity.digest())
    assert len(digests) == 3

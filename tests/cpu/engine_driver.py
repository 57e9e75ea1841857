"""Requests through the real mind and a real worker, step by step in one thread: what the engine process does, without it.

Knows `EngineCore` and `Worker`. Does not know HTTP, processes or text.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headrace.base.clock import Nanos
from headrace.base.ids import RequestId, SequenceId, StepId
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import StepPlan
from headrace.engine.mind.update import RequestUpdate
from headrace.engine.worker.worker import Worker, WorkerConfig

BLOCK_SIZE = 16


def make_worker(
    path: object, *, dtype: str, num_blocks: int, max_model_len: int = 0, num_threads: int = 0, ops: str = "auto"
) -> Worker:
    config = WorkerConfig(
        model_path=str(path), dtype=dtype, device="cpu", max_model_len=max_model_len, block_size=BLOCK_SIZE,
        num_threads=num_threads, ops=ops,
    )  # fmt: skip
    worker = Worker(config, lambda *phase: None)
    worker.allocate_kv_cache(num_blocks)
    return worker


def random_llama(seed: int, *, num_layers: int) -> Any:
    """A small model of transformers' whose answers depend on all of their tokens."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=num_layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2)
    return model.eval()


class EngineDriver:
    """One mind over a worker that may outlive it; blocks of an earlier mind hold leftovers, as they should."""

    def __init__(self, worker: Worker, *, num_blocks: int, **config: Any) -> None:
        settings = {"max_model_len": worker.max_model_len, "num_blocks": num_blocks, "block_size": BLOCK_SIZE}
        self.core = EngineCore(SchedulerConfig(**(settings | config)), eos_token_ids=(), identity_digest=b"test")
        self._worker = worker
        self._in_flight: deque[StepPlan] = deque()
        self.plans: list[StepPlan] = []
        self.updates: list[RequestUpdate] = []

    def add(self, name: str, prompt: Sequence[int], sampling: SamplingParams, *, num_sequences: int = 1) -> None:
        request = Request(
            request_id=RequestId(name), prompt_token_ids=tuple(prompt), sampling=sampling, num_sequences=num_sequences
        )
        self.core.add_request(request, Nanos(0))

    def step(self) -> None:
        """Plans as far ahead as the mind allows, then carries out the oldest plan."""
        while (plan := self.core.begin_step(Nanos(0))) is not None:
            self._in_flight.append(plan)
            self.plans.append(plan)
        if self._in_flight:
            oldest = self._in_flight.popleft()
            self.updates += self.core.finish_step(oldest, self._worker.execute(oldest), Nanos(0))

    def run(self) -> dict[tuple[str, int], list[int]]:
        """Until all is done: (request, continuation) -> its answer's tokens."""
        while self.core.has_unfinished_requests or self._in_flight:
            self.step()
        self.core.check_integrity()
        answers: dict[tuple[str, int], list[int]] = {}
        for update in self.updates:
            answers.setdefault((update.request_id, update.sample_index), []).extend(update.new_token_ids)
        return answers

    def close(self) -> None:
        """Lets the worker forget what the mind would have released with a next plan, so that another may come."""
        held: set[SequenceId] = set()
        for plan in self.plans:
            held -= set(plan.released_sequence_ids)
            held |= {new.sequence_id for new in plan.new_sequences}
        self._worker.execute(StepPlan(StepId(-1), (), released_sequence_ids=tuple(sorted(held))))


def answers_of(
    worker: Worker, requests: Mapping[str, tuple[Sequence[int], SamplingParams]], *, num_blocks: int, **config: Any
) -> dict[str, list[int]]:
    """All requests together through a mind of their own."""
    driver = EngineDriver(worker, num_blocks=num_blocks, **config)
    for name, (prompt, sampling) in requests.items():
        driver.add(name, prompt, sampling)
    answers = {name: tokens for (name, _), tokens in driver.run().items()}
    driver.close()
    return answers

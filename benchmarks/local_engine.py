"""An engine in this process, for benchmarks: the real mind, worker and executor, without HTTP or a second process."""

import queue
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.base.ids import RequestId, SequenceId, StepId
from headrace.base.system_clock import SystemClock
from headrace.engine.executor.in_process import InProcessExecutor
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import StepPlan, StepResult
from headrace.engine.mind.structured_output import StructuredOutput
from headrace.engine.worker.worker import Worker, WorkerConfig


class LocalEngine:
    def __init__(
        self,
        model_path: Path,
        *,
        dtype: str = "auto",
        ops: str = "auto",
        enforce_eager: bool = False,
        num_blocks: int = 4096,
        **limits: Any,
    ) -> None:
        limits = {"max_model_len": 2048, "max_num_seqs": 64, "max_num_batched_tokens": 2048, **limits}
        worker_config = WorkerConfig(
            model_path=str(model_path),
            dtype=dtype,
            ops=ops,
            enforce_eager=enforce_eager,
            max_model_len=limits["max_model_len"],
        )
        self.worker = Worker(worker_config, lambda *_: None)
        self.worker.allocate_kv_cache(num_blocks)
        self.worker.warm_up()
        self._config = SchedulerConfig(num_blocks=num_blocks, **limits)
        self._clock = SystemClock()
        self._results: queue.SimpleQueue[StepResult | BaseException] = queue.SimpleQueue()
        self._executor = InProcessExecutor(self.worker, self._results.put, after_step=self.worker.prepare)
        self._num_requests = 0
        self.decode_steps_ms: list[float] = []
        """Of the last `generate`, from outcome to outcome: steps that advanced every request by one token."""
        self._known_to_worker: dict[SequenceId, None] = {}
        self.restart()

    def restart(self, **limits: Any) -> None:
        """A new mind with an empty cache over the same weights; `limits` replace the first ones."""
        forget = StepPlan(StepId(-1), (), released_sequence_ids=tuple(self._known_to_worker))
        self._known_to_worker.clear()
        self._executor.submit(forget, self._results.put)  # the old mind would have told it with its next plan
        self._results.get()
        config = {name: getattr(self._config, name) for name in self._config.__struct_fields__}
        self.core = EngineCore(
            SchedulerConfig(**{**config, **limits}),
            eos_token_ids=self.worker.spec.eos_token_ids,
            identity_digest=self.worker.identity.digest(),
        )

    def generate(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, form: StructuredOutput | None = None
    ) -> list[list[int]]:
        """Greedy answers of exactly `max_tokens` tokens to prompts that arrive together, all of one `form`, if any, which
        must be able to go on for so long."""
        answers: dict[RequestId, list[int]] = {}
        for prompt in prompts:
            request_id = RequestId(f"r{self._num_requests}")
            self._num_requests += 1
            answers[request_id] = []
            sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
            request = Request(
                request_id=request_id, prompt_token_ids=tuple(prompt), sampling=sampling, structured_output=form
            )
            self.core.add_request(request, self._clock.now())
        in_flight: list[StepPlan] = []
        self.decode_steps_ms = []
        last_outcome: float | None = None
        while self.core.has_unfinished_requests or in_flight:
            while (plan := self.core.begin_step(self._clock.now())) is not None:
                in_flight.append(plan)
                for sequence_id in plan.released_sequence_ids:
                    del self._known_to_worker[sequence_id]
                self._known_to_worker.update(dict.fromkeys(new.sequence_id for new in plan.new_sequences))
                self._executor.submit(plan, self._results.put)
            result = self._results.get()
            if isinstance(result, BaseException):
                raise result
            plan = in_flight.pop(0)
            now = time.perf_counter()
            if len(plan.scheduled) == plan.num_tokens == len(answers) and last_outcome is not None:
                self.decode_steps_ms.append((now - last_outcome) * 1e3)
            last_outcome = now
            for update in self.core.finish_step(plan, result, self._clock.now()):
                answers[update.request_id].extend(update.new_token_ids)
        return list(answers.values())

    def close(self) -> None:
        self._executor.close()
        self.worker.close()


def timed_tokens_per_second(
    engine: LocalEngine, prompts: Sequence[Sequence[int]], *, max_tokens: int, form: StructuredOutput | None = None
) -> float:
    """Generated tokens by wall time, prompts included."""
    began = time.perf_counter()
    answers = engine.generate(prompts, max_tokens=max_tokens, form=form)
    return sum(map(len, answers)) / (time.perf_counter() - began)

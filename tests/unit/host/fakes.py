"""Stand-ins for the mind, the executor and the line, simple enough to see through. They know no tensors."""

from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.base.clock import Nanos
from headrace.base.errors import HeadraceError
from headrace.base.ids import RequestId, SequenceId, StepId
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.stats import EngineStats
from headrace.engine.mind.step import SampledToken, ScheduledSequence, StepPlan, StepResult
from headrace.engine.mind.update import FinishReason, RequestUpdate, SequenceTimes


def make_request(request_id: str = "r", *, max_tokens: int = 3, n: int = 1) -> Request:
    return Request(
        request_id=RequestId(request_id),
        prompt_token_ids=(1, 2, 3),
        sampling=SamplingParams(max_tokens=max_tokens),
        num_sequences=n,
    )


class FakeCore:
    """Plans a step of one token for everybody who is unfinished; ends each after `max_tokens` tokens."""

    def __init__(self, *, max_steps_in_flight: int = 1) -> None:
        self.max_steps_in_flight = max_steps_in_flight
        self.calls: list[tuple[str, Any, Nanos]] = []
        self.num_integrity_checks = 0
        self.refusal: HeadraceError | None = None
        self._requests: dict[RequestId, Request] = {}
        self._live: dict[RequestId, list[int]] = {}
        self._num_tokens: dict[RequestId, int] = {}
        self._members: dict[StepId, list[RequestId]] = {}
        self._num_steps = 0

    @property
    def is_idle(self) -> bool:
        return not self._requests and not self._members

    def add_request(self, request: Request, now: Nanos) -> None:
        self.calls.append(("add", request.request_id, now))
        if self.refusal is not None:
            raise self.refusal
        self._requests[request.request_id] = request
        self._live[request.request_id] = list(range(request.num_sequences))
        self._num_tokens[request.request_id] = 0

    def abort(self, request_id: RequestId, now: Nanos, *, sample_index: int | None = None) -> list[RequestUpdate]:
        self.calls.append(("abort", request_id, now))
        live = self._live[request_id]
        ended = [index for index in live if sample_index in (None, index)]
        self._live[request_id] = [index for index in live if index not in ended]
        if not self._live[request_id]:
            del self._requests[request_id]
        return [RequestUpdate(request_id, index, finish_reason=FinishReason.ABORT) for index in ended]

    def begin_step(self, now: Nanos) -> StepPlan | None:
        if not self._requests or len(self._members) >= self.max_steps_in_flight:
            return None
        step_id = StepId(self._num_steps)
        self._num_steps += 1
        self._members[step_id] = list(self._requests)
        self.calls.append(("begin", step_id, now))
        return StepPlan(
            step_id, tuple(ScheduledSequence(SequenceId(i), 0, 1, True, 0, ()) for i, _ in enumerate(self._requests))
        )

    def finish_step(self, plan: StepPlan, result: StepResult, now: Nanos) -> list[RequestUpdate]:
        self.calls.append(("finish", plan.step_id, now))
        updates = []
        for request_id in self._members.pop(plan.step_id):
            request = self._requests.get(request_id)
            if request is None:
                continue
            self._num_tokens[request_id] += 1
            ended = self._num_tokens[request_id] == request.sampling.max_tokens
            if ended:
                del self._requests[request_id]
            for index in self._live[request_id]:
                times = SequenceTimes(now, now, now, now) if ended else None
                reason = FinishReason.LENGTH if ended else None
                updates.append(RequestUpdate(request_id, index, (65,), finish_reason=reason, times=times))
        return updates

    def reset_prefix_cache(self) -> None:
        self.calls.append(("reset", None, Nanos(0)))

    def check_integrity(self) -> None:
        self.num_integrity_checks += 1

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._requests), num_waiting=0, kv_cache_usage=0.0, num_blocks_in_use=0, num_blocks_cached=0,
            num_preemptions=0, num_evictions=0, prefix_cache_queries=0, prefix_cache_hits=0, num_steps=self._num_steps,
            num_tokens_computed=0,
        )  # fmt: skip


class ManualExecutor:
    """Holds plans until a test says that they are done."""

    def __init__(self) -> None:
        self.submitted: deque[tuple[StepPlan, Callable[[StepResult], None]]] = deque()

    def submit(self, plan: StepPlan, done: Callable[[StepResult], None]) -> None:
        self.submitted.append((plan, done))

    def complete_one(self) -> None:
        plan, done = self.submitted.popleft()
        done(StepResult(plan.step_id, tuple(SampledToken(65) for _ in plan.scheduled)))


class SteppingClock:
    """A clock that moves by one at every look, so that two looks never agree."""

    def __init__(self) -> None:
        self.num_looks = 0

    def now(self) -> Nanos:
        self.num_looks += 1
        return Nanos(self.num_looks)

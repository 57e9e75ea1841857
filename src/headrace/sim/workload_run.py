"""A workload in rehearsal: the real mind of one engine, virtual time, and the records that a live run would have left.

Knows when requests arrive and when their tokens come. Requests that follow others arrive after those have ended, as with
a live client; what a network and a client would add is not here.
"""

from collections.abc import Mapping
from functools import partial
from itertools import pairwise

import msgspec

from headrace.base.clock import ManualClock, Nanos
from headrace.base.errors import OverloadedError
from headrace.base.ids import RequestId
from headrace.base.units import nanos
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import SampledToken, StepPlan, StepResult
from headrace.engine.mind.update import FinishReason, RequestUpdate
from headrace.measure.report.record import RequestRecord, Run, RunFacts
from headrace.measure.workload.request import ChatPrompt, TextPrompt, TokenPrompt, Workload, WorkloadRequest, token_ids
from headrace.sim.events import EventQueue, Rank
from headrace.sim.executor import SimExecutor
from headrace.sim.front_end import NO_FRONT_END, FrontEnd, FrontEndCost
from headrace.sim.prompts import stand_in_tokens
from headrace.sim.replica import Observer, SimReplica
from headrace.sim.step_cost import StepCost


def run_workload(
    workload: Workload,
    *,
    config: SchedulerConfig,
    cost: StepCost,
    facts: RunFacts,
    front_end: FrontEndCost = NO_FRONT_END,
    clock: ManualClock | None = None,
) -> Run:
    """Runs until every request has ended. `facts` says what the run is called; its measured parts are replaced. `clock`: at
    0, for a `cost` that looks at it; every step is then asked for when it is submitted, and none are taken together."""
    return _Rehearsal(workload, config, cost, front_end, clock).run(facts)


class _CountingWorker:
    """Samples some token wherever one is wanted. It computes nothing and checks nothing: `SimulatedWorker` does that, at
    a cost that grows with every token of context, which workloads of this size cannot pay."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._num_sampled = 0

    def execute(self, plan: StepPlan) -> StepResult:
        return StepResult(plan.step_id, tuple(self._sample() if entry.samples else None for entry in plan.scheduled))

    def _sample(self) -> SampledToken:
        """Never the same few in a row, so that no answer is the beginning of another prompt by chance."""
        self._num_sampled += 1
        return SampledToken(self._num_sampled * 7919 % self._vocab_size)


class _Rehearsal(Observer):
    def __init__(
        self,
        workload: Workload,
        config: SchedulerConfig,
        cost: StepCost,
        front_end: FrontEndCost,
        clock: ManualClock | None,
    ) -> None:
        self._front_end = FrontEnd(front_end)
        self._workload = workload
        self._clock = clock or ManualClock()
        self._events = EventQueue(self._clock)
        self._core = EngineCore(config, eos_token_ids=(), identity_digest=b"rehearsal")
        executor = SimExecutor(
            worker=_CountingWorker(workload.vocab_size), cost=cost, clock=self._clock, events=self._events
        )
        self._replica = SimReplica(
            core=self._core,
            executor=executor,
            clock=self._clock,
            events=self._events,
            observer=self,
            takes_runs=clock is None,
        )
        self._followers: dict[str, list[WorkloadRequest]] = {}
        for request in workload.requests:
            if request.after:
                self._followers.setdefault(request.after, []).append(request)
        self._live: dict[str, _LiveRequest] = {}
        self._contexts: dict[str, list[int]] = {}
        self._records: list[RequestRecord] = []
        self._in_flight_integral = 0
        self._in_flight_since = Nanos(0)

    def run(self, facts: RunFacts) -> Run:
        for request in self._workload.requests:
            if not request.after:
                self._schedule(request, Nanos(nanos(request.at_s)))
        while self._events:
            self._events.run_next()
            if self._core.is_idle:
                self._core.check_integrity()
        assert self._core.is_idle, "nothing is left to happen, but requests have not ended"
        assert len(self._records) == len(self._workload.requests), "a request was lost"
        records = sorted(self._records, key=lambda record: (record.intended_ns, record.request_id))
        stats = self._core.stats()
        return Run(
            facts=_measured(
                facts,
                duration_ns=Nanos(max((record.finished_ns for record in records), default=0)),
                in_flight_integral_ns=self._in_flight_integral,
                counters={
                    "vllm:prefix_cache_queries_total": float(stats.prefix_cache_queries),
                    "vllm:prefix_cache_hits_total": float(stats.prefix_cache_hits),
                    "vllm:num_preemptions_total": float(stats.num_preemptions),
                },
            ),
            records=tuple(records),
        )

    # The engine tells

    def updated(self, now: Nanos, updates: list[RequestUpdate]) -> None:
        for update in updates:
            live = self._live[update.request_id]
            seen = self._front_end.deliver(now) if update.new_token_ids or update.finish_reason is not None else now
            live.note(seen, update)
            if update.finish_reason is not None:
                error = "" if update.finish_reason in (FinishReason.STOP, FinishReason.LENGTH) else update.finish_reason
                self._events.schedule(seen, Rank.MESSAGE, partial(self._end, live, error=error, detail=update.error))

    def refused(self, now: Nanos, request: Request, error: Exception) -> None:
        kind = "http 503" if isinstance(error, OverloadedError) else "http 400"  # as the server would answer
        self._end(self._live[request.request_id], error=kind, detail=str(error))

    # Requests come and go

    def _schedule(self, request: WorkloadRequest, moment: Nanos) -> None:
        self._events.schedule(moment, Rank.MESSAGE, lambda: self._arrive(request))

    def _arrive(self, request: WorkloadRequest) -> None:
        now = self._clock.now()
        self._count_in_flight(now)
        prompt = self._prompt(request)
        self._live[request.request_id] = _LiveRequest(request, now, prompt, self._front_end.first_chunk_tokens)
        asked = Request(
            request_id=RequestId(request.request_id),
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(max_tokens=request.num_output_tokens, ignore_eos=True),
        )
        accepted = self._front_end.accept(now, len(prompt))
        self._events.schedule(accepted, Rank.MESSAGE, partial(self._replica.receive, asked))

    def _end(self, live: "_LiveRequest", *, error: str, detail: str) -> None:
        now = self._clock.now()
        self._count_in_flight(now)
        del self._live[live.request.request_id]
        self._records.append(live.record(now, error=error, detail=detail))
        followers = self._followers.get(live.request.request_id, ())
        if followers:
            self._contexts[live.request.request_id] = [*live.prompt, *live.answer]
        for follower in followers:
            self._schedule(follower, Nanos(now + nanos(follower.at_s)))

    def _count_in_flight(self, now: Nanos) -> None:
        self._in_flight_integral += len(self._live) * (now - self._in_flight_since)
        self._in_flight_since = now

    def _prompt(self, request: WorkloadRequest) -> list[int]:
        workload = self._workload
        match request.prompt:
            case TokenPrompt(segments):
                return token_ids(segments, seed=workload.seed, vocab_size=workload.vocab_size)
            case TextPrompt(text):
                return stand_in_tokens(text, workload.vocab_size)
            case ChatPrompt(messages, continues):
                text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
                before = self._contexts.get(request.after, []) if continues else []
                return [*before, *stand_in_tokens(text, workload.vocab_size)]


class _LiveRequest:
    def __init__(self, request: WorkloadRequest, arrived: Nanos, prompt: list[int], first_chunk_tokens: int) -> None:
        self.request = request
        self._first_chunk_tokens = first_chunk_tokens
        self.prompt = prompt
        self.answer: list[int] = []
        self._arrived = arrived
        self._chunks: list[Nanos] = []
        self._num_cached_tokens = 0
        self._queued: Nanos | None = None
        self._finish_reason = ""

    def note(self, now: Nanos, update: RequestUpdate) -> None:
        if update.new_token_ids:
            self._chunks.append(now)
            self.answer += update.new_token_ids
        self._num_cached_tokens = max(self._num_cached_tokens, update.num_cached_tokens)
        if update.times is not None:
            self._queued = Nanos(update.times.scheduled - update.times.arrived)
        if update.finish_reason is not None:
            self._finish_reason = str(update.finish_reason)

    def record(self, now: Nanos, *, error: str, detail: str) -> RequestRecord:
        chunks = self._chunks
        count = min(self._first_chunk_tokens, len(chunks))
        if count > 1:
            chunks = [chunks[count - 1]] * count + chunks[count:]
        return RequestRecord(
            request_id=self.request.request_id,
            intended_ns=self._arrived,
            sent_ns=self._arrived,
            headers_ns=chunks[0] if chunks else None,
            first_chunk_ns=chunks[0] if chunks else None,
            gaps_ns=tuple(Nanos(after - before) for before, after in pairwise(chunks)),
            finished_ns=now,
            num_prompt_tokens=len(self.prompt),
            num_output_tokens=len(self.answer),
            num_cached_tokens=self._num_cached_tokens,
            queued_ns=self._queued,
            finish_reason=self._finish_reason,
            error=error,
            error_detail=detail,
        )


def _measured(facts: RunFacts, *, duration_ns: Nanos, in_flight_integral_ns: int, counters: Mapping[str, float]) -> RunFacts:
    return msgspec.structs.replace(
        facts,
        source="simulated",
        duration_ns=duration_ns,
        in_flight_integral_ns=in_flight_integral_ns,
        server_counters=dict(counters),
    )

"""Drives one server with one workload and gives back a Run.

Knows when requests are due, who waits for whom, and how late the client itself is. Does not know HTTP, statistics or tables.
"""

import asyncio
import gc
import heapq
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from headrace.base.clock import Clock, Nanos
from headrace.base.errors import ConfigurationError
from headrace.base.system_clock import SystemClock
from headrace.base.units import NANOS_PER_MILLI, nanos, seconds
from headrace.measure.bench.event_loop import event_loop_factory
from headrace.measure.bench.formats import BodyOptions, Conversation, Format
from headrace.measure.bench.http_client import Exchange, HttpClient, Target
from headrace.measure.bench.timer import Alarm
from headrace.measure.report.record import ClientHealth, RequestRecord, Run, RunFacts
from headrace.measure.report.statistics import percentile
from headrace.measure.workload.request import ChatPrompt, TokenPrompt, Workload, WorkloadRequest

_LAG_PERIOD_MS = 20
_TIMEOUT_PERIOD_S = 0.25
_READY_PERIOD_S = 1.0
_NOT_YET = frozenset({"connect", "dropped", "http 502", "http 503"})
"""Failures of a server that is still starting; any other will not pass by waiting."""

_MOST_PREPARED_BYTES = 256 << 20
"""Bodies are made before the run, as far as this holds them; the rest when they are due, which the send lag then shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How a workload is put to a server."""

    url: str
    format: type[Format]
    body: BodyOptions
    endpoint: str = ""
    """The path, where it is not the API's usual one."""
    headers: Mapping[str, str] = field(default_factory=dict)
    max_concurrency: int | None = None
    """Requests at once; those that are due beyond it wait in the client, and their latencies include it."""
    intends_when_free: bool = False
    """All at once under a limit is a closed loop: a request is intended when its turn comes, not at the start."""
    timeout_s: float = 6 * 3600.0
    num_warm_ups: int = 0
    keep_texts: bool = False


@dataclass(slots=True)
class Progress:
    """What a live view is told, now and then. The lists hold what is new since the last time."""

    elapsed_s: float = 0.0
    num_total: int = 0
    num_done: int = 0
    num_failed: int = 0
    num_in_flight: int = 0
    num_chunks: int = 0
    ttft_ms: list[float] = field(default_factory=list)
    e2el_ms: list[float] = field(default_factory=list)
    longest_gap_ms: float = 0.0
    loop_lag_ms: float = 0.0


def run_load(
    workload: Workload, options: LoadOptions, facts: RunFacts, *, on_progress: Callable[[Progress], None] | None = None
) -> Run:
    """Blocks until every request has ended. `facts` says what the run is called; its measured parts are replaced."""

    async def drive() -> Run:
        if options.num_warm_ups and workload.requests:
            await _warm_up(workload, options, facts)
        return await _Driver(workload, options, SystemClock(), on_progress).drive(facts)

    gc.collect()
    gc.freeze()
    gc.disable()  # a collection in the middle of a run would be a stall of the client's own
    try:
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            return runner.run(drive())
    finally:
        gc.enable()
        gc.unfreeze()


def wait_until_ready(workload: Workload, options: LoadOptions, *, timeout_s: float) -> None:
    """Until the workload's first request succeeds once. Raises ConfigurationError with the server's answer if it does
    not."""
    first = msgspec.structs.replace(workload.requests[0], request_id="ready?", after="", at_s=0.0, num_output_tokens=1)
    probe = msgspec.structs.replace(workload, requests=(first,))
    patience = replace(options, timeout_s=timeout_s, max_concurrency=None)
    clock = SystemClock()
    give_up = clock.now() + nanos(timeout_s)
    facts = RunFacts(source="live", duration_ns=Nanos(0))

    async def ask() -> RequestRecord:
        while True:
            record = (await _Driver(probe, patience, clock, None).drive(facts)).records[0]
            if record.error not in _NOT_YET or clock.now() >= give_up:
                return record
            await asyncio.sleep(_READY_PERIOD_S)

    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        record = runner.run(ask())
    if record.error:
        raise ConfigurationError(f"{options.url} does not answer the first request: {record.error}: {record.error_detail}")


async def _warm_up(workload: Workload, options: LoadOptions, facts: RunFacts) -> None:
    """The first request some times over, under the same limit; nothing of it is kept."""
    first = msgspec.structs.replace(workload.requests[0], after="", at_s=0.0)
    copies = tuple(msgspec.structs.replace(first, request_id=f"warm-up {index}") for index in range(options.num_warm_ups))
    await _Driver(msgspec.structs.replace(workload, requests=copies), options, SystemClock(), None).drive(facts)


class _Driver:
    def __init__(
        self, workload: Workload, options: LoadOptions, clock: Clock, on_progress: Callable[[Progress], None] | None
    ) -> None:
        self._options = options
        self._clock = clock
        self._on_progress = on_progress
        self._requests = workload.requests
        self._body_options = options.body
        self._followers: dict[str, list[WorkloadRequest]] = {}
        for request in self._requests:
            if request.after:
                self._followers.setdefault(request.after, []).append(request)
        self._keeps_text_of = {r.after for r in self._requests if isinstance(r.prompt, ChatPrompt) and r.prompt.continues}
        self._conversations: dict[str, Conversation] = {}
        self._messages: dict[str, tuple[dict[str, Any], ...]] = {}
        self._due: list[tuple[Nanos, int, WorkloadRequest]] = []
        self._num_due = 0
        self._held: deque[tuple[Nanos, WorkloadRequest]] = deque()
        self._wires: dict[str, bytes] = {}
        self._in_flight: dict[Exchange, tuple[WorkloadRequest, Nanos]] = {}
        self._in_flight_integral = 0
        self._in_flight_since = Nanos(0)
        self._records: list[RequestRecord] = []
        self._send_lags: list[int] = []
        self._loop_lags: list[int] = []
        self._start = Nanos(0)
        self._progress = Progress(num_total=len(self._requests))

    async def drive(self, facts: RunFacts) -> Run:
        self._loop = asyncio.get_running_loop()
        self._client = HttpClient(Target.parse(self._options.url), self._clock, headers=self._options.headers)
        await self._client.resolve()
        self._prepare()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._alarm = Alarm(self._loop, self._clock, self._send_what_is_due)
        cpu_before = _cpu_s()
        self._start = self._in_flight_since = Nanos(self._clock.now() + NANOS_PER_MILLI)
        for request in self._requests:
            if not request.after:
                self._schedule(request, Nanos(self._start + nanos(request.at_s)))
        watchers = [self._loop.create_task(watch()) for watch in (self._watch_lag, self._watch_timeouts)]
        if self._on_progress is not None:
            watchers.append(self._loop.create_task(self._tell_progress(self._on_progress)))
        try:
            if self._requests:
                self._send_what_is_due()
                await self._done
        except asyncio.CancelledError:  # Ctrl-C: what was measured until now is worth showing
            facts = msgspec.structs.replace(facts, is_interrupted=True)
            self._due.clear()
            self._held.clear()
            self._followers.clear()
            for exchange in list(self._in_flight):
                self._client.abandon(exchange, "interrupted", "the run was ended before this answer was whole")
        finally:
            for watcher in watchers:
                watcher.cancel()
            self._alarm.close()
            await self._client.close()
        return self._run(facts, _cpu_s() - cpu_before)

    def _prepare(self) -> None:
        num_bytes = 0
        for request in self._requests:
            if num_bytes > _MOST_PREPARED_BYTES:
                break
            if not (isinstance(request.prompt, ChatPrompt) and request.prompt.continues):
                wire = self._wires[request.request_id] = self._wire(request)
                num_bytes += len(wire)

    def _wire(self, request: WorkloadRequest) -> bytes:
        body = self._options.format.body(request, self._body_options, self._conversations.get(request.after))
        if request.request_id in self._keeps_text_of:
            self._messages[request.request_id] = tuple(body.get("messages", ()))
        path = self._options.endpoint or self._options.format.path
        return self._client.wire(path, msgspec.json.encode(body), request_id=request.request_id)

    # When requests are due

    def _schedule(self, request: WorkloadRequest, moment: Nanos) -> None:
        heapq.heappush(self._due, (moment, self._num_due, request))
        self._num_due += 1

    def _send_what_is_due(self) -> None:
        """At its moment, and again when a place becomes free."""
        while self._due and self._due[0][0] <= self._clock.now():
            moment, _, request = heapq.heappop(self._due)
            if self._is_full():
                self._held.append((moment, request))
            else:
                self._send(request, moment)
                self._send_lags.append(self._clock.now() - moment)
        if self._due:
            self._alarm.set(self._due[0][0])

    def _is_full(self) -> bool:
        limit = self._options.max_concurrency
        return limit is not None and len(self._in_flight) >= limit

    def _send(self, request: WorkloadRequest, intended: Nanos) -> None:
        wire = self._wires.pop(request.request_id, None) or self._wire(request)
        exchange = Exchange(wire, self._options.format.reader(), self._finished)
        self._count_in_flight()
        self._in_flight[exchange] = (request, intended)
        self._client.send(exchange)

    def _finished(self, exchange: Exchange) -> None:
        assert exchange.finished_ns is not None
        self._count_in_flight(exchange.finished_ns)
        request, intended = self._in_flight.pop(exchange)
        record = self._record(exchange, request, intended)
        self._records.append(record)
        self._note_progress(record)
        self._continue_session(request, exchange)
        if self._held and not self._is_full():
            moment, held = self._held.popleft()
            self._send(held, exchange.finished_ns if self._options.intends_when_free else moment)
        if len(self._records) == len(self._requests) and not self._done.done():
            self._done.set_result(None)

    def _continue_session(self, request: WorkloadRequest, exchange: Exchange) -> None:
        assert exchange.finished_ns is not None
        followers = self._followers.get(request.request_id, ())
        if request.request_id in self._keeps_text_of and not exchange.error:
            answer = {"role": "assistant", "content": "".join(exchange.reader.texts)}
            self._conversations[request.request_id] = Conversation((*self._messages.pop(request.request_id), answer))
        for follower in followers:
            moment = Nanos(exchange.finished_ns + nanos(follower.at_s))
            if exchange.error and isinstance(follower.prompt, ChatPrompt) and follower.prompt.continues:
                self._give_up(follower, exchange.finished_ns)
            else:
                self._schedule(follower, moment)
        if followers and self._due:
            self._alarm.set(self._due[0][0])

    def _give_up(self, request: WorkloadRequest, now: Nanos) -> None:
        """What would have continued an answer that never came, and all that would have come after it."""
        moment = Nanos(now - self._start)
        self._records.append(
            RequestRecord(
                request_id=request.request_id,
                intended_ns=moment,
                sent_ns=moment,
                finished_ns=moment,
                error="not sent",
                error_detail=f"{request.after} failed before it",
            )
        )
        for follower in self._followers.get(request.request_id, ()):
            self._give_up(follower, now)

    def _count_in_flight(self, now: Nanos | None = None) -> None:
        """Adds up requests in flight over time; called before their number changes."""
        now = self._clock.now() if now is None else now
        self._in_flight_integral += len(self._in_flight) * (now - self._in_flight_since)
        self._in_flight_since = now

    # What is kept

    def _record(self, exchange: Exchange, request: WorkloadRequest, intended: Nanos) -> RequestRecord:
        assert exchange.finished_ns is not None
        sent = exchange.sent_ns if exchange.sent_ns is not None else exchange.finished_ns
        reader = exchange.reader
        num_chunks = len(exchange.gaps_ns) + (exchange.first_chunk_ns is not None)
        expected = request.prompt.num_tokens if isinstance(request.prompt, TokenPrompt) else 0
        return RequestRecord(
            request_id=request.request_id,
            intended_ns=Nanos(intended - self._start),
            sent_ns=Nanos(sent - self._start),
            headers_ns=self._since_start(exchange.headers_ns),
            first_chunk_ns=self._since_start(exchange.first_chunk_ns),
            gaps_ns=tuple(exchange.gaps_ns),
            finished_ns=Nanos(exchange.finished_ns - self._start),
            num_prompt_tokens=expected if reader.num_prompt_tokens is None else reader.num_prompt_tokens,
            num_output_tokens=num_chunks if reader.num_output_tokens is None else reader.num_output_tokens,
            num_cached_tokens=reader.num_cached_tokens,
            finish_reason=reader.finish_reason,
            error=exchange.error,
            error_detail=exchange.error_detail,
            text="".join(reader.texts) if self._options.keep_texts else "",
        )

    def _since_start(self, moment: Nanos | None) -> Nanos | None:
        return None if moment is None else Nanos(moment - self._start)

    def _run(self, facts: RunFacts, cpu_s: float) -> Run:
        records = sorted(self._records, key=lambda record: (record.intended_ns, record.request_id))
        end = max((record.finished_ns for record in records), default=0)
        measured = msgspec.structs.replace(
            facts,
            duration_ns=Nanos(end),
            start_ns=self._start,
            in_flight_integral_ns=self._in_flight_integral,
            client=ClientHealth(
                cpu_s=cpu_s,
                wall_s=seconds(end),
                loop_lag_p99_ns=_share(self._loop_lags, 99),
                send_lag_p99_ns=_share(self._send_lags, 99),
                send_lag_max_ns=_share(self._send_lags, 100),
            ),
        )
        return Run(facts=measured, records=tuple(records))

    # How the client itself is doing

    async def _watch_lag(self) -> None:
        """The loop's own timer is good to a millisecond; a busy loop is late by more."""
        while True:
            before = self._clock.now()
            await asyncio.sleep(_LAG_PERIOD_MS / 1000)
            self._loop_lags.append(max(0, self._clock.now() - before - _LAG_PERIOD_MS * NANOS_PER_MILLI))

    async def _watch_timeouts(self) -> None:
        """Requests were sent in order, so the first that is young enough ends the search."""
        limit = nanos(self._options.timeout_s)
        while True:
            await asyncio.sleep(_TIMEOUT_PERIOD_S)
            now = self._clock.now()
            for exchange in list(self._in_flight):
                if exchange.sent_ns is None or now - exchange.sent_ns < limit:
                    break
                self._client.abandon(exchange, "timeout", f"no whole answer within {self._options.timeout_s:g} s")

    async def _tell_progress(self, tell: Callable[[Progress], None]) -> None:
        while True:
            await asyncio.sleep(0.5)
            now = self._clock.now()
            progress = self._progress
            progress.elapsed_s = seconds(now - self._start)
            progress.num_in_flight = len(self._in_flight)
            progress.num_chunks += sum(len(e.gaps_ns) for e in self._in_flight)
            progress.loop_lag_ms = max(self._loop_lags[-25:], default=0) / NANOS_PER_MILLI
            tell(progress)
            progress.num_chunks -= sum(len(e.gaps_ns) for e in self._in_flight)
            progress.ttft_ms, progress.e2el_ms, progress.longest_gap_ms = [], [], 0.0

    def _note_progress(self, record: RequestRecord) -> None:
        if self._on_progress is None:
            return
        progress = self._progress
        progress.num_done += 1
        progress.num_failed += bool(record.error)
        progress.num_chunks += len(record.gaps_ns) + (record.first_chunk_ns is not None)
        if record.first_chunk_ns is not None:
            progress.ttft_ms.append((record.first_chunk_ns - record.intended_ns) / NANOS_PER_MILLI)
        if record.is_completed:
            progress.e2el_ms.append((record.finished_ns - record.intended_ns) / NANOS_PER_MILLI)
        progress.longest_gap_ms = max(progress.longest_gap_ms, *(gap / NANOS_PER_MILLI for gap in record.gaps_ns), 0.0)


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system


def _share(values: list[int], share: float) -> Nanos:
    return Nanos(round(percentile(sorted(map(float, values)), share))) if values else Nanos(0)

"""Clients: who asks, when, how long they wait and whether they ask again. Keeps the records that a live run would leave.

Arrivals come from a workload; a request that follows another comes after that one's end, as with the load generator. Knows
prompts, patience and moments; does not know replicas.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import msgspec

from headrace.base.clock import Clock, Nanos
from headrace.base.ids import BlockHash, RequestId
from headrace.base.rng import Random
from headrace.base.units import nanos
from headrace.engine.mind.block_hashing import BlockHasher
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.update import FinishReason
from headrace.measure.report.record import RequestRecord
from headrace.measure.workload.request import ChatPrompt, TextPrompt, TokenPrompt, Workload, WorkloadRequest
from headrace.router.mind.routed_request import RoutedRequest
from headrace.sim.events import EventQueue, Rank
from headrace.sim.fleet_spec import ClientSpec
from headrace.sim.network import CLIENT, Network
from headrace.sim.prompts import SegmentedPrompt, stand_in_tokens
from headrace.sim.replica_host import ROUTER, Finish
from headrace.sim.router_host import RouterHost

_BYTES_PER_TOKEN = 4
_TRYING_AGAIN = frozenset({"unavailable", "dropped", "no endpoint"})
"""Failures after which a client sends its request again, if it does that at all."""
_REFUSED = "http 400"
"""As the server would answer what it cannot do as asked, such as a prompt that is too long for it."""


@dataclass(slots=True, eq=False)
class _Open:
    """A request whose end its client has not seen."""

    asked: WorkloadRequest
    intended: Nanos
    request: Request
    routed: RoutedRequest
    num_attempts: int = 0
    is_open: bool = True
    is_waiting: bool = False
    """Between two attempts."""
    first_token: Nanos | None = None


@dataclass(slots=True, kw_only=True)
class Routing:
    """How prompts are named for the router."""

    block_size: int
    """Tokens of the router's blocks; 0: they are not named at all."""
    engine_block_size: int
    """Where a number of the engines' blocks is one of the router's, the router names it as they name the last of them: so a
    prompt is hashed once for all."""


@dataclass(slots=True, eq=False)
class Clients:
    spec: ClientSpec
    workload: Workload
    clock: Clock
    events: EventQueue
    network: Network
    hasher: BlockHasher
    rng: Random
    routing: Routing
    cache_salt: Callable[[WorkloadRequest], str]
    root_of: Callable[[str], BlockHash]
    """What the first block of a tenant's prompts is chained to."""
    on_finish: Callable[[str, Finish], None]
    """Told each answer that a client got, by the request's id in the workload."""
    router: RouterHost = field(init=False)

    records: list[RequestRecord] = field(default_factory=list)
    in_flight_integral: int = 0
    num_retries: int = 0
    _open: dict[RequestId, _Open] = field(default_factory=dict)
    _followers: dict[str, list[WorkloadRequest]] = field(default_factory=dict)
    _contexts: dict[str, list[int]] = field(default_factory=dict)
    _arrivals: Iterator[WorkloadRequest] = field(init=False)
    _deadlines: deque[tuple[int, _Open]] = field(default_factory=deque)
    """When each loses its last patience: all have as much, so whoever came first is first. One event at a time: nearly all
    are answered long before, and the queue of events stays small."""
    _num_expected: int = 0
    _counted: int = 0

    def begin(self) -> None:
        first = []
        for asked in self.workload.requests:
            if asked.after:
                self._followers.setdefault(asked.after, []).append(asked)
            else:
                first.append(asked)
        self._num_expected = len(self.workload.requests)
        self._arrivals = iter(sorted(first, key=lambda asked: asked.at_s))
        self._await_next()

    def is_done(self) -> bool:
        return len(self.records) == self._num_expected

    @property
    def num_open(self) -> int:
        return len(self._open)

    def storm(self, requests: Iterable[WorkloadRequest]) -> None:
        """These come now, whatever the workload says."""
        for asked in requests:
            self._num_expected += 1
            self._arrive(asked)

    # They come

    def _await_next(self) -> None:
        """One event at a time, so that a long workload is no large queue."""
        asked = next(self._arrivals, None)
        if asked is not None:
            moment = Nanos(max(nanos(asked.at_s), self.clock.now()))
            self.events.schedule(moment, Rank.MESSAGE, partial(self._arrive_and_await, asked))

    def _arrive_and_await(self, asked: WorkloadRequest) -> None:
        self._arrive(asked)
        self._await_next()

    def _arrive(self, asked: WorkloadRequest) -> None:
        now = self.clock.now()
        self._count_in_flight(now)
        prompt, salt = self._prompt(asked), self.cache_salt(asked)
        request_id = RequestId(asked.request_id)
        request = Request(
            request_id=request_id,
            prompt_token_ids=prompt,
            sampling=SamplingParams(
                max_tokens=asked.num_output_tokens, ignore_eos=True, seed=seed_of(asked.request_id, self.workload.seed)
            ),
            cache_salt=salt,
        )
        routed = RoutedRequest(request_id, len(prompt), self._router_hashes(prompt, salt))
        one = self._open[request_id] = _Open(asked, now, request, routed)
        self._send(one)
        self._plan_to_leave(one, now)

    def _send(self, one: _Open) -> None:
        one.num_attempts += 1
        one.is_waiting = False
        self._to_router(
            partial(self.router.submit, one.request, one.routed),
            num_bytes=_BYTES_PER_TOKEN * one.routed.num_prompt_tokens,
        )

    def _to_router(self, deliver: Callable[[], None], num_bytes: int = 0) -> None:
        """The clients' own line is good: it has latency, and loses nothing."""
        self.network.send_safely(CLIENT, ROUTER, deliver, num_bytes=num_bytes)

    # They lose patience

    def _plan_to_leave(self, one: _Open, now: Nanos) -> None:
        spec = self.spec
        if spec.disconnect_share and self.rng.random() < spec.disconnect_share:
            patience = nanos(self.rng.expovariate(1 / spec.patience_s))
            self._at(now + patience, partial(self._leave, one, "disconnected"))
        if spec.first_token_timeout_s:
            self._at(now + nanos(spec.first_token_timeout_s), partial(self._leave_without_token, one))
        self._deadlines.append((now + nanos(spec.timeout_s), one))
        if len(self._deadlines) == 1:
            self._await_deadline()

    def _await_deadline(self) -> None:
        self._at(self._deadlines[0][0], self._leave_at_deadline)

    def _leave_at_deadline(self) -> None:
        deadlines, now = self._deadlines, self.clock.now()
        while deadlines and (deadlines[0][0] <= now or not deadlines[0][1].is_open):
            self._leave(deadlines.popleft()[1], "timeout")
        if deadlines:
            self._await_deadline()

    def _leave_without_token(self, one: _Open) -> None:
        if one.first_token is None:
            self._leave(one, "timeout")

    def _leave(self, one: _Open, error: str) -> None:
        if not one.is_open:
            return
        if not one.is_waiting:
            self._to_router(partial(self.router.cancel, one.request.request_id))
        self._end(one, self._failed(one, error))

    # They are answered

    def first_token(self, request_id: RequestId, sent: Nanos) -> None:
        one = self._open.get(request_id)
        if one is not None:
            one.first_token = Nanos(self.clock.now() + self.network.latency(ROUTER, CLIENT))

    def finished(self, request_id: RequestId, finish: Finish) -> None:
        self.network.send_safely(ROUTER, CLIENT, partial(self._finish, request_id, finish))

    def rejected(self, request_id: RequestId, error: str) -> None:
        self.network.send_safely(ROUTER, CLIENT, partial(self._reject, request_id, error))

    def _finish(self, request_id: RequestId, finish: Finish) -> None:
        one = self._open.get(request_id)
        if one is None:
            return
        now, times = self.clock.now(), finish.times
        is_whole = finish.reason in (FinishReason.STOP, FinishReason.LENGTH)
        first = None
        if finish.num_tokens:
            # Tokens keep the pace at which they were sent; what came out of turn on the way is put in order.
            latest = Nanos(now - (finish.last_token - finish.first_token))
            first = latest if one.first_token is None else min(Nanos(one.first_token + finish.first_chunk_wait), latest)
        record = RequestRecord(
            request_id=one.asked.request_id,
            intended_ns=one.intended,
            sent_ns=one.intended,
            headers_ns=first,
            first_chunk_ns=first,
            gaps_ns=cast("tuple[Nanos, ...]", finish.gaps),
            finished_ns=now,
            num_prompt_tokens=one.routed.num_prompt_tokens,
            num_output_tokens=finish.num_tokens,
            num_cached_tokens=finish.num_cached_tokens,
            queued_ns=None if times is None else Nanos(times.scheduled - times.arrived),
            finish_reason="" if finish.is_refused else str(finish.reason),
            error=_REFUSED if finish.is_refused else "" if is_whole else str(finish.reason),
            error_detail=finish.error,
        )
        self.on_finish(one.asked.request_id, finish)
        self._end(one, record, answer=finish.token_ids)

    def _reject(self, request_id: RequestId, error: str) -> None:
        one = self._open.get(request_id)
        if one is None:
            return
        if error in _TRYING_AGAIN and one.num_attempts <= self.spec.max_retries:
            self.num_retries += 1
            one.first_token = None
            one.is_waiting = True
            del self._open[request_id]
            name = RequestId(f"{one.asked.request_id}~{one.num_attempts}")
            one.request = msgspec.structs.replace(one.request, request_id=name)
            one.routed = RoutedRequest(name, one.routed.num_prompt_tokens, one.routed.block_hashes)
            self._open[name] = one
            backoff = self.spec.backoff_s * 2 ** (one.num_attempts - 1) * (1 + self.rng.random())
            self._at(self.clock.now() + nanos(backoff), partial(self._send_again, one))
            return
        self._end(one, self._failed(one, error))

    def _send_again(self, one: _Open) -> None:
        if one.is_open:
            self._send(one)

    def _end(self, one: _Open, record: RequestRecord, answer: Sequence[int] = ()) -> None:
        now = self.clock.now()
        self._count_in_flight(now)
        name = one.asked.request_id
        del self._open[one.request.request_id]
        one.is_open = False
        self.records.append(record)
        if self.is_done():
            self.events.stop()
        followers = self._followers.get(name, ())
        if any(isinstance(f.prompt, ChatPrompt) and f.prompt.continues for f in followers):
            self._contexts[name] = [*one.request.prompt_token_ids, *answer]
        for follower in followers:
            thinking = follower.at_s
            if self.spec.extra_think_time_s:
                thinking += self.rng.expovariate(1 / self.spec.extra_think_time_s)
            self._at(now + nanos(thinking), partial(self._arrive, follower))

    # Parts

    def _at(self, moment: int, action: Callable[[], None]) -> None:
        self.events.schedule(Nanos(moment), Rank.MESSAGE, action)

    def _count_in_flight(self, now: Nanos) -> None:
        self.in_flight_integral += len(self._open) * (now - self._counted)
        self._counted = now

    def _failed(self, one: _Open, error: str) -> RequestRecord:
        return RequestRecord(
            request_id=one.asked.request_id,
            intended_ns=one.intended,
            sent_ns=one.intended,
            headers_ns=one.first_token,
            first_chunk_ns=one.first_token,
            finished_ns=self.clock.now(),
            num_prompt_tokens=one.routed.num_prompt_tokens,
            error=error,
        )

    def _prompt(self, asked: WorkloadRequest) -> tuple[int, ...]:
        workload = self.workload
        match asked.prompt:
            case TokenPrompt(segments):
                return SegmentedPrompt(segments, workload.seed).as_token_ids()
            case TextPrompt(text):
                return tuple(stand_in_tokens(text, workload.vocab_size))
            case ChatPrompt(messages, continues):
                text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
                before = self._contexts.get(asked.after, []) if continues else []
                return (*before, *stand_in_tokens(text, workload.vocab_size))

    def _router_hashes(self, prompt: Sequence[int], salt: str) -> tuple[BlockHash, ...]:
        routing = self.routing
        if not routing.block_size:
            return ()
        root = self.root_of(salt)
        if routing.block_size % routing.engine_block_size:
            return tuple(self.hasher.prompt_hashes(root, prompt, routing.block_size))
        step = routing.block_size // routing.engine_block_size
        return tuple(self.hasher.prompt_hashes(root, prompt, routing.engine_block_size)[step - 1 :: step])


def seed_of(request_id: str, seed: int) -> int:
    """Equal in every process, and for every attempt at one request."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{request_id}".encode(), digest_size=4).digest(), "big") >> 1

"""EngineCore: one engine's mind. Decisions only; time is an argument; nothing here waits, reads a clock or holds a tensor.

Whoever owns a core calls `begin_step` until it gives None, has each plan carried out, and calls `finish_step` with the
results in the same order. Several steps may be in flight at once: the number lives here, so that a rehearsal has it too.
"""

from collections import deque
from collections.abc import Sequence

from headrace.base.clock import Nanos
from headrace.base.errors import ContextLengthError, InvalidRequestError, OverloadedError
from headrace.base.ids import RequestId, SequenceId, StepId
from headrace.engine.mind import decode_run
from headrace.engine.mind.beam_search import BeamGroup
from headrace.engine.mind.block_hashing import BlockHasher, ContentHasher
from headrace.engine.mind.config import SchedulerConfig, SchedulingPolicy
from headrace.engine.mind.decode_run import DecodeRun
from headrace.engine.mind.kv_transfer import KVLeases, KVTransferConfig, LoadFailurePolicy
from headrace.engine.mind.ports import KVConnector
from headrace.engine.mind.repetition import is_stuck
from headrace.engine.mind.request import Request
from headrace.engine.mind.scheduler import Scheduler
from headrace.engine.mind.sequence import SequenceState, Status
from headrace.engine.mind.stats import EngineStats
from headrace.engine.mind.step import PromptLogprobs, SampledToken, StepPlan, StepResult, TokenLogprobs
from headrace.engine.mind.update import FinishReason, RequestUpdate, SequenceTimes

_NO_CONNECTOR = KVTransferConfig()
_FINISHED = Status.FINISHED
"""By name: asked for once a sequence and step."""


class EngineCore:
    def __init__(
        self,
        config: SchedulerConfig,
        *,
        eos_token_ids: tuple[int, ...] = (),
        identity_digest: bytes = b"",
        hasher: BlockHasher | None = None,
        connector: KVConnector | None = None,
        transfer: KVTransferConfig = _NO_CONNECTOR,
    ) -> None:
        """`eos_token_ids`: the model's end-of-text tokens. `identity_digest`: of the ExecutionIdentity; seeds the cache.
        `hasher`: names blocks; by default it hashes what it is given. `connector`: who moves KV between engines, if any
        does; `transfer`: what becomes of it."""
        self.config = config
        self._eos_token_ids = eos_token_ids
        self._scheduler = Scheduler(config, identity_digest, hasher or ContentHasher(), connector)
        self._connector = connector
        self._transfer = transfer
        self._leases = KVLeases()
        self._sequences: dict[SequenceId, SequenceState] = {}  # until the last step that contains them is over
        self._requests: dict[RequestId, list[SequenceState]] = {}  # continuations that have not finished
        self._searches: dict[RequestId, BeamGroup] = {}  # of those requests that want a beam search
        self._in_flight: deque[StepPlan] = deque()
        self._next_sequence_id = 0
        self._num_steps = 0
        self._num_tokens_computed = 0

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self._requests)

    @property
    def num_steps_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def is_idle(self) -> bool:
        """Nothing asked, nothing in flight."""
        return not self._requests and not self._in_flight

    def add_request(self, request: Request, now: Nanos) -> None:
        """Takes a request into the queue, or raises InvalidRequestError or OverloadedError and changes nothing."""
        self._check(request)
        sequences: list[SequenceState] = []
        for index in range(_num_sequences(request)):
            sequence = self._new_sequence(request, index, now)
            sequence.leader = sequences[0] if sequences else None
            sequence.may_load = request.kv_source is not None and index == 0
            sequences.append(sequence)
            self._scheduler.add(sequence)
        self._requests[request.request_id] = sequences
        if request.sampling.beam_search is not None:
            self._searches[request.request_id] = BeamGroup(list(sequences))

    def abort(self, request_id: RequestId, now: Nanos, *, sample_index: int | None = None) -> list[RequestUpdate]:
        """The client gave up: its continuations, or the one named, end now. An unknown id is no error, for the two may
        cross on the way."""
        if request_id in self._searches:
            return self._abort_search(self._searches[request_id], now, sample_index)
        return [
            self._finish(sequence, FinishReason.ABORT, now=now)
            for sequence in list(self._requests.get(request_id, ()))
            if sample_index is None or sequence.sample_index == sample_index
        ]

    def begin_step(self, now: Nanos) -> StepPlan | None:
        """The next step to carry out, or None if there is nothing to do before another event."""
        if len(self._in_flight) >= self.config.max_steps_in_flight:
            return None
        plan = self._scheduler.schedule(now, StepId(self._num_steps))
        if plan is None:
            is_awaited = self._in_flight or self._scheduler.loading or self._leases
            assert is_awaited or not self._requests, "no request can advance and nothing is in flight"
            return None
        self._in_flight.append(plan)
        self._num_steps += 1
        self._num_tokens_computed += plan.num_tokens
        return plan

    def finish_step(self, plan: StepPlan, result: StepResult, now: Nanos) -> list[RequestUpdate]:
        """Takes in the outcome of the oldest step in flight. One update per continuation that changed."""
        assert self._in_flight and self._in_flight[0] is plan, "steps finish in the order in which they began"
        assert result.step_id == plan.step_id and len(result.sampled) == len(plan.scheduled)
        self._in_flight.popleft()
        if plan.block_copies:
            self._scheduler.num_copying_steps -= 1
        failures = dict(result.failures) if result.failures else None
        scores = {one.sequence_id: one for one in result.prompt_logprobs} if result.prompt_logprobs else None
        candidates = dict(result.candidates) if result.candidates else None
        updates: list[RequestUpdate] = []
        sequences, update, take_token = self._sequences, self._scheduler.update, self._take_token
        for entry, sampled in zip(plan.scheduled, result.sampled, strict=True):
            sequence = sequences[entry.sequence_id]
            is_usable = not failures or entry.sequence_id not in failures
            update(sequence, entry, is_usable=is_usable)
            if sequence.status is _FINISHED:  # by its stop token in an earlier step, or aborted
                if sequence.num_steps_in_flight == 0:
                    del self._sequences[entry.sequence_id]
            elif failures and entry.sequence_id in failures:
                updates += self._fail(sequence, failures[entry.sequence_id], now)
            else:
                if scores and entry.sequence_id in scores:
                    updates += self._take_scores(sequence, scores[entry.sequence_id])
                if entry.samples and sequence.is_beam:
                    assert candidates is not None, f"beam {entry.sequence_id} has no candidates"
                    self._searches[sequence.request.request_id].take(sequence, candidates[entry.sequence_id])
                elif entry.samples:
                    assert sampled is not None, f"sequence {entry.sequence_id} sampled nothing"
                    updates.append(take_token(sequence, sampled, now))
        if self._searches:
            for search in list(self._searches.values()):
                updates += self._advance(search, now)
        return updates

    # KV that moves between engines

    def end_load(self, sequence_id: SequenceId, num_tokens: int, now: Nanos, *, error: str = "") -> list[RequestUpdate]:
        """The transfer for a sequence is over, for every `KVConnector.load` once: the KV of its first `num_tokens` tokens is
        there, what was there before included. `error`: why not all came; the rest is computed, or the request ends."""
        sequence = self._scheduler.loading[sequence_id]
        self._scheduler.end_load(sequence, num_tokens)
        if sequence.status is Status.FINISHED:
            del self._sequences[sequence_id]
        elif error and self._transfer.load_failure_policy is LoadFailurePolicy.FAIL:
            return self._fail(sequence, error, now)
        return []

    def renew_lease(self, request_id: RequestId, now: Nanos) -> bool:
        """Somebody is about to fetch what this request left: it is kept so much longer. False: it is not kept any more."""
        return self._leases.renew(request_id, Nanos(now + self._transfer.lease_ns))

    def end_lease(self, request_id: RequestId) -> None:
        """Nobody needs it any more. An unknown id is no error, for this and the lease's own end may cross."""
        self._scheduler.kv.let_go(self._leases.end(request_id))

    def end_leases_over(self, now: Nanos) -> list[RequestId]:
        """Those whose time is up; whose they were. Nobody may read their blocks any more."""
        over = self._leases.over(now)
        for request_id in over:
            self.end_lease(request_id)
        return over

    @property
    def num_leases(self) -> int:
        """Requests whose KV is kept for others."""
        return len(self._leases)

    def is_leased(self, request_id: RequestId) -> bool:
        return request_id in self._leases

    def next_wakeup(self) -> Nanos | None:
        """When `end_leases_over` should be called, if nothing happens before."""
        return self._leases.next_end()

    # Steps taken together

    def num_repeats(self) -> int:
        """How many more steps `repeat_steps` can take at once: they would be like those in flight if nothing came from
        outside. 0 while fewer are in flight than may be."""
        if len(self._in_flight) < self.config.max_steps_in_flight:
            return 0
        return decode_run.num_repeats(self._scheduler, self._in_flight)

    def repeat_steps(self, answers: Sequence[Sequence[int]]) -> DecodeRun:
        """`finish_step` and `begin_step` in turn, once for each token of an answer: the tokens that the running sequences
        sample in those steps, for each as many, at most `num_repeats()`. No log-probabilities."""
        run = decode_run.repeat(self._scheduler, StepId(self._num_steps), answers)
        depth = len(self._in_flight)
        self._in_flight.extend(run.plans(max(0, run.num_steps - depth)))
        while len(self._in_flight) > depth:
            self._in_flight.popleft()
        self._num_steps += run.num_steps
        self._num_tokens_computed += run.num_steps * len(run.sequences)
        return run

    @property
    def running(self) -> Sequence[SequenceState]:
        """In the scheduler's order."""
        return self._scheduler.running

    @property
    def steps_in_flight(self) -> Sequence[StepPlan]:
        """Oldest first."""
        return self._in_flight

    def reset_prefix_cache(self) -> None:
        """Forgets all cached KV: after a change of weights, or to measure without it."""
        self._scheduler.kv.reset_prefix_cache()

    def stats(self, *, num_repeats: int = 0) -> EngineStats:
        """Of now, or of after `repeat_steps` of so many steps, without taking them."""
        scheduler, pool = self._scheduler, self._scheduler.kv.pool
        num_new = scheduler.kv.num_new_blocks(scheduler.running, num_repeats) if num_repeats else 0
        num_evicted = max(0, num_new - pool.num_free)
        num_in_use = pool.num_referenced + num_new
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_loading=len(scheduler.loading),
            num_blocks_leased=self._leases.num_blocks,
            kv_cache_usage=num_in_use / pool.num_blocks,
            num_blocks_in_use=num_in_use,
            num_blocks_cached=pool.num_evictable - num_evicted,
            num_preemptions=scheduler.num_preemptions,
            num_evictions=pool.num_evictions + num_evicted,
            prefix_cache_queries=scheduler.kv.num_prefix_queries,
            prefix_cache_hits=scheduler.kv.num_prefix_hits,
            num_steps=self._num_steps + num_repeats,
            num_tokens_computed=self._num_tokens_computed + num_repeats * len(scheduler.running),
        )

    def check_integrity(self) -> None:
        """Asserts every rule that must hold between calls. Cheap enough for idle moments and for rehearsal."""
        scheduler = self._scheduler
        holders = [s for s in self._sequences.values() if s.block_ids]
        scheduler.kv.check_integrity(holders, self._leases.holders)
        uses = (Status.RUNNING, Status.LOADING_KV)
        for sequence in holders:
            is_written = sequence.num_steps_in_flight > 0 or sequence.is_loading
            assert sequence.status in uses or is_written, "blocks without a use"
            assert not (sequence.num_steps_in_flight and sequence.is_loading), "a step reads what is still being filled"
        for sequence in self._sequences.values():
            assert sequence.block_ids or not sequence.num_steps_in_flight, "a step writes blocks that were given back"
        unfinished = [sequence for sequences in self._requests.values() for sequence in sequences]
        num_parked = sum(sequence.status is Status.PARKED for sequence in unfinished)
        num_loading = sum(sequence.status is Status.LOADING_KV for sequence in unfinished)
        num_known = len(scheduler.running) + len(scheduler.waiting) + num_parked + num_loading
        assert len(unfinished) == num_known, "a sequence is lost"
        assert all(s.is_loading and s.block_ids for s in scheduler.loading.values()), "a transfer has no blocks to fill"
        for search in self._searches.values():
            assert not search.is_ready, "a search knows all it needs and does not go on"
            assert all(s.status is not Status.PARKED for s in search.awaited), "a search waits for a beam that is parked"
        assert len(scheduler.running) + num_loading <= self.config.max_num_seqs
        keys = [scheduler.waiting.order_of(sequence) for sequence in scheduler.running]
        assert keys == sorted(keys), "the running are out of order"
        for sequence in unfinished:
            assert sequence.status is not Status.FINISHED
            assert (
                sequence.num_tokens == sequence.num_prompt_tokens + len(sequence.output_token_ids) < sequence.max_num_tokens
            )
            assert sequence.num_confirmed_tokens <= sequence.num_computed_tokens

    # Parts

    def _check(self, request: Request) -> None:
        """Raises before anything has changed."""
        config, sampling = self.config, request.sampling
        num_prompt_tokens = len(request.prompt_token_ids)
        if request.request_id in self._requests:
            raise InvalidRequestError(f"request_id {request.request_id!r} is in use", param="request_id")
        if num_prompt_tokens == 0:
            raise InvalidRequestError("the prompt has no tokens: give at least one", param="prompt")
        if num_prompt_tokens + sampling.max_tokens > config.max_model_len:
            raise ContextLengthError(
                f"{num_prompt_tokens} prompt tokens and max_tokens {sampling.max_tokens} make "
                f"{num_prompt_tokens + sampling.max_tokens}, but max_model_len is {config.max_model_len}: "
                "shorten the prompt or lower max_tokens",
                param="max_tokens",
            )
        num_sequences = _num_sequences(request)
        if not 1 <= num_sequences <= config.max_num_seqs:
            raise InvalidRequestError(
                f"n must be between 1 and max_num_seqs ({config.max_num_seqs}), not {num_sequences}", param="n"
            )
        if sampling.beam_search is not None:
            self._check_beam_search(request, num_sequences)
        if request.priority and config.policy is not SchedulingPolicy.PRIORITY:
            raise InvalidRequestError(
                "priority is used only under the priority scheduling policy, and this server runs first come, "
                "first served: leave it out, or start the server with --scheduling-policy priority",
                param="priority",
            )
        if (request.keeps_kv or request.kv_source is not None) and self._connector is None:
            raise InvalidRequestError(
                "kv_transfer_params need an engine that is connected to others, and this one has no KV connector: "
                "leave them out, or start the engine with one",
                param="kv_transfer_params",
            )
        if request.keeps_kv and (num_sequences > 1 or request.request_id in self._leases):
            raise InvalidRequestError(
                "a request whose KV is kept for another engine has one continuation and a name of its own: "
                f"not {num_sequences} of {request.request_id!r}",
                param="kv_transfer_params",
            )
        num_queued = len(self._scheduler.waiting)
        if num_queued + num_sequences > config.max_num_queued_requests:
            raise OverloadedError(
                f"{num_queued} requests are waiting and max_num_queued_requests is {config.max_num_queued_requests}: "
                "try again later"
            )

    def _check_beam_search(self, request: Request, width: int) -> None:
        if not 1 <= request.num_sequences <= width:
            raise InvalidRequestError(
                f"n must be between 1 and the width of the beam search ({width}), not {request.num_sequences}", param="n"
            )
        # Beams go on together, so all must fit; that they share blocks is not counted on, for preemption may end it.
        num_blocks = width * self._scheduler.kv.num_blocks_for(len(request.prompt_token_ids) + request.sampling.max_tokens)
        if num_blocks > self.config.num_blocks:
            raise InvalidRequestError(
                f"a beam search of width {width} over {len(request.prompt_token_ids)} prompt tokens and max_tokens "
                f"{request.sampling.max_tokens} may need {num_blocks} KV blocks, and there are {self.config.num_blocks}: "
                "lower max_tokens or n",
                param="max_tokens",
            )

    # Beam search

    def _advance(self, search: BeamGroup, now: Nanos) -> list[RequestUpdate]:
        """The search goes on if all of its beams have told their candidates; else those that have get out of the way of
        those that cannot run now, lest each hold what the other waits for."""
        if not search.is_ready:
            if any(sequence.status is not Status.RUNNING for sequence in search.awaited):
                for sequence in search.sequences:
                    if sequence.awaits_choice:
                        self._scheduler.park(sequence)
            return []
        moves = search.choose()
        if search.is_over:
            return self._end_search(search, now)
        first = search.sequences[0]
        if first.first_token is None:
            first.first_token = now
        for sequence, parent, token_id in moves:
            if sequence is parent:
                self._scheduler.go_on(sequence, token_id)
            else:
                self._scheduler.fork(sequence, parent, token_id)
        going = {move.sequence.sequence_id for move in moves}
        for sequence in search.sequences:
            if sequence.sequence_id not in going:
                self._scheduler.park(sequence)
        return []

    def _end_search(self, search: BeamGroup, now: Nanos) -> list[RequestUpdate]:
        """The best answers, each as one update."""
        first = search.sequences[0]
        request = first.request
        if len(search.answers) < request.num_sequences:
            num_found, num_asked = len(search.answers), request.num_sequences
            found = f"the request's conditions leave {num_found} answers, and {num_asked} are asked for"
            return self._drop_search(search, FinishReason.ERROR, now, error=found)
        self._forget_search(search)
        return [
            RequestUpdate(
                request_id=request.request_id,
                sample_index=place,
                new_token_ids=answer.token_ids,
                logprobs=answer.logprobs,
                finish_reason=answer.finish_reason,
                stop_token_id=answer.token_ids[-1] if answer.finish_reason is FinishReason.STOP else None,
                num_cached_tokens=first.num_cached_tokens,
                times=_times(first, now),
            )
            for place, answer in enumerate(search.answers[: request.num_sequences])
            if place not in search.given_up
        ]

    def _abort_search(self, search: BeamGroup, now: Nanos, sample_index: int | None) -> list[RequestUpdate]:
        """Places among the answers are given up one by one; the search itself ends when nobody wants any."""
        request = search.sequences[0].request
        wanted = [place for place in range(request.num_sequences) if place not in search.given_up]
        if sample_index is None or wanted == [sample_index]:
            return self._drop_search(search, FinishReason.ABORT, now)
        if sample_index not in wanted:
            return []
        search.given_up.add(sample_index)
        return [self._without_answer(search, sample_index, FinishReason.ABORT, now)]

    def _drop_search(self, search: BeamGroup, reason: FinishReason, now: Nanos, *, error: str = "") -> list[RequestUpdate]:
        """It ends without answers."""
        self._forget_search(search)
        places = range(search.sequences[0].request.num_sequences)
        return [
            self._without_answer(search, place, reason, now, error=error) for place in places if place not in search.given_up
        ]

    @staticmethod
    def _without_answer(
        search: BeamGroup, place: int, reason: FinishReason, now: Nanos, *, error: str = ""
    ) -> RequestUpdate:
        first = search.sequences[0]
        return RequestUpdate(
            first.request.request_id,
            place,
            finish_reason=reason,
            num_cached_tokens=first.num_cached_tokens,
            error=error,
            times=_times(first, now),
        )

    def _forget_search(self, search: BeamGroup) -> None:
        request_id = search.sequences[0].request.request_id
        for sequence in search.sequences:
            self._scheduler.finish(sequence)
            self._forget_unless_written(sequence)
        del self._requests[request_id], self._searches[request_id]

    # Single sequences

    def _fail(self, sequence: SequenceState, error: str, now: Nanos) -> list[RequestUpdate]:
        search = self._searches.get(sequence.request.request_id)
        if search is not None:  # what its beams are compared by is of no use any more
            return self._drop_search(search, FinishReason.ERROR, now, error=error)
        return [self._finish(sequence, FinishReason.ERROR, now=now, error=error)]

    def _new_sequence(self, request: Request, index: int, now: Nanos) -> SequenceState:
        sampling = request.sampling
        eos = () if sampling.ignore_eos else self._eos_token_ids
        sequence = SequenceState(
            sequence_id=SequenceId(self._next_sequence_id),
            request=request,
            sample_index=index,
            arrived=now,
            eos_token_ids=frozenset(eos),
            stop_token_ids=frozenset((*eos, *sampling.stop_token_ids)),
        )
        self._sequences[sequence.sequence_id] = sequence
        self._next_sequence_id += 1
        return sequence

    def _take_scores(self, sequence: SequenceState, scores: PromptLogprobs) -> list[RequestUpdate]:
        """What of them is news: after a preemption a stretch of the prompt is computed again."""
        news = scores.entries[max(sequence.num_scored_tokens - scores.first_position, 0) :]
        if not news:
            return []
        assert scores.first_position <= sequence.num_scored_tokens, "a stretch of the prompt was not scored"
        sequence.num_scored_tokens += len(news)
        request_id, cached = sequence.request.request_id, sequence.num_cached_tokens
        return [RequestUpdate(request_id, sequence.sample_index, prompt_logprobs=news, num_cached_tokens=cached)]

    def _take_token(self, sequence: SequenceState, sampled: SampledToken, now: Nanos) -> RequestUpdate:
        token_id = sampled.token_id
        sequence.output_token_ids.append(token_id)
        sequence.num_tokens += 1
        if sequence.first_token is None:
            sequence.first_token = now
        logprobs = (sampled.logprobs,) if sampled.logprobs is not None else ()
        if token_id in sequence.stop_token_ids and _may_stop(sequence):
            reason: FinishReason | None = FinishReason.STOP
        elif sequence.num_tokens >= sequence.max_num_tokens:
            reason = FinishReason.LENGTH
        elif sequence.sampling.repetition_detection is not None and is_stuck(sequence):
            reason = FinishReason.REPETITION
        else:
            reason = None
        if reason is not None:
            return self._finish(sequence, reason, now=now, new_token_ids=(token_id,), logprobs=logprobs)
        return RequestUpdate(
            sequence.request.request_id,
            sequence.sample_index,
            (token_id,),
            logprobs,
            num_cached_tokens=sequence.num_cached_tokens,
        )

    def _finish(
        self,
        sequence: SequenceState,
        reason: FinishReason,
        *,
        now: Nanos,
        new_token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] = (),
        error: str = "",
    ) -> RequestUpdate:
        request_id = sequence.request.request_id
        if sequence.request.keeps_kv and reason in (FinishReason.LENGTH, FinishReason.STOP):
            self._lease_prompt(sequence, now)
        self._scheduler.finish(sequence)
        self._forget_unless_written(sequence)
        siblings = self._requests[request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._requests[request_id]
        return RequestUpdate(
            request_id=request_id,
            sample_index=sequence.sample_index,
            new_token_ids=new_token_ids,
            logprobs=logprobs,
            finish_reason=reason,
            stop_token_id=new_token_ids[-1] if reason is FinishReason.STOP else None,
            num_cached_tokens=sequence.num_cached_tokens,
            error=error,
            times=_times(sequence, now),
        )

    def _forget_unless_written(self, sequence: SequenceState) -> None:
        """Who has ended and whose blocks a step or a transfer still writes is remembered until that is over."""
        if sequence.num_steps_in_flight == 0 and not sequence.is_loading:
            del self._sequences[sequence.sequence_id]

    def _lease_prompt(self, sequence: SequenceState, now: Nanos) -> None:
        """Its prompt's blocks outlive it, for another engine to fetch."""
        assert self._connector is not None
        block_ids = self._scheduler.kv.hold_prompt(sequence)
        self._leases.begin(sequence.request.request_id, block_ids, Nanos(now + self._transfer.lease_ns))
        self._connector.offer(sequence.request, block_ids, sequence.num_prompt_tokens)


def _may_stop(sequence: SequenceState) -> bool:
    """Before min_tokens a form may allow nothing but the end."""
    return sequence.num_output_tokens > sequence.sampling.min_tokens or sequence.request.structured_output is not None


def _num_sequences(request: Request) -> int:
    """How many of them run for a request: answers, or beams."""
    search = request.sampling.beam_search
    return request.num_sequences if search is None else search.width


def _times(sequence: SequenceState, now: Nanos) -> SequenceTimes:
    return SequenceTimes(
        arrived=sequence.arrived,
        scheduled=sequence.arrived if sequence.scheduled is None else sequence.scheduled,
        first_token=now if sequence.first_token is None else sequence.first_token,
        finished=now,
    )

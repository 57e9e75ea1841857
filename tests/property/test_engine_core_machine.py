"""The whole mind against a naive model.

The model is what a client may expect: an answer is a function of the prompt alone, ends once and for one reason, and is not
touched by whatever else runs. The worker in between is the simulated one, which fails if a plan ever reads KV that is not
the sequence's own. Small pools, small budgets and shared beginnings make preemption, eviction, copying and waiting common.
"""

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.small_minds import EOS, VOCAB_SIZE, configs, expected_answer, prompts, salts, samplings

from headrace.base.clock import Nanos
from headrace.base.errors import ContextLengthError, InvalidRequestError
from headrace.base.ids import RequestId, SequenceId
from headrace.engine.mind.config import SchedulerConfig, SchedulingPolicy
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import BeamSearch, EarlyStopping, SamplingParams
from headrace.engine.mind.step import NewSequence, StepPlan, StepResult
from headrace.engine.mind.update import FinishReason, RequestUpdate
from headrace.sim.invariants import check_step
from headrace.sim.worker import SimulatedWorker, beam_candidates, choose_any_of, fingerprint


def expected_beams(request: Request) -> list[list[int]]:
    """A beam search as a textbook has it: whole beams in lists, all compared at every length, nothing shared."""
    sampling, search = request.sampling, request.sampling.beam_search
    assert search is not None
    ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else (EOS,))}
    facts = NewSequence(
        SequenceId(0), 0, len(request.prompt_token_ids), request.prompt_token_ids, sampling,
        () if sampling.ignore_eos else (EOS,),
    )  # fmt: skip
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    while True:
        candidates: list[tuple[float, list[int]]] = []
        for score, answer in running:
            state = 0
            for token_id in (*request.prompt_token_ids, *answer):
                state = fingerprint(state, token_id)
            options = beam_candidates(state, facts, len(answer), choose_any_of(VOCAB_SIZE))
            candidates += [
                (score + more, [*answer, token_id]) for token_id, more in zip(options.token_ids, options.scores, strict=True)
            ]
        candidates.sort(key=lambda pair: -pair[0])
        length = len(running[0][1]) + 1
        running = []
        for rank, (score, answer) in enumerate(candidates):
            if length == sampling.max_tokens or (answer[-1] in ends and length > sampling.min_tokens):
                if rank < search.width:
                    ended.append((score / length**search.length_penalty, answer))
            elif len(running) < search.width:
                running.append((score, answer))
        ended.sort(key=lambda pair: -pair[0])
        del ended[search.width :]
        is_full = len(ended) == search.width
        reachable = sampling.max_tokens if search.early_stopping is EarlyStopping.WHEN_HOPELESS else length
        if not running or (
            is_full
            and (
                search.early_stopping is EarlyStopping.WHEN_FULL
                or running[0][0] / reachable**search.length_penalty <= ended[-1][0]
            )
        ):
            return [answer for _, answer in ended]


class EngineCoreMachine(RuleBasedStateMachine):
    fails_sometimes = False

    @initialize(config=configs)
    def build(self, config: SchedulerConfig) -> None:
        self.config = config
        self.core = EngineCore(config, eos_token_ids=(EOS,), identity_digest=b"test")
        self.worker = SimulatedWorker(
            num_blocks=config.num_blocks, block_size=config.block_size, choose=choose_any_of(VOCAB_SIZE)
        )
        self.in_flight: deque[StepPlan] = deque()
        self.requests: dict[RequestId, Request] = {}
        self.answers: dict[tuple[RequestId, int], list[int]] = {}
        self.beams: dict[RequestId, list[list[int]]] = {}
        self.finished: dict[tuple[RequestId, int], FinishReason] = {}
        self.now = 0

    def tick(self) -> Nanos:
        self.now += 1
        return Nanos(self.now)

    @rule(
        prompt=prompts,
        sampling=samplings,
        num_sequences=st.sampled_from([1, 1, 2, 3]),
        priority=st.integers(-1, 1),
        salt=salts,
    )
    def add(self, prompt: tuple[int, ...], sampling: SamplingParams, num_sequences: int, priority: int, salt: str) -> None:
        request = Request(
            request_id=RequestId(f"r{len(self.requests)}"),
            prompt_token_ids=prompt,
            sampling=sampling,
            num_sequences=min(num_sequences, self.config.max_num_seqs),
            priority=priority if self.config.policy is SchedulingPolicy.PRIORITY else 0,
            cache_salt=salt,
        )
        if len(prompt) + sampling.max_tokens > self.config.max_model_len:
            with pytest.raises(ContextLengthError):
                self.core.add_request(request, self.tick())
            return
        self.core.add_request(request, self.tick())
        self.requests[request.request_id] = request

    @rule(
        prompt=prompts,
        max_tokens=st.integers(1, 8),
        width=st.integers(1, 4),
        num_answers=st.integers(1, 4),
        length_penalty=st.sampled_from([0.5, 1.0, 2.0]),
        early_stopping=st.sampled_from(EarlyStopping),
        priority=st.integers(-1, 1),
        ignore_eos=st.booleans(),
        min_tokens=st.sampled_from([0, 0, 2]),
    )
    def add_beam_search(
        self,
        prompt: tuple[int, ...],
        max_tokens: int,
        width: int,
        num_answers: int,
        length_penalty: float,
        early_stopping: EarlyStopping,
        priority: int,
        ignore_eos: bool,
        min_tokens: int,
    ) -> None:
        width = min(width, self.config.max_num_seqs)
        request = Request(
            request_id=RequestId(f"r{len(self.requests)}"),
            prompt_token_ids=prompt,
            sampling=SamplingParams(
                max_tokens=max_tokens,
                ignore_eos=ignore_eos,
                min_tokens=min(min_tokens, max_tokens),
                beam_search=BeamSearch(width=width, length_penalty=length_penalty, early_stopping=early_stopping),
            ),
            num_sequences=min(num_answers, width),
            priority=priority if self.config.policy is SchedulingPolicy.PRIORITY else 0,
        )
        if width * -(-(len(prompt) + max_tokens) // self.config.block_size) > self.config.num_blocks:
            with pytest.raises(InvalidRequestError, match="KV blocks"):
                self.core.add_request(request, self.tick())
            return
        self.core.add_request(request, self.tick())
        self.requests[request.request_id] = request
        self.beams[request.request_id] = expected_beams(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def add_twice(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        if any(key[0] == request_id for key in self.finished):
            return
        with pytest.raises(InvalidRequestError, match="in use"):
            self.core.add_request(self.requests[request_id], self.tick())

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        sample_index = data.draw(st.sampled_from([None, 0, 1]))
        for update in self.core.abort(request_id, self.tick(), sample_index=sample_index):
            assert update.finish_reason is FinishReason.ABORT
            assert sample_index in (None, update.sample_index)
            self.take(update)

    @rule()
    def begin(self) -> None:
        plan = self.core.begin_step(self.tick())
        if plan is not None:
            check_step(plan, self.config)
            self.in_flight.append(plan)
        assert len(self.in_flight) <= self.config.max_steps_in_flight

    @precondition(lambda self: self.in_flight)
    @rule()
    def finish(self) -> None:
        plan = self.in_flight.popleft()
        for update in self.core.finish_step(plan, self.worker.execute(plan), self.tick()):
            self.take(update)

    @precondition(lambda self: self.in_flight and self.fails_sometimes)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """A step in which one sequence's numbers are of no use: its request hears of it, and nobody else."""
        plan = self.in_flight.popleft()
        sick = data.draw(st.sampled_from(plan.scheduled)).sequence_id
        result = self.worker.execute(plan)
        result = StepResult(
            plan.step_id,
            tuple(
                None if entry.sequence_id == sick else token
                for entry, token in zip(plan.scheduled, result.sampled, strict=True)
            ),
            ((sick, "not finite"),),
            candidates=tuple(pair for pair in result.candidates if pair[0] != sick),
        )
        updates = self.core.finish_step(plan, result, self.tick())
        assert len({update.request_id for update in updates if update.finish_reason is FinishReason.ERROR}) <= 1
        for update in updates:
            self.take(update)

    @rule()
    def reset_prefix_cache(self) -> None:
        self.core.reset_prefix_cache()

    def take(self, update: RequestUpdate) -> None:
        key = (update.request_id, update.sample_index)
        assert key not in self.finished, "an answer that has ended was heard of again"
        answer = self.answers.setdefault(key, [])
        answer.extend(update.new_token_ids)
        if update.request_id in self.beams:
            self.take_beam(update, answer)
            return
        expected = expected_answer(self.requests[update.request_id], update.sample_index)
        assert answer == expected[: len(answer)]
        if update.finish_reason is not None:
            self.finished[key] = update.finish_reason
            if update.finish_reason not in (FinishReason.ABORT, FinishReason.ERROR):
                assert answer == expected

    def take_beam(self, update: RequestUpdate, answer: list[int]) -> None:
        """Heard of once, whole."""
        request, best = self.requests[update.request_id], self.beams[update.request_id]
        assert update.finish_reason is not None
        self.finished[(update.request_id, update.sample_index)] = update.finish_reason
        if update.finish_reason is FinishReason.ERROR:
            assert self.fails_sometimes or len(best) < request.num_sequences
        elif update.finish_reason is not FinishReason.ABORT:
            assert answer == best[update.sample_index]

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "core"):
            self.core.check_integrity()

    def teardown(self) -> None:
        """Everything asked ends, each step moves somebody on, and every block comes back."""
        if not hasattr(self, "core"):
            return
        while not self.core.is_idle:
            had_work = self.core.num_steps_in_flight > 0
            self.begin()
            assert had_work or self.in_flight, "nobody advances"
            if self.in_flight:
                self.finish()
            self.core.check_integrity()
        for request in self.requests.values():
            for index in range(request.num_sequences):
                assert (request.request_id, index) in self.finished
        stats = self.core.stats()
        assert stats.num_blocks_in_use == 0
        self.core.reset_prefix_cache()
        assert self.core.stats().num_blocks_cached == 0


class FailingEngineCoreMachine(EngineCoreMachine):
    """The same where numbers are not always usable."""

    fails_sometimes = True


TestEngineCore = EngineCoreMachine.TestCase
TestEngineCore.settings = settings(max_examples=150, stateful_step_count=60)
TestFailingEngineCore = FailingEngineCoreMachine.TestCase
TestFailingEngineCore.settings = settings(max_examples=75, stateful_step_count=60)

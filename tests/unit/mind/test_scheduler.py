"""What a step contains: budgets, chunks, order, preemption and the ways past a blocked head."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError, ContextLengthError, InvalidRequestError, OverloadedError
from headrace.base.ids import RequestId
from headrace.engine.mind.config import SchedulerConfig, SchedulingPolicy
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import SampledToken, StepPlan, StepResult
from headrace.engine.mind.update import FinishReason, RequestUpdate

NOW = Nanos(0)


def request(name: str, num_tokens: int, *, max_tokens: int = 100, first: int = 0, **fields: object) -> Request:
    """A prompt of its own, so that nothing is shared unless `first` is equal."""
    first = first or 1000 * (1 + sum(name.encode()))
    return Request(
        request_id=RequestId(name),
        prompt_token_ids=tuple(range(first, first + num_tokens)),
        sampling=SamplingParams(max_tokens=max_tokens),
        **fields,  # type: ignore[arg-type]
    )


class Engine:
    """A core whose steps are carried out at once; every sampled token is 5 unless told otherwise."""

    def __init__(self, eos_token_ids: tuple[int, ...] = (), **config: object) -> None:
        settings: dict[str, object] = {
            "max_model_len": 400, "num_blocks": 100, "block_size": 4, "max_num_batched_tokens": 64, "max_num_seqs": 8,
            "max_tokens_per_prompt_chunk": 16, "max_steps_in_flight": 1, **config,
        }  # fmt: skip
        self.core = EngineCore(SchedulerConfig(**settings), eos_token_ids=eos_token_ids)  # type: ignore[arg-type]
        self.names: dict[int, str] = {}

    def add(self, *requests: Request) -> None:
        for each in requests:
            first_id = self.core._next_sequence_id
            self.core.add_request(each, NOW)
            for index in range(each.num_sequences):
                suffix = f"#{index}" if each.num_sequences > 1 else ""
                self.names[first_id + index] = f"{each.request_id}{suffix}"

    def begin(self) -> StepPlan:
        plan = self.core.begin_step(NOW)
        assert plan is not None
        return plan

    def finish(self, plan: StepPlan, token: Callable[[str], int] = lambda name: 5) -> list[RequestUpdate]:
        sampled = tuple(
            SampledToken(token(self.names[entry.sequence_id])) if entry.samples else None for entry in plan.scheduled
        )
        updates = self.core.finish_step(plan, StepResult(plan.step_id, sampled), NOW)
        self.core.check_integrity()
        return updates

    def counts(self, plan: StepPlan) -> dict[str, int]:
        return {self.names[entry.sequence_id]: entry.num_tokens for entry in plan.scheduled}

    def step(self) -> dict[str, int]:
        plan = self.begin()
        self.finish(plan)
        return self.counts(plan)

    def running(self) -> list[str]:
        return [self.names[sequence.sequence_id] for sequence in self.core._scheduler.running]


def test_a_long_prompt_alone_takes_the_whole_budget() -> None:
    engine = Engine()
    engine.add(request("long", 150))
    assert [engine.step(), engine.step(), engine.step()] == [{"long": 64}, {"long": 64}, {"long": 22}]


def test_a_long_prompt_beside_others_is_cut_into_chunks_that_let_short_ones_pass() -> None:
    engine = Engine()
    engine.add(request("long", 150), request("short", 10))
    assert engine.step() == {"long": 16, "short": 10}
    assert engine.step() == {"long": 16, "short": 1}, "the short one decodes while the long one is still being read"


def test_many_long_prompts_share_one_chunk_so_that_short_ones_pass_all_of_them() -> None:
    engine = Engine(max_num_batched_tokens=32, max_tokens_per_prompt_chunk=16)
    engine.add(request("long", 40), request("longer", 60), request("longest", 80), request("short", 10))
    assert engine.step() == {"long": 16, "short": 10}
    assert engine.step() == {"long": 16, "short": 1}
    assert engine.step() == {"long": 8, "short": 1, "longer": 16}, "what is left of the first is short now"


def test_a_long_prompt_that_goes_first_leaves_a_token_of_the_budget_for_each_one_behind_it() -> None:
    engine = Engine(max_num_batched_tokens=10, max_tokens_per_prompt_chunk=400, policy=SchedulingPolicy.PRIORITY)
    fill(engine, "a", "b", "c", num_tokens=3)
    engine.add(request("first", 100, priority=-1))
    engine.step()
    assert engine.step() == {"first": 7, "a": 1, "b": 1, "c": 1}


BESIDE_STREAMS: dict[str, Any] = {
    "max_num_batched_tokens": 40, "max_tokens_per_prompt_chunk": 40, "min_prompt_tokens_per_step": 10,
}  # fmt: skip


def streaming(number: int) -> Engine:
    """As many streams, each of which gets its next token."""
    engine = Engine(**BESIDE_STREAMS)
    fill(engine, *(f"stream {index}" for index in range(number)), num_tokens=3)
    return engine


@pytest.mark.parametrize(("num_streams", "expected"), [(0, 40), (1, 39), (2, 20), (3, 13), (4, 10), (6, 10)])
def test_the_more_streams_wait_for_a_step_the_fewer_tokens_of_prompts_it_has_but_never_too_few(
    num_streams: int, expected: int
) -> None:
    engine = streaming(num_streams)
    engine.add(request("long", 100))
    step = engine.step()
    assert step.pop("long") == expected
    assert list(step.values()) == [1] * num_streams


def test_prompts_begun_beside_streams_share_what_one_alone_would_have() -> None:
    engine = streaming(2)
    engine.add(*(request(name, 8) for name in "abc"))
    step = engine.step()
    assert [step[name] for name in "abc"] == [8, 8, 4]
    assert engine.step()["c"] == 4


def test_long_prompts_beside_streams_leave_short_ones_half_of_what_prompts_have_but_no_more_than_they_want() -> None:
    engine = streaming(4)
    engine.add(request("long", 100), request("longer", 100))
    assert engine.step()["long"] == 10
    engine.add(request("short", 3))
    step = engine.step()
    assert (step["long"], step["short"]) == (7, 3)
    engine.add(*(request(name, 4) for name in "abc"))
    step = engine.step()
    assert (step["long"], step["a"], step["b"]) == (5, 4, 1)


@pytest.mark.parametrize(("least", "words"), [(-1, "must not be negative"), (41, "exceeds max_num_batched_tokens")])
def test_what_prompts_have_at_least_is_a_part_of_the_budget(least: int, words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"min_prompt_tokens_per_step.*{words}"):
        Engine(**{**BESIDE_STREAMS, "min_prompt_tokens_per_step": least})


def test_a_sequence_that_reaches_its_last_token_samples_and_one_that_does_not_does_not() -> None:
    engine = Engine()
    engine.add(request("long", 100))
    first, second = engine.begin(), None
    assert not first.scheduled[0].samples
    assert engine.finish(first) == []
    second = engine.begin()
    assert second.scheduled[0].samples
    (update,) = engine.finish(second)
    assert update.new_token_ids == (5,)


def test_first_come_first_served_ignores_nothing_but_refuses_priorities() -> None:
    engine = Engine()
    with pytest.raises(InvalidRequestError, match="--scheduling-policy priority") as caught:
        engine.add(request("urgent", 5, priority=-1))
    assert caught.value.param == "priority"


def test_under_the_priority_policy_lower_numbers_start_first() -> None:
    engine = Engine(policy=SchedulingPolicy.PRIORITY, max_num_seqs=2)
    engine.add(request("late", 5, priority=3), request("soon", 5, priority=-2), request("middle", 5))
    engine.step()
    assert engine.running() == ["soon", "middle"]


def fill(engine: Engine, *names: str, num_tokens: int, max_tokens: int = 100) -> None:
    for name in names:
        engine.add(request(name, num_tokens, max_tokens=max_tokens))
    while len(engine.running()) < len(names):
        engine.step()


def test_when_blocks_run_out_the_latest_arrival_is_preempted_and_the_earliest_goes_on() -> None:
    engine = Engine(num_blocks=10, max_model_len=40, enable_prefix_caching=False)
    fill(engine, "old", "young", num_tokens=12, max_tokens=28)
    while engine.core.stats().num_preemptions == 0:
        engine.step()
    assert engine.running() == ["old"]
    assert engine.core.stats().num_waiting == 1


def test_preempted_work_comes_back_before_new_work_of_equal_priority() -> None:
    engine = Engine(num_blocks=10, max_model_len=40, enable_prefix_caching=False)
    fill(engine, "old", "young", num_tokens=12, max_tokens=28)
    while engine.core.stats().num_preemptions == 0:
        engine.step()
    engine.add(request("new", 4, max_tokens=2))
    assert [engine.names[s.sequence_id] for s in engine.core._scheduler.waiting] == ["young", "new"]


def test_preempted_work_keeps_its_tokens_and_is_computed_again_from_all_of_them() -> None:
    engine = Engine(num_blocks=10, max_model_len=40, enable_prefix_caching=False)
    fill(engine, "old", "young", num_tokens=12, max_tokens=28)
    while engine.core.stats().num_preemptions == 0:
        engine.step()
    engine.core.abort(RequestId("old"), NOW)
    plan = engine.begin()
    (new,) = plan.new_sequences
    assert new.num_prompt_tokens == 12
    assert new.token_ids[12:] == (5,) * (len(new.token_ids) - 12)
    assert len(new.token_ids) > 13, "it had generated before it was preempted"


def test_nobody_is_preempted_while_a_step_of_theirs_is_in_flight() -> None:
    engine = Engine(num_blocks=10, max_model_len=40, enable_prefix_caching=False, max_steps_in_flight=2)
    fill(engine, "old", "young", num_tokens=16, max_tokens=20)
    in_flight = []
    while engine.core.stats().num_preemptions == 0:
        plan = engine.core.begin_step(NOW)
        if plan is not None:
            in_flight.append(plan)
        busy = {entry.sequence_id for each in in_flight for entry in each.scheduled}
        for sequence in engine.core._scheduler.waiting:
            assert sequence.sequence_id not in busy
        if plan is None or len(in_flight) == 2:
            engine.finish(in_flight.pop(0))


def test_nobody_is_admitted_into_the_blocks_that_the_running_are_about_to_grow_into() -> None:
    engine = Engine(num_blocks=10, max_model_len=40, enable_prefix_caching=False)
    fill(engine, "running", num_tokens=16, max_tokens=20)
    num_left = 10 - engine.core.stats().num_blocks_in_use
    engine.add(request("exact fit", 4 * num_left, max_tokens=5))
    engine.step()
    assert engine.running() == ["running"]


def test_a_head_that_waits_for_blocks_lets_those_pass_that_fit() -> None:
    engine = Engine(num_blocks=20, max_model_len=80, enable_prefix_caching=False)
    fill(engine, "running", num_tokens=40, max_tokens=30)
    engine.add(request("huge", 60, max_tokens=5), request("small", 4, max_tokens=5))
    engine.step()
    assert engine.running() == ["running", "small"]


def test_a_head_is_passed_by_at_most_max_bypasses_others_and_then_all_wait_for_it() -> None:
    engine = Engine(num_blocks=30, max_model_len=120, enable_prefix_caching=False, max_bypasses=3)
    fill(engine, "running", num_tokens=60, max_tokens=60)
    engine.add(request("huge", 90, max_tokens=5))
    for index in range(10):
        engine.add(request(f"small{index}", 4, max_tokens=2, first=5000 + 10 * index))
    started: list[str] = []
    while "huge" not in started:
        started += [name for name in engine.step() if name not in started]
    assert started[:5] == ["running", "small0", "small1", "small2", "huge"]


def test_a_prompt_that_another_is_computing_waits_and_then_finds_it() -> None:
    engine = Engine(max_num_batched_tokens=64, max_tokens_per_prompt_chunk=16)
    engine.add(request("author", 33, first=1), request("reader", 33, first=1), request("other", 8))
    assert engine.step() == {"author": 16, "other": 8}
    assert engine.step() == {"author": 16, "other": 1}
    third = engine.begin()
    assert engine.counts(third)["reader"] == 1, "all full blocks of the prompt were found"
    assert engine.core.stats().prefix_cache_hits == 32


def test_if_the_author_of_a_prefix_is_aborted_the_reader_computes_it_itself() -> None:
    engine = Engine()
    engine.add(request("author", 33, first=1), request("reader", 33, first=1))
    engine.step()
    engine.core.abort(RequestId("author"), NOW)
    assert engine.step() == {"reader": 17}, "what the author had finished is found, the rest computed"


@pytest.mark.parametrize("change", [{"cache_salt": "other"}, {"adapter": "lora"}])
def test_another_salt_or_adapter_finds_nothing(change: dict[str, str]) -> None:
    engine = Engine()
    engine.add(request("first", 33, first=1, max_tokens=1))
    engine.step()
    engine.add(request("second", 33, first=1, **change))  # type: ignore[arg-type]
    engine.step()
    assert engine.core.stats().prefix_cache_hits == 0


def test_continuations_of_one_prompt_share_its_blocks_and_copy_the_one_they_write() -> None:
    engine = Engine(max_num_seqs=8)
    engine.add(request("choices", 10, num_sequences=3))
    engine.step()
    second = engine.begin()
    assert engine.counts(second) == {"choices#0": 1, "choices#1": 1, "choices#2": 1}, "the prompt is computed once"
    assert len(second.block_copies) == 2
    tables = {new.sequence_id: None for new in second.new_sequences}
    shared = [entry.block_ids[:2] for entry in second.scheduled if entry.sequence_id in tables]
    assert shared[0] == shared[1], "the full blocks are the same"
    lasts = [entry.block_ids[2] for entry in second.scheduled if entry.sequence_id in tables]
    assert len({*lasts, second.block_copies[0][0]}) == 3, "the partial block is each one's own"


def test_a_token_that_a_step_in_flight_samples_can_be_planned_for() -> None:
    engine = Engine(max_steps_in_flight=2)
    engine.add(request("one", 8))
    first, second = engine.begin(), engine.begin()
    assert (second.scheduled[0].num_computed_tokens, second.scheduled[0].num_tokens) == (8, 1)
    assert engine.core.begin_step(NOW) is None, "two are in flight"
    engine.finish(first)
    engine.finish(second)


def test_nothing_is_planned_beyond_the_last_token_that_may_be_generated() -> None:
    engine = Engine(max_steps_in_flight=2)
    engine.add(request("one", 8, max_tokens=1))
    plan = engine.begin()
    assert engine.core.begin_step(NOW) is None
    (update,) = engine.finish(plan)
    assert update.finish_reason is FinishReason.LENGTH


def test_blocks_of_a_stopped_sequence_come_back_when_its_last_step_is_over() -> None:
    engine = Engine(max_steps_in_flight=2, eos_token_ids=(5,), enable_prefix_caching=False)
    engine.add(request("one", 8))
    first, second = engine.begin(), engine.begin()
    (update,) = engine.finish(first)
    assert update.finish_reason is FinishReason.STOP
    assert engine.core.stats().num_blocks_in_use == 3, "the second step still writes"
    assert engine.finish(second) == []
    assert engine.core.stats().num_blocks_in_use == 0
    assert engine.core.is_idle


def test_unusable_numbers_end_one_sequence_and_not_the_others() -> None:
    engine = Engine()
    engine.add(request("sick", 4), request("well", 4))
    plan = engine.begin()
    sick, _ = plan.scheduled
    result = StepResult(plan.step_id, (None, SampledToken(5)), ((sick.sequence_id, "the logits are not finite"),))
    ended, lives = engine.core.finish_step(plan, result, NOW)
    assert (ended.finish_reason, ended.error) == (FinishReason.ERROR, "the logits are not finite")
    assert (lives.finish_reason, lives.new_token_ids) == (None, (5,))
    assert engine.running() == ["well"]


def test_what_a_sequence_without_usable_numbers_computed_is_found_by_nobody() -> None:
    """Neither the blocks of the step that failed nor those of the steps before."""
    engine = Engine(max_num_batched_tokens=8, max_tokens_per_prompt_chunk=8)
    engine.add(request("sick", 14, first=500))
    engine.step()
    plan = engine.begin()
    (sick,) = plan.scheduled
    result = StepResult(plan.step_id, (None,), ((sick.sequence_id, "the logits are not finite"),))
    engine.core.finish_step(plan, result, NOW)
    engine.core.check_integrity()
    assert engine.core.stats().num_blocks_cached == 0
    engine.add(request("next", 14, first=500))
    assert engine.step() == {"next": 8}, "it computes everything itself"


def test_aborting_a_request_frees_its_blocks_and_reports_each_continuation() -> None:
    engine = Engine(enable_prefix_caching=False)
    engine.add(request("choices", 10, num_sequences=2))
    engine.step()
    updates = engine.core.abort(RequestId("choices"), NOW)
    assert [update.finish_reason for update in updates] == [FinishReason.ABORT, FinishReason.ABORT]
    assert engine.core.stats().num_blocks_in_use == 0
    assert engine.core.abort(RequestId("choices"), NOW) == [], "a second abort has crossed the first on the way"


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (request("r", 390, max_tokens=11), ContextLengthError, "make 401, but max_model_len is 400"),
        (request("r", 0), InvalidRequestError, "no tokens"),
        (request("r", 5, num_sequences=9), InvalidRequestError, "n must be between 1 and max_num_seqs"),
    ],
)
def test_a_request_that_cannot_run_is_refused_and_changes_nothing(
    bad: Request, error: type[Exception], message: str
) -> None:
    engine = Engine()
    with pytest.raises(error, match=message):
        engine.add(bad)
    assert engine.core.is_idle
    engine.core.check_integrity()


def test_a_full_queue_refuses_as_overload() -> None:
    engine = Engine(max_num_queued_requests=2)
    engine.add(request("a", 4), request("b", 4))
    with pytest.raises(OverloadedError, match="max_num_queued_requests is 2"):
        engine.add(request("c", 4))


def test_a_reset_prefix_cache_is_not_found_but_running_work_keeps_its_blocks() -> None:
    engine = Engine()
    engine.add(request("first", 33, first=1))
    while not engine.core.stats().prefix_cache_queries:
        engine.step()
    engine.core.reset_prefix_cache()
    engine.core.check_integrity()
    engine.add(request("second", 33, first=1))
    for _ in range(5):
        engine.step()
    assert engine.core.stats().prefix_cache_hits == 0


def test_least_recently_used_prefixes_are_evicted_first_and_their_ends_before_their_beginnings() -> None:
    engine = Engine(num_blocks=10, max_model_len=40)
    for name, first in (("older", 1), ("newer", 100)):
        engine.add(request(name, 13, first=first, max_tokens=1))
        engine.step()
    engine.add(request("filler", 20, first=200, max_tokens=1))  # needs one block more than is free
    engine.step()
    # Looking for the newer takes one more block, the next of the older's: two of its three are gone from its end.
    for name, first, hits in (("newer", 100, 12), ("older", 1, 4)):
        before = engine.core.stats().prefix_cache_hits
        engine.add(request(name, 13, first=first, max_tokens=1))
        engine.step()
        assert engine.core.stats().prefix_cache_hits - before == hits, name

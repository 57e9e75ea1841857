"""Steps that are taken together come to what they come to one by one: every plan, every token and every moment is equal.

The same arrivals and disconnects run twice, step by step and with runs; what the runs say of themselves is written out as
the steps that they stand for, and both logs must be the same bytes.
"""

from collections.abc import Sequence
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.clock import ManualClock, Nanos
from headrace.base.ids import RequestId
from headrace.base.rng import stream
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.decode_run import DecodeRun
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import StepPlan
from headrace.engine.mind.update import RequestUpdate
from headrace.sim.answers import AnswerWorker
from headrace.sim.events import EventQueue, Rank
from headrace.sim.executor import SimExecutor
from headrace.sim.replica import Observer, SimReplica
from headrace.sim.step_cost import LinearStepCost, SlowedStepCost, StepCost, decode_run_durations

VOCAB_SIZE = 997
EOS = 7


class Log(Observer):
    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.looks: list[bytes] = []
        """What the engine said of itself in the middle of things, when somebody looked and changed nothing."""
        self.num_steps_in_runs = 0

    def planned(self, now: Nanos, plan: StepPlan) -> None:
        self.lines.append(msgspec.msgpack.encode(("plan", now, plan)))

    def updated(self, now: Nanos, updates: list[RequestUpdate]) -> None:
        self.lines.append(msgspec.msgpack.encode(("updates", now, updates)))

    def ran(self, run: DecodeRun, ends: Sequence[int]) -> None:
        self.num_steps_in_runs += run.num_steps
        tokens = [list(sequence.output_token_ids[-run.num_steps :]) for sequence in run.sequences]
        for index, (plan, now) in enumerate(zip(run.plans(0), ends, strict=True)):
            updates = [
                RequestUpdate(
                    sequence.request.request_id,
                    sequence.sample_index,
                    (tokens[place][index],),
                    num_cached_tokens=sequence.num_cached_tokens,
                )
                for place, sequence in enumerate(run.sequences)
            ]
            self.updated(Nanos(now), updates)
            self.planned(Nanos(now), plan)


def rehearse(seed: int, config: SchedulerConfig, cost: StepCost, *, takes_runs: bool) -> Log:
    rng = stream(seed, "messages")
    clock, log = ManualClock(), Log()
    events = EventQueue(clock)
    core = EngineCore(config, eos_token_ids=(EOS,), identity_digest=b"test")
    slowed = SlowedStepCost(cost)
    executor = SimExecutor(worker=AnswerWorker(VOCAB_SIZE), cost=slowed, clock=clock, events=events)
    replica = SimReplica(core=core, executor=executor, clock=clock, events=events, observer=log, takes_runs=takes_runs)

    def look() -> None:
        log.looks.append(msgspec.msgpack.encode(replica.stats()))

    def slow_down(percent: int) -> None:
        slowed.slowdown_percent = percent

    beginning = [rng.randrange(VOCAB_SIZE) for _ in range(100)]
    now = 0
    for index in range(rng.randrange(1, 14)):
        now += rng.choice([0, 1, 1_000, 20_000, 100_000])
        prompt = (*beginning[: rng.randrange(60)], *(rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 30))))
        request = Request(
            request_id=RequestId(f"r{index}"),
            prompt_token_ids=prompt,
            sampling=SamplingParams(max_tokens=rng.randrange(1, 120), seed=index, ignore_eos=rng.random() < 0.85),
            num_sequences=rng.choice([1, 1, 1, min(2, config.max_num_seqs)]),
        )
        events.schedule(Nanos(now), Rank.MESSAGE, partial(replica.receive, request))
        if rng.random() < 0.15:
            gone = Nanos(now + rng.randrange(200_000))
            events.schedule(gone, Rank.MESSAGE, partial(replica.abort, request.request_id))
        if rng.random() < 0.2:
            looked = Nanos(now + rng.randrange(200_000))
            events.schedule(looked, Rank.MESSAGE, replica.catch_up)
        if rng.random() < 0.1:
            change = partial(replica.change_cost, partial(slow_down, rng.choice([50, 100, 333])))
            events.schedule(Nanos(now + rng.randrange(200_000)), Rank.MESSAGE, change)
        for moment in [now + rng.randrange(200_000) for _ in range(rng.randrange(4))]:
            events.schedule(Nanos(moment), Rank.MESSAGE, look)
    while events:
        events.run_next()
        core.check_integrity()
    assert core.is_idle
    log.lines.append(msgspec.msgpack.encode(core.stats()))
    return log


configs = st.builds(
    SchedulerConfig,
    max_model_len=st.just(256),
    num_blocks=st.sampled_from([64, 80, 400]),
    block_size=st.just(4),
    max_num_batched_tokens=st.sampled_from([8, 64, 256]),
    max_num_seqs=st.sampled_from([1, 3, 8]),
    max_tokens_per_prompt_chunk=st.sampled_from([3, 64]),
    min_prompt_tokens_per_step=st.sampled_from([0, 4]),
    max_bypasses=st.sampled_from([0, 5]),
    enable_prefix_caching=st.booleans(),
    max_steps_in_flight=st.sampled_from([1, 2, 3]),
)
costs = st.builds(
    LinearStepCost,
    fixed_ns=st.sampled_from([1, 1_000]),
    per_token_ns=st.sampled_from([1, 100]),
    per_context_token_ns=st.sampled_from([0, 3]),
)


def assert_equal(one: Log, other: Log) -> None:
    """Shows the first lines that differ: to compare logs of thousands of lines with one another takes minutes."""
    for index, (left, right) in enumerate(zip(one.lines, other.lines, strict=False)):
        assert left == right, f"line {index}: {msgspec.msgpack.decode(left)} is not {msgspec.msgpack.decode(right)}"
    assert len(one.lines) == len(other.lines)
    assert one.looks == other.looks


@settings(max_examples=150)
@given(seed=st.integers(0, 1 << 32), config=configs, cost=costs)
def test_steps_taken_together_leave_the_log_of_steps_taken_one_by_one(
    seed: int, config: SchedulerConfig, cost: LinearStepCost
) -> None:
    one_by_one = rehearse(seed, config, cost, takes_runs=False)
    together = rehearse(seed, config, cost, takes_runs=True)
    assert_equal(together, one_by_one)


@settings(max_examples=20)
@given(seed=st.integers(0, 1 << 32), config=configs, cost=costs)
def test_a_cost_that_knows_no_runs_is_asked_step_by_step(seed: int, config: SchedulerConfig, cost: LinearStepCost) -> None:
    def plain(plan: StepPlan) -> Nanos:
        return cost(plan)

    assert_equal(rehearse(seed, config, plain, takes_runs=True), rehearse(seed, config, cost, takes_runs=True))


def test_most_decode_steps_are_taken_together() -> None:
    config = SchedulerConfig(max_model_len=256, num_blocks=400, block_size=4)
    logs = [rehearse(seed, config, LinearStepCost(fixed_ns=1_000, per_token_ns=1), takes_runs=True) for seed in range(30)]
    num_plans = sum(line.startswith(msgspec.msgpack.encode(("plan",))[:5]) for log in logs for line in log.lines)
    assert sum(log.num_steps_in_runs for log in logs) > num_plans / 3


@pytest.mark.parametrize("num_steps", [1, 2, 9])
def test_the_stated_cost_of_a_run_is_that_of_its_steps(num_steps: int) -> None:
    cost = LinearStepCost()
    starts = [5, 17, 3]

    def plain(plan: StepPlan) -> Nanos:
        return cost(plan)

    assert list(cost.decode_run(starts, num_steps)) == list(decode_run_durations(plain, starts, num_steps))

"""The front end works on one thing at a time, so it saturates."""

from array import array
from itertools import accumulate, pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError
from headrace.base.ids import RequestId
from headrace.engine.mind.config import SchedulerConfig
from headrace.measure.report.record import RunFacts
from headrace.measure.workload.request import Segment, TokenPrompt, Workload, WorkloadRequest
from headrace.router.mind.endpoint import EndpointRole
from headrace.sim.cost_model import EngineModel, GpuDeployment
from headrace.sim.fleet import Fleet, Rehearsal
from headrace.sim.fleet_spec import FleetSpec, PoolSpec
from headrace.sim.front_end import NO_FRONT_END, FrontEnd, FrontEndCost
from headrace.sim.replica_host import Generation


def test_a_front_end_that_costs_nothing_delays_nothing() -> None:
    front_end = FrontEnd(FrontEndCost())
    assert front_end.accept(Nanos(5), 1000) == 5
    assert front_end.deliver(Nanos(7)) == 7


def test_chunks_of_one_step_leave_one_after_another() -> None:
    front_end = FrontEnd(FrontEndCost(chunk_us=2.0, latency_us=10.0))
    assert [front_end.deliver(Nanos(0)) for _ in range(3)] == [12_000, 14_000, 16_000]
    assert front_end.deliver(Nanos(1_000_000)) == 1_012_000


def test_a_long_prompt_keeps_others_chunks_waiting() -> None:
    front_end = FrontEnd(FrontEndCost(request_us=1.0, prompt_token_us=0.5, chunk_us=1.0))
    assert front_end.accept(Nanos(0), 100) == 51_000
    assert front_end.deliver(Nanos(10_000)) == 52_000


def test_what_a_front_end_costs_is_never_negative() -> None:
    with pytest.raises(ConfigurationError, match="latency_us must not be negative, not -1"):
        FrontEndCost(latency_us=-1.0)
    with pytest.raises(ConfigurationError, match="first_chunk_tokens must be at least 1, not 0"):
        FrontEndCost(first_chunk_tokens=0)


def first_token_and_gaps(first_chunk_tokens: int, moments: list[int], *, at_once: int = 0) -> tuple[int, list[int]]:
    """Of a generation whose tokens are computed at `moments`, the last `at_once` of them in one run."""
    seen = Generation(RequestId("a"), 1, first_chunk_tokens=first_chunk_tokens)
    alone = len(moments) - at_once
    for moment in moments[:alone]:
        seen.note_token(moment)
    if at_once:
        ends = moments[alone:]
        seen.note_run(ends, array("q", [after - before for before, after in pairwise(ends)]))
    seen.end()
    return seen.first_token, list(seen.gaps)


def test_tokens_of_a_first_chunk_are_seen_together_when_its_last_is_there() -> None:
    assert first_token_and_gaps(1, [10, 20, 30, 40]) == (10, [10, 10, 10])
    assert first_token_and_gaps(3, [10, 20, 30, 40]) == (30, [0, 0, 10])
    assert first_token_and_gaps(9, [10, 20, 30, 40]) == (40, [0, 0, 0]), "an answer that ends before goes as it is"


@given(
    first_chunk_tokens=st.integers(1, 12),
    steps=st.lists(st.integers(1, 50), min_size=1, max_size=20),
    at_once=st.integers(0, 19),
)
def test_a_first_chunk_moves_no_token_but_its_own_and_a_run_changes_nothing(
    first_chunk_tokens: int, steps: list[int], at_once: int
) -> None:
    moments = list(accumulate(steps))
    first, gaps = first_token_and_gaps(first_chunk_tokens, moments)
    assert len(gaps) == len(moments) - 1
    assert first + sum(gaps) == moments[-1]
    assert first == moments[min(first_chunk_tokens, len(moments)) - 1]
    at_once = min(at_once, len(moments) - 1)
    assert first_token_and_gaps(first_chunk_tokens, moments, at_once=at_once) == (first, gaps)


def test_where_chunks_cost_nothing_a_run_is_late_by_the_latency_alone() -> None:
    front_end = FrontEnd(FrontEndCost(prompt_token_us=1.0, latency_us=5.0))
    assert front_end.delay_of_run(0) == 5_000
    front_end.accept(Nanos(0), 10)
    assert front_end.delay_of_run(9_999) is None, "the prompt is still being read"
    assert front_end.delay_of_run(10_000) == 5_000
    assert FrontEnd(FrontEndCost(chunk_us=1.0)).delay_of_run(0) is None


def test_deployments_of_a_backend_show_what_stands_before_them() -> None:
    scheduler = SchedulerConfig(max_model_len=2048, num_blocks=1000)
    gpu = GpuDeployment(device="h100_sxm", model="llama-3.1-8b")
    alone = PoolSpec(num_replicas=1, scheduler=scheduler, gpu=gpu)
    like = PoolSpec(num_replicas=1, scheduler=scheduler, gpu=msgspec.structs.replace(gpu, backend="vllm"))
    stated = msgspec.structs.replace(like, front_end=FrontEndCost(latency_us=7.0))
    assert alone.replica.entrance == FrontEndCost()
    assert like.replica.entrance.latency_us > 0 and like.replica.entrance.prompt_token_us > 0
    assert stated.replica.entrance == FrontEndCost(latency_us=7.0)
    with pytest.raises(ConfigurationError, match="front_end stands in the file of its engine"):
        PoolSpec(num_replicas=1, scheduler=scheduler, engine=EngineModel(), front_end=FrontEndCost(latency_us=7.0))


SCHEDULER = SchedulerConfig(max_model_len=4096, num_blocks=4_000)


def on(backend: str, role: EndpointRole, **fields: object) -> PoolSpec:
    gpu = GpuDeployment(device="h100_sxm", model="llama-3.1-8b", backend=backend)
    return PoolSpec(num_replicas=1, scheduler=SCHEDULER, gpu=gpu, role=role, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["vllm", "sglang", "trtllm"])
def test_of_a_disaggregated_fleet_all_stands_before_who_answers_unless_a_pool_says_so(backend: str) -> None:
    assert on(backend, EndpointRole.PREFILL).entrance == NO_FRONT_END, "else it would count twice"
    answers = on(backend, EndpointRole.DECODE).entrance
    assert 10_000 < answers.latency_us < 40_000 and 10 < answers.first_chunk_tokens < 40
    assert on(backend, EndpointRole.BOTH).entrance == on(backend, EndpointRole.BOTH).replica.entrance != answers
    stated = FrontEndCost(latency_us=5.0)
    for role in EndpointRole:
        assert on(backend, role, front_end=stated).entrance == stated
        assert on("", role).entrance == NO_FRONT_END, "kernels alone"


def test_a_first_token_after_a_handover_is_later_by_the_latency_and_a_chunk_of_steps_on_a_named_backend() -> None:
    one = WorkloadRequest(request_id="r", prompt=TokenPrompt((Segment("p", 1_000),)), num_output_tokens=60)
    asked = Workload(name="one", requests=(one,), seed=0, vocab_size=100)
    found = {}
    for backend in ("", "vllm"):
        pools = {role: on(backend, EndpointRole(role)) for role in ("prefill", "decode")}
        outcome = Fleet(FleetSpec(pools=pools), asked, Rehearsal()).run(RunFacts(source="simulated", duration_ns=Nanos(0)))
        (found[backend],) = outcome.run.records
    entrance = on("vllm", EndpointRole.DECODE).entrance
    later = found["vllm"].first_chunk_ns - found[""].first_chunk_ns  # type: ignore[operator]
    steps = (entrance.first_chunk_tokens - 1) * sum(found[""].gaps_ns) / len(found[""].gaps_ns)
    assert later == pytest.approx(entrance.latency_us * 1e3 + steps, rel=0.2), "steps deviate from the kernels, too"


@pytest.mark.parametrize("first_chunk_tokens", [1, 2, 7, 100])
@pytest.mark.parametrize("is_apart", [False, True])
def test_in_a_fleet_too_a_first_chunk_comes_with_its_last_token_and_moves_no_other(
    first_chunk_tokens: int, is_apart: bool
) -> None:
    """Whoever answers, and the end of the answer is where it was."""
    one = WorkloadRequest(request_id="r", prompt=TokenPrompt((Segment("p", 1_000),)), num_output_tokens=30)
    asked = Workload(name="one", requests=(one,), seed=0, vocab_size=100)
    records = []
    for count in (1, first_chunk_tokens):
        front_end = FrontEndCost(latency_us=1.0, first_chunk_tokens=count)
        answers = PoolSpec(num_replicas=1, scheduler=SCHEDULER, front_end=front_end)
        pools = {"main": answers}
        if is_apart:
            pools["main"] = msgspec.structs.replace(answers, role=EndpointRole.DECODE)
            pools["prefill"] = PoolSpec(num_replicas=1, scheduler=SCHEDULER, role=EndpointRole.PREFILL)
        outcome = Fleet(FleetSpec(pools=pools), asked, Rehearsal()).run(RunFacts(source="simulated", duration_ns=Nanos(0)))
        records.append(outcome.run.records[0])
    plain, late = records
    assert plain.first_chunk_ns is not None and late.first_chunk_ns is not None
    assert late.first_chunk_ns == plain.first_chunk_ns + sum(plain.gaps_ns[: first_chunk_tokens - 1])
    assert late.finished_ns == plain.finished_ns
    assert late.first_chunk_ns + sum(late.gaps_ns) == plain.first_chunk_ns + sum(plain.gaps_ns)

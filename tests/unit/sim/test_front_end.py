"""The front end works on one thing at a time, so it saturates."""

from headrace.base.clock import Nanos
from headrace.sim.front_end import FrontEnd, FrontEndCost


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

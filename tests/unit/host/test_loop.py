"""The order of a turn, who is told what, and how the loop ends."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S
from tests.unit.host.fakes import FakeCore, ManualExecutor, SteppingClock, make_request

from headrace.base.errors import OverloadedError
from headrace.base.ids import RequestId
from headrace.engine.host.connection import Connection, client_end, engine_end
from headrace.engine.host.loop import EXIT_FAILED, EXIT_OK, EngineLoop
from headrace.engine.host.messages import (
    Abort,
    AddRequest,
    ClientMessage,
    EngineFailed,
    EngineMessage,
    Ping,
    RequestRefused,
    ResetPrefixCache,
    Shutdown,
    Stats,
    Updates,
)
from headrace.engine.host.recording import Aborted, Added, Event, Finished, Planned
from headrace.engine.mind.update import FinishReason


class Stage:
    """A loop in a thread of its own, with both ends of the line."""

    def __init__(self, folder: Path, *, max_steps_in_flight: int = 1) -> None:
        endpoint = f"ipc://{folder}/engine.sock"
        self.client: Connection[ClientMessage, EngineMessage] = client_end(endpoint)
        self.line: Connection[EngineMessage, ClientMessage] = engine_end(endpoint)
        self.core = FakeCore(max_steps_in_flight=max_steps_in_flight)
        self.executor = ManualExecutor()
        self.events: list[Event] = []
        self.clock = SteppingClock()
        self.num_rests = 0
        self.loop = EngineLoop(
            core=self.core,
            executor=self.executor,
            connection=self.line,
            clock=self.clock,
            recorder=self,
            on_rest=self._rest,
        )
        self.exit_status: int | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.exit_status = self.loop.run()

    def _rest(self) -> None:
        self.num_rests += 1

    def start(self) -> None:
        # The line is up once something has crossed it; only then may the client send.
        self.line.send(Stats())
        assert isinstance(self.next_message(), Stats)
        self.thread.start()

    def send(self, *messages: ClientMessage) -> None:
        for message in messages:
            self.client.send(message)

    def next_message(self) -> EngineMessage:
        assert self.client.socket.poll(PATIENCE_S * 1000), "the loop said nothing"
        message = self.client.receive()
        assert message is not None
        return message

    def next_updates(self) -> Updates:
        message = self.next_message()
        assert isinstance(message, Updates), message
        return message

    def settle(self) -> None:
        """Returns when the loop has taken in everything sent before; what it says meanwhile is not looked at."""
        self.send(Ping())
        while not isinstance(self.next_message(), Stats):
            pass

    def stop(self) -> None:
        if self.thread.is_alive():
            self.send(Shutdown())
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()

    def close(self) -> None:
        self.stop()
        self.line.close()
        self.client.close()

    # As a recorder

    def write(self, event: Event) -> None:
        self.events.append(event)

    def flush(self) -> None:
        pass


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    stage.start()
    yield stage
    stage.close()


def test_a_request_is_stepped_until_it_ends(stage: Stage) -> None:
    stage.send(AddRequest(make_request(max_tokens=2)))
    stage.settle()
    stage.executor.complete_one()
    (first,) = stage.next_updates().updates
    stage.executor.complete_one()
    (second,) = stage.next_updates().updates
    assert first.finish_reason is None
    assert second.finish_reason is FinishReason.LENGTH
    stage.settle()
    assert not stage.executor.submitted


def test_every_event_of_a_turn_carries_its_one_time(stage: Stage) -> None:
    stage.send(AddRequest(make_request("a")), AddRequest(make_request("b")))
    stage.settle()
    stage.send(AddRequest(make_request("c")), Abort((RequestId("c"),)))  # the step in flight is "a"'s in any case
    stage.settle()
    stage.executor.complete_one()
    stage.next_updates()
    stage.stop()
    times = [(type(event), event.now) for event in stage.events]
    added_or_aborted_then_finished_then_planned = {Added: 0, Aborted: 0, Finished: 1, Planned: 2}
    for (kind, now), (next_kind, next_now) in itertools.pairwise(times):
        assert now <= next_now, "time went backwards"
        if now == next_now:
            ranks = added_or_aborted_then_finished_then_planned
            assert ranks[kind] <= ranks[next_kind], "the order within a turn"
    assert {now for _, _, now in stage.core.calls} == {now for _, now in times}


def test_the_clock_is_read_once_per_turn(stage: Stage) -> None:
    stage.settle()
    before = stage.clock.num_looks
    stage.send(Ping())
    stage.next_message()
    assert stage.clock.num_looks == before + 1


def test_several_steps_are_submitted_where_the_mind_plans_several(tmp_path: Path) -> None:
    stage = Stage(tmp_path, max_steps_in_flight=2)
    stage.start()
    stage.send(AddRequest(make_request(max_tokens=5)))
    stage.settle()
    assert len(stage.executor.submitted) == 2
    stage.close()


def test_a_refused_request_is_told_in_the_minds_words(stage: Stage) -> None:
    stage.core.refusal = OverloadedError("7 requests are waiting")
    stage.send(AddRequest(make_request("late")))
    assert stage.next_message() == RequestRefused(RequestId("late"), "OverloadedError", "7 requests are waiting")


def test_an_abort_of_something_that_has_ended_is_ignored(stage: Stage) -> None:
    stage.send(Abort((RequestId("never seen"),)))
    stage.settle()
    assert stage.core.calls == []


def test_one_continuation_of_several_can_be_given_up(stage: Stage) -> None:
    stage.send(AddRequest(make_request("a", n=3)))
    stage.settle()
    stage.send(Abort((RequestId("a"),), sample_index=1))
    (update,) = stage.next_updates().updates
    assert (update.sample_index, update.finish_reason) == (1, FinishReason.ABORT)
    stage.executor.complete_one()
    assert [update.sample_index for update in stage.next_updates().updates] == [0, 2]


def test_stats_tell_the_tokens_of_each_step_once(stage: Stage) -> None:
    stage.send(AddRequest(make_request(max_tokens=2)))
    stage.send(Ping())
    first = stage.next_message()
    assert isinstance(first, Stats)
    assert first.step_token_counts == (1,)
    stage.executor.complete_one()
    assert stage.next_updates().stats.step_token_counts == (1,)
    stage.executor.complete_one()
    assert stage.next_updates().stats.step_token_counts == ()


def test_the_prefix_cache_is_forgotten_on_demand(stage: Stage) -> None:
    stage.send(ResetPrefixCache())
    stage.settle()
    assert [name for name, _, _ in stage.core.calls] == ["reset"]


def test_shutdown_ends_what_is_in_flight_with_an_abort(stage: Stage) -> None:
    stage.send(AddRequest(make_request("a", n=2)), AddRequest(make_request("b")))
    stage.settle()
    stage.send(Shutdown())
    updates = stage.next_updates().updates
    assert [(update.request_id, update.finish_reason) for update in updates] == [
        ("a", FinishReason.ABORT),
        ("a", FinishReason.ABORT),
        ("b", FinishReason.ABORT),
    ]
    stage.thread.join(PATIENCE_S)
    assert stage.exit_status == EXIT_OK


def test_a_step_that_outlives_the_loop_ends_in_silence(stage: Stage) -> None:
    stage.send(AddRequest(make_request("a")))
    stage.settle()
    stage.stop()
    assert stage.executor.submitted, "a step is still under way"
    stage.executor.complete_one()


def test_an_executor_that_fails_ends_the_engine_with_a_message(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    stage.loop.fail(RuntimeError("the device is gone"))
    message = stage.next_message()
    assert isinstance(message, EngineFailed)
    assert "the device is gone" in message.message
    stage.thread.join(PATIENCE_S)
    assert stage.exit_status == EXIT_FAILED
    assert "the device is gone" in capfd.readouterr().err


def test_an_engine_that_stays_idle_checks_itself_and_rests_once(stage: Stage) -> None:
    stage.send(AddRequest(make_request(max_tokens=1)))
    stage.settle()
    stage.executor.complete_one()
    stage.next_updates()
    while stage.core.num_integrity_checks == 0:
        stage.thread.join(0.01)
        assert stage.thread.is_alive()
    stage.settle()
    stage.settle()
    assert stage.core.num_integrity_checks == 1
    assert stage.num_rests == 1

"""Replay equality: what the real engine loop decided, the simulator decides again, byte for byte.

The loop here is the real one, with its socket, its thread and the system's clock; only the tensors are replaced by
fingerprints, so that the workloads can be many. The same is asked of the whole server with a real model in
tests/e2e/test_replay_of_a_server.py.
"""

import tempfile
import threading
import time
from pathlib import Path

import msgspec
import pytest
import zmq
from tests.patience import PATIENCE_S

from headrace.base.clock import Nanos
from headrace.base.ids import BlockId, SequenceId
from headrace.base.system_clock import SystemClock
from headrace.engine.executor.in_process import InProcessExecutor
from headrace.engine.host.connection import client_end, engine_end
from headrace.engine.host.loop import EngineLoop
from headrace.engine.host.messages import (
    Abort,
    AddRequest,
    RequestRefused,
    ResetPrefixCache,
    Shutdown,
    StartupPhase,
    Updates,
)
from headrace.engine.host.recording import Aborted, Event, Finished, Opening, Planned, RecordingWriter, read_recording
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.step import StepPlan, StepResult
from headrace.sim.replay import replay
from headrace.sim.scenario import EOS_TOKEN_ID, VOCAB_SIZE, Scenario, draw_scenario
from headrace.sim.worker import SimulatedWorker, choose_any_of

SENDING_S = 0.4


class UnevenWorker:
    """Takes real time, a different amount each step, so that arrivals fall before, in and after steps."""

    def __init__(self, worker: SimulatedWorker) -> None:
        self._worker = worker

    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep((plan.step_id % 5) / 5_000)
        return self._worker.execute(plan)


def hears(socket: zmq.Socket[bytes]) -> bool:
    """Whether anything comes, with patience, and then with more of it: where the machine slept, a wait is over at once."""
    return any(socket.poll(PATIENCE_S * 1000) for _ in range(3))


def record(scenario: Scenario, path: Path) -> None:
    """Serves a scenario with the real loop; what clients send is spread over `SENDING_S` as over the scenario's time."""
    config = scenario.config
    endpoint = f"ipc://{tempfile.mkdtemp()}/line"
    client = client_end(endpoint)
    core = EngineCore(config, eos_token_ids=(EOS_TOKEN_ID,), identity_digest=b"replay")
    worker = UnevenWorker(
        SimulatedWorker(num_blocks=config.num_blocks, block_size=config.block_size, choose=choose_any_of(VOCAB_SIZE))
    )
    clock = SystemClock()
    failures: list[BaseException] = []
    executor = InProcessExecutor(worker, on_failure=failures.append)
    with RecordingWriter(path) as writer:
        writer.write(Opening(now=clock.now(), scheduler=config, eos_token_ids=(EOS_TOKEN_ID,), identity_digest=b"replay"))
        connection = engine_end(endpoint)
        connection.send(StartupPhase("connect", 0.0))
        assert hears(client.socket), "the two ends do not meet"
        loop = EngineLoop(core=core, executor=executor, connection=connection, clock=clock, recorder=writer)
        thread = threading.Thread(target=loop.run, daemon=True)
        thread.start()
        messages = [(each.at, AddRequest(each.request)) for each in scenario.arrivals]
        messages += [(each.at, Abort((each.request_id,))) for each in scenario.disconnects]  # type: ignore[misc]
        unfinished = sum(each.request.num_sequences for each in scenario.arrivals)
        last = max(at for at, _ in messages)
        began = clock.now()
        for at, message in sorted(messages, key=lambda pair: pair[0]):
            time.sleep(max(0.0, SENDING_S * at / last - (clock.now() - began) / 1e9))
            client.send(message)
        client.send(ResetPrefixCache())
        sizes = {each.request.request_id: each.request.num_sequences for each in scenario.arrivals}
        while unfinished:
            assert hears(client.socket), "the engine loop fell silent"
            while (answer := client.receive()) is not None:
                if isinstance(answer, Updates):
                    unfinished -= sum(update.finish_reason is not None for update in answer.updates)
                elif isinstance(answer, RequestRefused):
                    unfinished -= sizes[answer.request_id]
        client.send(Shutdown())
        thread.join(timeout=PATIENCE_S)
        assert not thread.is_alive(), "the engine loop does not end"
        executor.close()
    client.close()
    assert not failures


WORKLOADS = (6, 7, 21, 32, 35)
"""Seeds of scenarios that all meet everything in `what_it_meets`, in both policies, with one to four steps in flight."""


@pytest.fixture(params=WORKLOADS, ids=lambda seed: f"scenario-{seed}")
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> list[Event]:
    record(draw_scenario(request.param, num_requests=40), tmp_path / "steps")
    return list(read_recording(tmp_path / "steps"))


def test_recorded_durations_give_the_same_plans_byte_for_byte(recording: list[Event]) -> None:
    outcome = replay(recording)
    assert outcome.difference is None
    assert outcome.num_steps == sum(isinstance(event, Planned) for event in recording) > 20


def what_it_meets(recording: list[Event]) -> dict[str, int]:
    counts = {"prefix found": 0, "prompt cut": 0, "preempted": 0, "aborted": 0}
    seen: set[SequenceId] = set()
    for event in recording:
        if isinstance(event, Aborted):
            counts["aborted"] += 1
        elif isinstance(event, Planned):
            for entry in event.plan.scheduled:
                if entry.sequence_id not in seen:
                    counts["prefix found"] += entry.num_computed_tokens > 0
                    counts["prompt cut"] += not entry.samples
            new = {sequence.sequence_id for sequence in event.plan.new_sequences}
            counts["preempted"] += len(new & seen)  # it is back, and the worker must hear of it anew
            seen |= new
    return counts


def test_every_workload_meets_prefix_hits_cut_prompts_preemption_and_aborts(recording: list[Event]) -> None:
    met = what_it_meets(recording)
    assert all(met.values()), met


def test_a_recording_that_was_tampered_with_is_told_apart(recording: list[Event]) -> None:
    position, event = next(
        (index, event) for index, event in enumerate(recording) if isinstance(event, Planned) and event.step_id == 10
    )
    entry = event.plan.scheduled[0]
    assert isinstance(event, Planned)
    changed = msgspec.structs.replace(entry, block_ids=(*entry.block_ids, BlockId(0)))
    plan = msgspec.structs.replace(event.plan, scheduled=(changed, *event.plan.scheduled[1:]))
    outcome = replay([*recording[:position], Planned(event.now, plan), *recording[position + 1 :]])
    assert outcome.num_steps == 10
    assert outcome.difference is not None
    assert outcome.difference.startswith("step 10")


def test_a_step_that_took_longer_changes_what_follows(recording: list[Event]) -> None:
    """The durations matter: if they did not, equality would say little."""
    delay = 50_000_000
    changed = [
        Finished(Nanos(event.now + delay), event.result)
        if isinstance(event, Finished) and event.result.step_id >= 3
        else event
        for event in recording
    ]
    assert replay(changed).difference is not None

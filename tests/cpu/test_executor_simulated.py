"""The simulated executor keeps the same promises as the real one: the conformance suite in virtual time."""

from tests.cpu.executor_conformance import Bench, ExecutorConformance

from headrace.base.clock import ManualClock
from headrace.sim.events import EventQueue
from headrace.sim.executor import SimExecutor
from headrace.sim.step_cost import LinearStepCost
from headrace.sim.worker import SimulatedWorker, choose_any_of


class TestSimExecutor(ExecutorConformance):
    def bench(self) -> Bench:
        clock = ManualClock()
        events = EventQueue(clock)
        worker = SimulatedWorker(num_blocks=16, block_size=16, choose=choose_any_of(64))
        executor = SimExecutor(worker=worker, cost=LinearStepCost(), clock=clock, events=events)

        def settle() -> None:
            while len(events):
                events.run_next()

        return Bench(executor, settle, settle)

"""The executor of one process: the conformance suite over a real worker, and what becomes of bugs and of leftovers."""

import queue
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.cpu.executor_conformance import Bench, ExecutorConformance
from tests.patience import PATIENCE_S
from transformers import LlamaConfig, LlamaForCausalLM

from headrace.base.ids import StepId
from headrace.engine.executor.in_process import InProcessExecutor
from headrace.engine.mind.step import StepPlan, StepResult
from headrace.engine.worker.worker import Worker, WorkerConfig

"""Only a hang takes so long."""


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=128,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def must_not_fail(failure: BaseException) -> None:
    raise AssertionError("the executor failed") from failure


def settler(executor: InProcessExecutor) -> Callable[[], None]:
    """Plans are answered in order: when an empty one submitted now is answered, all before it are."""

    def settle() -> None:
        answered = threading.Event()
        executor.submit(StepPlan(StepId(-1), ()), lambda _: answered.set())
        assert answered.wait(PATIENCE_S), "a plan was never answered"

    return settle


class TestInProcessExecutor(ExecutorConformance):
    @pytest.fixture(autouse=True)
    def _remember_model(self, model_path: Path) -> None:
        self._model_path = model_path

    def bench(self) -> Bench:
        config = WorkerConfig(model_path=str(self._model_path), dtype="float32", device="cpu", num_threads=1)
        worker = Worker(config, lambda *phase: None)
        worker.allocate_kv_cache(16)
        executor = InProcessExecutor(worker, must_not_fail)
        return Bench(executor, settler(executor), executor.close)


class StubWorker:
    """Answers every plan; the one named fails."""

    def __init__(self, failing_step: int | None = None) -> None:
        self._failing_step = failing_step
        self.executed: list[int] = []
        self.threads: set[int] = set()

    def execute(self, plan: StepPlan) -> StepResult:
        self.threads.add(threading.get_ident())
        if plan.step_id == self._failing_step:
            raise ZeroDivisionError("a bug")
        self.executed.append(plan.step_id)
        return StepResult(plan.step_id, ())


def test_a_bug_in_execution_reaches_the_owner_and_ends_the_work() -> None:
    worker = StubWorker(failing_step=2)
    failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    results: list[StepResult] = []
    executor = InProcessExecutor(worker, failures.put)
    for step in range(5):
        executor.submit(StepPlan(StepId(step), ()), results.append)
    assert isinstance(failures.get(timeout=PATIENCE_S), ZeroDivisionError)
    executor.close()
    assert [result.step_id for result in results] == [0, 1]
    assert worker.executed == [0, 1], "nothing runs on what a bug left behind"
    assert failures.empty()


def test_a_bug_in_done_reaches_the_owner_too() -> None:
    failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    executor = InProcessExecutor(StubWorker(), failures.put)

    def done(result: StepResult) -> None:
        raise KeyError("a bug in the owner")

    executor.submit(StepPlan(StepId(0), ()), done)
    assert isinstance(failures.get(timeout=PATIENCE_S), KeyError)
    executor.close()


def test_close_waits_for_what_was_submitted_and_may_be_called_twice() -> None:
    worker = StubWorker()
    results: list[StepResult] = []
    executor = InProcessExecutor(worker, must_not_fail)
    for step in range(20):
        executor.submit(StepPlan(StepId(step), ()), results.append)
    executor.close()
    executor.close()
    assert [result.step_id for result in results] == list(range(20))


def test_all_plans_run_on_one_thread_that_is_not_the_callers() -> None:
    worker = StubWorker()
    executor = InProcessExecutor(worker, must_not_fail)
    for step in range(5):
        executor.submit(StepPlan(StepId(step), ()), lambda _: None)
    executor.close()
    assert len(worker.threads) == 1
    assert threading.get_ident() not in worker.threads


def test_the_owner_may_close_it_when_told_of_a_failure() -> None:
    closed = threading.Event()

    def on_failure(failure: BaseException) -> None:
        executor.close()  # on the executor's own thread: must not wait for itself
        closed.set()

    executor = InProcessExecutor(StubWorker(failing_step=0), on_failure)
    executor.submit(StepPlan(StepId(0), ()), lambda _: None)
    assert closed.wait(PATIENCE_S)

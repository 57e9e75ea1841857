"""A request whose answer must have a form waits outside the mind until that form is compiled; nobody else waits with it."""

import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.patience import PATIENCE_S
from tests.unit.grammar.vocabularies import vocabulary
from tests.unit.host.fakes import FakeCore, ManualExecutor, SteppingClock, make_request

from headrace.base.errors import HeadraceError, InvalidRequestError, OverloadedError
from headrace.base.ids import RequestId
from headrace.engine.grammar.cache import MAX_CHARACTERS, FormCache
from headrace.engine.grammar.protocol import CompiledForm, Matcher, Vocabulary
from headrace.engine.host.connection import Connection, client_end, engine_end
from headrace.engine.host.grammar import FormCompiler
from headrace.engine.host.loop import EngineLoop
from headrace.engine.host.messages import (
    Abort,
    AddRequest,
    ClientMessage,
    EngineMessage,
    Ping,
    RequestRefused,
    Shutdown,
    Stats,
    Updates,
)
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.structured_output import OutputKind, StructuredOutput
from headrace.engine.mind.update import FinishReason

Done = Callable[[CompiledForm | InvalidRequestError], None]


def formed(name: str, text: str = "a", *, n: int = 1) -> Request:
    form = StructuredOutput(kind=OutputKind.REGEX, text=text, field="structured_outputs.regex")
    sampling = SamplingParams(max_tokens=3)
    return Request(
        request_id=RequestId(name), prompt_token_ids=(1,), sampling=sampling, num_sequences=n, structured_output=form
    )


class NoForm:
    first_mask = np.zeros(1, dtype=np.int32)

    def matcher(self) -> Matcher:
        raise AssertionError("nobody follows it")


class ManualForms:
    """Forms are ready when a test says so."""

    def __init__(self) -> None:
        self.ready: dict[str, CompiledForm] = {}
        self.asked: dict[str, Done] = {}
        self.wanted: dict[str, Callable[[], bool]] = {}

    def find(self, wanted: StructuredOutput) -> CompiledForm | None:
        return self.ready.get(wanted.text)

    def compile(self, wanted: StructuredOutput, done: Done, is_wanted: Callable[[], bool]) -> None:
        self.asked[wanted.text] = done
        self.wanted[wanted.text] = is_wanted


class Stage:
    """A loop in a thread of its own, with both ends of the line."""

    def __init__(self, folder: Path) -> None:
        endpoint = f"ipc://{folder}/engine.sock"
        self.client: Connection[ClientMessage, EngineMessage] = client_end(endpoint)
        self.line: Connection[EngineMessage, ClientMessage] = engine_end(endpoint)
        self.core = FakeCore()
        self.forms = ManualForms()
        self.executor = ManualExecutor()
        loop = EngineLoop(
            core=self.core, executor=self.executor, connection=self.line, clock=SteppingClock(), forms=self.forms
        )
        self.thread = threading.Thread(target=loop.run, daemon=True)
        self.line.send(Stats())
        assert isinstance(self.next_message(), Stats)
        self.thread.start()

    def next_message(self) -> EngineMessage:
        assert self.client.socket.poll(PATIENCE_S * 1000), "the loop said nothing"
        message = self.client.receive()
        assert message is not None
        return message

    def settle(self) -> list[EngineMessage]:
        """What the loop said until it had taken in everything sent before."""
        said: list[EngineMessage] = []
        self.client.send(Ping())
        while not isinstance(message := self.next_message(), Stats):
            said.append(message)
        return said

    def send(self, *messages: ClientMessage) -> list[EngineMessage]:
        for message in messages:
            self.client.send(message)
        return self.settle()

    @property
    def admitted(self) -> list[str]:
        return [str(name) for kind, name, _ in self.core.calls if kind == "add"]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.client.send(Shutdown())
    stage.thread.join(timeout=PATIENCE_S)
    stage.client.close()
    stage.line.close()


def test_a_request_is_admitted_when_its_form_is_compiled_and_others_pass_it(stage: Stage) -> None:
    stage.send(AddRequest(formed("a")), AddRequest(make_request("free")))
    assert stage.admitted == ["free"]
    stage.forms.asked["a"](NoForm())
    stage.settle()
    assert stage.admitted == ["free", "a"]


def test_a_form_that_is_ready_admits_at_once(stage: Stage) -> None:
    stage.forms.ready["a"] = NoForm()
    stage.send(AddRequest(formed("a")))
    assert stage.admitted == ["a"]


def test_a_form_that_cannot_be_enforced_refuses_its_request_alone(stage: Stage) -> None:
    stage.send(AddRequest(formed("bad", "(")), AddRequest(formed("good")))
    stage.forms.asked["("](InvalidRequestError("no", param="structured_outputs.regex"))
    stage.forms.asked["a"](NoForm())
    [refusal] = stage.settle()
    assert refusal == RequestRefused(RequestId("bad"), "InvalidRequestError", "no", "structured_outputs.regex")
    assert stage.admitted == ["good"]


def test_the_compiler_can_see_that_a_client_has_left(stage: Stage) -> None:
    stage.send(AddRequest(formed("a")))
    assert stage.forms.wanted["a"]()
    stage.send(Abort((RequestId("a"),)))
    assert not stage.forms.wanted["a"]()


def test_a_client_that_leaves_before_its_form_is_compiled_is_never_admitted(stage: Stage) -> None:
    stage.send(AddRequest(formed("a")), Abort((RequestId("a"),)))
    stage.forms.asked["a"](NoForm())
    assert stage.settle() == []
    assert stage.admitted == []


def test_a_continuation_that_is_given_up_before_its_form_is_compiled_ends_alone(stage: Stage) -> None:
    assert stage.send(AddRequest(formed("a", n=2)), Abort((RequestId("a"),), 1)) == []
    stage.forms.asked["a"](NoForm())
    [updates] = stage.settle()
    assert isinstance(updates, Updates)
    [ended] = updates.updates
    assert (ended.sample_index, ended.finish_reason) == (1, FinishReason.ABORT)
    said = complete(stage, num_steps=3)
    ends = [update for message in said if isinstance(message, Updates) for update in message.updates if update.finish_reason]
    assert [(update.sample_index, update.finish_reason) for update in ends] == [(0, FinishReason.LENGTH)]


def test_what_was_given_up_of_a_request_is_forgotten_with_it(stage: Stage) -> None:
    gone = RequestId("a")
    stage.send(AddRequest(formed("a", n=2)), Abort((gone,), 1), Abort((gone,)), AddRequest(formed("a", "b", n=2)))
    stage.forms.asked["b"](NoForm())
    assert stage.settle() == []
    assert stage.admitted == ["a"]


@pytest.mark.parametrize("other", [formed("a", "b"), make_request("a")])
def test_an_id_that_waits_for_its_form_is_in_use(stage: Stage, other: Request) -> None:
    [refusal] = stage.send(AddRequest(formed("a")), AddRequest(other))
    assert isinstance(refusal, RequestRefused)
    assert refusal.param == "request_id"


def test_an_id_whose_answer_is_being_written_is_in_use_and_keeps_its_form(stage: Stage) -> None:
    stage.forms.ready["a"] = NoForm()
    held = weakref.ref(stage.forms.ready["a"])
    [refusal] = stage.send(AddRequest(formed("a")), AddRequest(formed("a")))
    assert isinstance(refusal, RequestRefused)
    stage.forms.ready.clear()
    stage.settle()
    assert held() is not None


# How long a form is held, and how many


def complete(stage: Stage, num_steps: int) -> list[EngineMessage]:
    said: list[EngineMessage] = []
    for _ in range(num_steps):
        stage.executor.complete_one()
        said.append(stage.next_message())
    return said + stage.settle()


def test_a_form_is_held_until_the_last_answer_of_its_request_has_ended(stage: Stage) -> None:
    request = formed("a", n=2)
    stage.send(AddRequest(request))
    form = NoForm()
    held = weakref.ref(form)
    stage.forms.asked.pop("a")(form)
    del form
    stage.settle()  # the loop has taken the form: an answer that ends has begun
    stage.send(Abort((RequestId("a"),), 0))
    assert held() is not None
    complete(stage, num_steps=2)
    assert held() is not None
    complete(stage, num_steps=1)
    assert held() is None


@pytest.mark.parametrize("refusal", [InvalidRequestError("no"), OverloadedError("no")])
def test_nothing_is_held_for_a_request_that_was_refused(stage: Stage, refusal: HeadraceError) -> None:
    stage.core.refusal = refusal
    form = NoForm()
    held = weakref.ref(form)
    stage.send(AddRequest(formed("a")))
    stage.forms.asked.pop("a")(form)
    del form
    stage.settle()
    refusal.with_traceback(None)  # it has seen the form
    assert held() is None


def test_so_many_forms_are_held_and_the_next_is_not_even_compiled_until_there_is_room(stage: Stage) -> None:
    long = MAX_CHARACTERS // 2
    first, second, third = ("a" * long, "b" * long, "c" * long)
    stage.forms.ready |= {first: NoForm(), second: NoForm()}
    stage.send(AddRequest(formed("1", first)), AddRequest(formed("2", second)), AddRequest(formed("3", third)))
    stage.send(AddRequest(formed("gone", third)), Abort((RequestId("gone"),)))
    stage.send(AddRequest(formed("again", first)), AddRequest(make_request("free")))
    assert stage.admitted == ["1", "2", "free"], "first come, first served, and free answers pass"
    assert not stage.forms.asked
    stage.send(Abort((RequestId("2"),)))
    assert list(stage.forms.asked) == [third]
    assert stage.admitted == ["1", "2", "free", "again"]
    stage.forms.asked[third](NoForm())
    stage.settle()
    assert stage.admitted[-1] == "3"
    assert "gone" not in stage.admitted


def test_a_form_that_waits_for_room_is_refused_in_its_turn_and_those_behind_it_go_on(stage: Stage) -> None:
    long = MAX_CHARACTERS
    first, bad, last = "a" * long, "(" * long, "b" * long
    stage.forms.ready |= {first: NoForm(), last: NoForm()}
    stage.send(AddRequest(formed("1", first)), AddRequest(formed("2", bad)), AddRequest(formed("3", last)))
    stage.send(Abort((RequestId("1"),)))
    stage.forms.asked[bad](InvalidRequestError("no"))
    assert any(isinstance(message, RequestRefused) for message in stage.settle())
    assert stage.admitted == ["1", "3"]


# The compiler and the cache


class CountingBackend:
    """Compiles nothing, and counts."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.problem: Exception | None = None

    def compile(self, wanted: StructuredOutput) -> CompiledForm:
        self.compiled.append(wanted.text)
        if self.problem is not None:
            raise self.problem
        return NoForm()


def regex(text: str, **fields: str) -> StructuredOutput:
    return StructuredOutput(kind=OutputKind.REGEX, text=text, **fields)  # type: ignore[arg-type]


def test_a_form_is_compiled_once_whoever_asks_for_it() -> None:
    backend = CountingBackend()
    cache = FormCache(backend)
    threads = [threading.Thread(target=cache.get, args=(regex("a", field=str(i)),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert backend.compiled == ["a"]
    assert cache.find(regex("a")) is not None


def test_the_form_that_was_asked_for_longest_ago_makes_room() -> None:
    backend = CountingBackend()
    cache = FormCache(backend, capacity=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        cache.get(regex(text))
    assert backend.compiled == ["a", "b", "c", "b"]
    assert len(cache) == 2


def test_asking_for_a_form_that_is_ready_counts_as_asking_for_it() -> None:
    backend = CountingBackend()
    cache = FormCache(backend, capacity=2)
    for text in ("a", "b"):
        cache.get(regex(text))
    assert cache.find(regex("a")) is not None
    for text in ("c", "a"):
        cache.get(regex(text))
    assert backend.compiled == ["a", "b", "c"]


def test_a_form_that_somebody_holds_is_never_compiled_again_however_many_others_are() -> None:
    backend = CountingBackend()
    cache = FormCache(backend, capacity=2)
    held = cache.get(regex("held"))
    for i in range(10):
        cache.get(regex(str(i)))
    assert cache.find(regex("held")) is held
    for i in range(10):
        cache.get(regex(str(i)))
    assert cache.get(regex("held")) is held
    assert backend.compiled.count("held") == 1
    assert len(cache) == 2
    for i in range(10):
        cache.get(regex(str(i)))
    del held
    assert cache.find(regex("held")) is None


def test_few_long_forms_are_kept_as_many_short_ones_would_be() -> None:
    backend = CountingBackend()
    cache = FormCache(backend, max_characters=10)
    for text in ("aaaa", "bbbb", "cccc", "bbbb", "aaaa"):
        cache.get(regex(text))
    assert backend.compiled == ["aaaa", "bbbb", "cccc", "aaaa"]
    cache.get(regex("d" * 100))
    assert len(cache) == 1
    assert cache.find(regex("d" * 100)) is not None


def test_a_form_that_could_not_be_compiled_is_not_kept_but_the_reason_is() -> None:
    backend = CountingBackend()
    backend.problem = InvalidRequestError("no", param="f", code="c")
    cache = FormCache(backend)
    for _ in range(3):
        with pytest.raises(InvalidRequestError, match="no") as refused:
            cache.get(regex("a"))
        assert (refused.value.param, refused.value.code) == ("f", "c")
    assert backend.compiled == ["a"]
    assert len(cache) == 0
    assert cache.find(regex("a")) is None


def test_a_refusal_names_the_field_of_whoever_asks() -> None:
    backend = CountingBackend()
    backend.problem = InvalidRequestError("no")
    cache = FormCache(backend)
    for field in ("a", "b", "a", "b"):
        with pytest.raises(InvalidRequestError):
            cache.get(regex("x", field=field))
    assert len(backend.compiled) == 2, "once for each field"


def test_a_fault_of_the_library_is_no_refusal_and_tried_again() -> None:
    backend = CountingBackend()
    backend.problem = RuntimeError("out of memory, perhaps")
    cache = FormCache(backend)
    with pytest.raises(RuntimeError):
        cache.get(regex("a"))
    backend.problem = None
    assert isinstance(cache.get(regex("a")), NoForm)


class HeldBackend(CountingBackend):
    """Holds all whose text begins with `slow` until a test lets them go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.may_go_on = threading.Event()

    def compile(self, wanted: StructuredOutput) -> CompiledForm:
        if wanted.text.startswith("slow"):
            self.begun.put(wanted.text)
            assert self.may_go_on.wait(PATIENCE_S)
        return super().compile(wanted)


def test_many_who_ask_for_one_slow_form_leave_threads_for_others() -> None:
    backend = HeldBackend()
    compiler = FormCompiler(lambda: (vocabulary(), FormCache(backend)))
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    for i in range(20):
        compiler.compile(regex("slow", field=str(i)), lambda _: heard.put("slow"))
    assert backend.begun.get(timeout=PATIENCE_S) == "slow"
    compiler.compile(regex("quick"), lambda _: heard.put("quick"))
    assert heard.get(timeout=PATIENCE_S) == "quick"
    backend.may_go_on.set()
    assert [heard.get(timeout=PATIENCE_S) for _ in range(20)] == ["slow"] * 20
    assert sorted(backend.compiled) == ["quick", "slow"]
    compiler.close()


def test_what_nobody_waits_for_any_more_is_not_begun_with() -> None:
    backend = HeldBackend()
    compiler = FormCompiler(lambda: (vocabulary(), FormCache(backend)))
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    slow = [f"slow {i}" for i in range(4)]
    for text in slow:
        compiler.compile(regex(text), lambda _: heard.put("slow"))
    assert {backend.begun.get(timeout=PATIENCE_S) for _ in slow} == set(slow), "as many as there are threads"
    gone = threading.Event()
    for i in range(50):
        compiler.compile(regex(f"left {i}"), lambda _: heard.put("left"), lambda: not gone.is_set())
    compiler.compile(regex("stays"), lambda _: heard.put("stays"))
    gone.set()
    backend.may_go_on.set()
    assert sorted(heard.get(timeout=PATIENCE_S) for _ in range(5)) == [*["slow"] * 4, "stays"]
    assert heard.empty()
    assert sorted(backend.compiled) == [*slow, "stays"]
    compiler.close()


def test_options_that_change_a_form_make_it_another() -> None:
    plain = StructuredOutput(kind=OutputKind.JSON_SCHEMA, text="{}")
    compact = StructuredOutput(kind=OutputKind.JSON_SCHEMA, text="{}", disable_any_whitespace=True)
    elsewhere = StructuredOutput(kind=OutputKind.JSON_SCHEMA, text="{}", field="response_format")
    assert plain.content_key != compact.content_key
    assert plain.content_key == elsewhere.content_key


@pytest.mark.parametrize(
    "problem", [InvalidRequestError("no", param="f"), RuntimeError("a bug of the library"), MemoryError()]
)
def test_whatever_goes_wrong_while_compiling_concerns_one_request(problem: Exception) -> None:
    backend = CountingBackend()
    backend.problem = problem
    compiler = FormCompiler(lambda: (vocabulary(), FormCache(backend)))
    heard: list[CompiledForm | InvalidRequestError] = []
    rang = threading.Event()

    def done(form: CompiledForm | InvalidRequestError) -> None:
        heard.append(form)
        rang.set()

    compiler.compile(regex("a", field="f"), done)
    assert rang.wait(PATIENCE_S)
    backend.problem = None
    rang.clear()
    compiler.compile(regex("b", field="f"), done)
    assert rang.wait(PATIENCE_S)
    compiler.close()
    first, second = heard
    assert isinstance(first, InvalidRequestError)
    assert first.param == "f"
    assert isinstance(second, NoForm)


def test_a_vocabulary_is_read_when_a_form_is_first_asked_for_and_once() -> None:
    num_loads = 0

    def load() -> tuple[Vocabulary, FormCache]:
        nonlocal num_loads
        num_loads += 1
        return vocabulary(), FormCache(CountingBackend())

    compiler = FormCompiler(load)
    assert compiler.find(regex("a")) is None
    assert num_loads == 0
    heard: queue.SimpleQueue[CompiledForm | InvalidRequestError] = queue.SimpleQueue()
    for pattern in ("a", "b"):
        compiler.compile(regex(pattern), heard.put)
    assert isinstance(heard.get(timeout=PATIENCE_S), NoForm)
    assert isinstance(heard.get(timeout=PATIENCE_S), NoForm)
    assert compiler.find(regex("a")) is not None
    assert num_loads == 1
    compiler.close()


def test_a_vocabulary_that_cannot_be_read_refuses_forms_and_nothing_else() -> None:
    def load() -> tuple[object, FormCache]:
        raise OSError("no such file")

    compiler = FormCompiler(load)  # type: ignore[arg-type]
    heard: list[CompiledForm | InvalidRequestError] = []
    rang = threading.Event()

    def done(form: CompiledForm | InvalidRequestError) -> None:
        heard.append(form)
        rang.set()

    compiler.compile(regex("a", field="f"), done)
    assert rang.wait(PATIENCE_S)
    compiler.close()
    assert isinstance(heard[0], InvalidRequestError)
    assert "no such file" in str(heard[0])
    assert compiler.find(regex("a")) is None

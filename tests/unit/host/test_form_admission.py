"""A request whose answer must have a form waits outside the mind until that form is compiled; nobody else waits with it."""

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.grammar.vocabularies import vocabulary
from tests.unit.host.fakes import FakeCore, ManualExecutor, SteppingClock, make_request

from headrace.base.errors import InvalidRequestError
from headrace.base.ids import RequestId
from headrace.engine.grammar.cache import FormCache
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
)
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.structured_output import OutputKind, StructuredOutput

Done = Callable[[InvalidRequestError | None], None]


def formed(name: str, text: str = "a") -> Request:
    form = StructuredOutput(kind=OutputKind.REGEX, text=text, field="structured_outputs.regex")
    sampling = SamplingParams(max_tokens=3)
    return Request(request_id=RequestId(name), prompt_token_ids=(1,), sampling=sampling, structured_output=form)


class ManualForms:
    """Forms are ready when a test says so."""

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.asked: dict[str, Done] = {}

    def is_ready(self, wanted: StructuredOutput) -> bool:
        return wanted.text in self.ready

    def compile(self, wanted: StructuredOutput, done: Done) -> None:
        self.asked[wanted.text] = done


class Stage:
    """A loop in a thread of its own, with both ends of the line."""

    def __init__(self, folder: Path) -> None:
        endpoint = f"ipc://{folder}/engine.sock"
        self.client: Connection[ClientMessage, EngineMessage] = client_end(endpoint)
        self.line: Connection[EngineMessage, ClientMessage] = engine_end(endpoint)
        self.core = FakeCore()
        self.forms = ManualForms()
        loop = EngineLoop(
            core=self.core, executor=ManualExecutor(), connection=self.line, clock=SteppingClock(), forms=self.forms
        )
        self.thread = threading.Thread(target=loop.run, daemon=True)
        self.line.send(Stats())
        assert isinstance(self.next_message(), Stats)
        self.thread.start()

    def next_message(self) -> EngineMessage:
        assert self.client.socket.poll(10_000), "the loop said nothing"
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
    stage.thread.join(timeout=10)
    stage.client.close()
    stage.line.close()


def test_a_request_is_admitted_when_its_form_is_compiled_and_others_pass_it(stage: Stage) -> None:
    stage.send(AddRequest(formed("a")), AddRequest(make_request("free")))
    assert stage.admitted == ["free"]
    stage.forms.asked["a"](None)
    stage.settle()
    assert stage.admitted == ["free", "a"]


def test_a_form_that_is_ready_admits_at_once(stage: Stage) -> None:
    stage.forms.ready.add("a")
    stage.send(AddRequest(formed("a")))
    assert stage.admitted == ["a"]


def test_a_form_that_cannot_be_enforced_refuses_its_request_alone(stage: Stage) -> None:
    stage.send(AddRequest(formed("bad", "(")), AddRequest(formed("good")))
    stage.forms.asked["("](InvalidRequestError("no", param="structured_outputs.regex"))
    stage.forms.asked["a"](None)
    [refusal] = stage.settle()
    assert refusal == RequestRefused(RequestId("bad"), "InvalidRequestError", "no", "structured_outputs.regex")
    assert stage.admitted == ["good"]


def test_a_client_that_leaves_before_its_form_is_compiled_is_never_admitted(stage: Stage) -> None:
    stage.send(AddRequest(formed("a")), Abort((RequestId("a"),)))
    stage.forms.asked["a"](None)
    assert stage.settle() == []
    assert stage.admitted == []


def test_an_id_that_waits_for_its_form_is_in_use(stage: Stage) -> None:
    [refusal] = stage.send(AddRequest(formed("a")), AddRequest(formed("a", "b")))
    assert isinstance(refusal, RequestRefused)
    assert refusal.param == "request_id"


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
        return _NoForm()


class _NoForm:
    def matcher(self) -> Matcher:
        raise AssertionError("nobody follows it")


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
    assert cache.is_ready(regex("a"))


def test_the_form_that_was_asked_for_longest_ago_makes_room() -> None:
    backend = CountingBackend()
    cache = FormCache(backend, capacity=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        cache.get(regex(text))
    assert backend.compiled == ["a", "b", "c", "b"]
    assert len(cache) == 2


def test_few_long_forms_are_kept_as_many_short_ones_would_be() -> None:
    backend = CountingBackend()
    cache = FormCache(backend, max_characters=10)
    for text in ("aaaa", "bbbb", "cccc", "bbbb", "aaaa"):
        cache.get(regex(text))
    assert backend.compiled == ["aaaa", "bbbb", "cccc", "aaaa"]
    cache.get(regex("d" * 100))
    assert len(cache) == 1
    assert cache.is_ready(regex("d" * 100))


def test_a_form_that_could_not_be_compiled_is_not_kept() -> None:
    backend = CountingBackend()
    backend.problem = InvalidRequestError("no")
    cache = FormCache(backend)
    for _ in range(2):
        with pytest.raises(InvalidRequestError):
            cache.get(regex("a"))
    assert len(cache) == 0
    assert not cache.is_ready(regex("a"))


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
    heard: list[InvalidRequestError | None] = []
    rang = threading.Event()

    def done(error: InvalidRequestError | None) -> None:
        heard.append(error)
        rang.set()

    compiler.compile(regex("a", field="f"), done)
    assert rang.wait(10)
    backend.problem = None
    rang.clear()
    compiler.compile(regex("b", field="f"), done)
    assert rang.wait(10)
    compiler.close()
    first, second = heard
    assert isinstance(first, InvalidRequestError)
    assert first.param == "f"
    assert second is None


def test_a_vocabulary_is_read_when_a_form_is_first_asked_for_and_once() -> None:
    num_loads = 0

    def load() -> tuple[Vocabulary, FormCache]:
        nonlocal num_loads
        num_loads += 1
        return vocabulary(), FormCache(CountingBackend())

    compiler = FormCompiler(load)
    assert not compiler.is_ready(regex("a"))
    assert num_loads == 0
    heard: queue.SimpleQueue[InvalidRequestError | None] = queue.SimpleQueue()
    for pattern in ("a", "b"):
        compiler.compile(regex(pattern), heard.put)
    assert heard.get(timeout=10) is None
    assert heard.get(timeout=10) is None
    assert compiler.is_ready(regex("a"))
    assert num_loads == 1
    compiler.close()


def test_a_vocabulary_that_cannot_be_read_refuses_forms_and_nothing_else() -> None:
    def load() -> tuple[object, FormCache]:
        raise OSError("no such file")

    compiler = FormCompiler(load)  # type: ignore[arg-type]
    heard: list[InvalidRequestError | None] = []
    rang = threading.Event()

    def done(error: InvalidRequestError | None) -> None:
        heard.append(error)
        rang.set()

    compiler.compile(regex("a", field="f"), done)
    assert rang.wait(10)
    compiler.close()
    assert heard[0] is not None
    assert "no such file" in str(heard[0])
    assert not compiler.is_ready(regex("a"))

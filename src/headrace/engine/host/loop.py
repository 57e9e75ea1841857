"""The loop of an engine process: one thread that carries messages between clients, the mind and the executor.

Knows the order of a turn and when to wait. Decides nothing: what is computed is the mind's business, how is the
executor's.

One turn: read the clock once; take in what clients sent, in order, and requests whose form is ready by now; take in what
the executor finished, in order of steps; let the mind plan until it gives no more plans; send one message with all that
changed. The loop then sleeps until a client or the executor rings, so a turn happens only where there is something new.
Several steps may be in flight, and the mind counts them.
"""

import contextlib
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import zmq

from headrace.base.clock import Clock, Nanos
from headrace.base.errors import HeadraceError, InvalidRequestError, OverloadedError
from headrace.base.ids import RequestId, StepId
from headrace.engine.grammar.protocol import CompiledForm
from headrace.engine.host.connection import Connection
from headrace.engine.host.forms_in_use import FormsInUse
from headrace.engine.host.known_forms import ReceivedForms
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
from headrace.engine.host.recording import Aborted, Added, Event, Finished, Planned, PrefixCacheReset
from headrace.engine.mind.ports import Executor
from headrace.engine.mind.request import Request
from headrace.engine.mind.stats import EngineStats
from headrace.engine.mind.step import StepPlan, StepResult
from headrace.engine.mind.structured_output import StructuredOutput
from headrace.engine.mind.update import RequestUpdate

EXIT_OK = 0
EXIT_FAILED = 1
IDLE_MS_BEFORE_CHECK = 200
"""The check looks at every block; so long a pause means that no request waits for it."""


class Core(Protocol):
    """The mind as the loop calls it: `EngineCore`."""

    @property
    def is_idle(self) -> bool: ...
    def add_request(self, request: Request, now: Nanos) -> None: ...
    def abort(self, request_id: RequestId, now: Nanos, *, sample_index: int | None = ...) -> list[RequestUpdate]: ...
    def begin_step(self, now: Nanos) -> StepPlan | None: ...
    def finish_step(self, plan: StepPlan, result: StepResult, now: Nanos) -> list[RequestUpdate]: ...
    def reset_prefix_cache(self) -> None: ...
    def stats(self) -> EngineStats: ...
    def check_integrity(self) -> None: ...


class Recorder(Protocol):
    """Where events go: `RecordingWriter`, or nothing."""

    def write(self, event: Event) -> None: ...
    def flush(self) -> None: ...


class Forms(Protocol):
    """Who makes forms of answers ready: `grammar.FormCompiler`."""

    def find(self, wanted: StructuredOutput) -> CompiledForm | None: ...
    def compile(
        self,
        wanted: StructuredOutput,
        done: Callable[[CompiledForm | InvalidRequestError], None],
        is_wanted: Callable[[], bool],
    ) -> None: ...


class Doorbell:
    """Wakes the loop from another thread. Rings before the sleeper looks are not lost, and many count as one."""

    def __init__(self) -> None:
        self._sleeper, self._ringer = socket.socketpair()
        self._sleeper.setblocking(False)
        self._ringer.setblocking(False)
        self._is_closed = False

    def ring(self) -> None:
        """From any thread; also when nobody is there any more to hear it, since a step may outlive the loop."""
        try:
            self._ringer.send(b"!")
        except BlockingIOError:
            pass  # full of unanswered rings: one more would say nothing new
        except OSError:
            if not self._is_closed:
                raise

    def silence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._sleeper.recv(4096):
                pass

    def fileno(self) -> int:
        return self._sleeper.fileno()

    def close(self) -> None:
        self._is_closed = True
        self._sleeper.close()
        self._ringer.close()


class EngineLoop:
    def __init__(
        self,
        *,
        core: Core,
        executor: Executor,
        connection: Connection[EngineMessage, ClientMessage],
        clock: Clock,
        recorder: Recorder | None = None,
        forms: Forms | None = None,
        on_rest: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_rest` is called in every pause that comes after work, once it has lasted a while."""
        self._core = core
        self._executor = executor
        self._connection = connection
        self._clock = clock
        self._recorder = recorder
        self._forms = forms
        self._on_rest = on_rest

        self._doorbell = Doorbell()
        self._poller = zmq.Poller()
        self._poller.register(connection.socket, zmq.POLLIN)
        self._poller.register(self._doorbell.fileno(), zmq.POLLIN)

        self._in_flight: dict[StepId, StepPlan] = {}
        self._completed: deque[StepResult | BaseException] = deque()
        self._awaiting_form: dict[RequestId, Request] = {}
        """Requests whose answers must have a form that is not compiled yet: the mind does not know of them."""
        self._given_up: dict[RequestId, list[int]] = {}
        """Those of their continuations that nobody wants any more: aborted as soon as the mind knows of them."""
        self._awaiting_room: deque[Request] = deque()
        """Those of them whose form is not even asked for, since too much is held already."""
        self._compiled: deque[tuple[Request, CompiledForm | InvalidRequestError]] = deque()
        self._num_unfinished: dict[RequestId, int] = {}
        """Continuations of each request that have not ended: what a shutdown has to abort."""
        self._received_forms = ReceivedForms()
        self._forms_in_use = FormsInUse()
        """Held here, a form is there whenever an answer begins to take it, be it after much thinking, or again after a
        preemption."""
        self._step_token_counts: list[int] = []
        """Tokens of each step planned since stats were last sent."""
        self._is_unchecked = False
        """Whether anything happened since integrity was last checked."""
        self._stopping = False

    def run(self) -> int:
        """Serves until told to shut down. Returns the process's exit status; a failure has been told to the client."""
        try:
            while not self._stopping:
                self._wait()
                self._turn()
        except Exception as error:
            # Whatever it is, nobody can be served any more; saying so is the last duty.
            traceback.print_exception(error, file=sys.stderr)
            self._connection.send(describe_failure(error))
            return EXIT_FAILED
        finally:
            self._doorbell.close()
        return EXIT_OK

    def fail(self, error: BaseException) -> None:
        """The executor cannot go on. Called from any thread."""
        self._completed.append(error)
        self._doorbell.ring()

    def _turn(self) -> None:
        now = self._clock.now()
        updates: list[RequestUpdate] = []
        wants_stats = self._take_messages(now, updates)
        self._take_compiled(now, updates)
        num_results = self._take_results(now, updates)
        self._ask_for_forms(now, updates)  # those of requests that ended make room
        self._plan_steps(now)
        # The last step of a busy time may change no answer and still give blocks back: that is told too.
        goes_idle = num_results > 0 and not updates and self._core.is_idle
        self._report(updates, wants_stats or goes_idle)
        if self._recorder is not None:
            self._recorder.flush()

    def _wait(self) -> None:
        """Sleeps until a client or the executor rings. An engine that is idle and stays so examines itself first."""
        if self._completed or self._compiled:
            return
        if self._is_unchecked and self._core.is_idle and not self._poller.poll(IDLE_MS_BEFORE_CHECK):
            self._core.check_integrity()
            self._on_rest()
            self._is_unchecked = False
        self._poller.poll()
        self._doorbell.silence()

    # What clients sent

    def _take_messages(self, now: Nanos, updates: list[RequestUpdate]) -> bool:
        """Returns whether somebody asked for stats."""
        wants_stats = False
        while (message := self._connection.receive()) is not None:
            match message:
                case AddRequest():
                    self._receive(self._received_forms.request(message), now, updates)
                case Abort(request_ids, sample_index):
                    for request_id in request_ids:
                        self._give_up(request_id, now, updates, sample_index)
                case Ping():
                    wants_stats = True
                case ResetPrefixCache():
                    self._record(PrefixCacheReset(now))
                    self._core.reset_prefix_cache()
                case Shutdown():
                    for request_id in list(self._num_unfinished):
                        self._abort(request_id, now, updates)
                    self._stopping = True
        return wants_stats

    def _receive(self, request: Request, now: Nanos, updates: list[RequestUpdate]) -> None:
        """To the mind, unless the answer must have a form that is not ready."""
        wanted = request.structured_output
        if request.request_id in self._awaiting_form or request.request_id in self._num_unfinished:
            self._refuse(request, InvalidRequestError(f"request_id {request.request_id!r} is in use", param="request_id"))
        elif wanted is None:
            self._add(request, now)
        elif self._forms is None:
            self._refuse(request, InvalidRequestError("this engine does not enforce forms of answers", param=wanted.field))
        else:
            self._awaiting_form[request.request_id] = request
            self._awaiting_room.append(request)
            self._ask_for_forms(now, updates)

    def _ask_for_forms(self, now: Nanos, updates: list[RequestUpdate]) -> None:
        """First come, first served, as far as there is room."""
        while self._awaiting_room:
            request = self._awaiting_room[0]
            wanted, forms = request.structured_output, self._forms
            assert wanted is not None and forms is not None, "only a request with a form waits for room"
            if self._awaits_form(request):
                if not self._forms_in_use.has_room(wanted):
                    return
                self._forms_in_use.reserve(request.request_id, wanted)
                if (form := forms.find(wanted)) is not None:
                    self._take_form(request, form, now, updates)
                else:
                    forms.compile(wanted, partial(self._form_done, request), partial(self._awaits_form, request))
            self._awaiting_room.popleft()

    def _awaits_form(self, request: Request) -> bool:
        """Whether its client has not gone. Called from a thread of the compiler's."""
        return self._awaiting_form.get(request.request_id) is request

    def _form_done(self, request: Request, form: CompiledForm | InvalidRequestError) -> None:
        """Called from a thread of the compiler's."""
        self._compiled.append((request, form))
        self._doorbell.ring()

    def _take_compiled(self, now: Nanos, updates: list[RequestUpdate]) -> None:
        while self._compiled:
            request, form = self._compiled.popleft()
            if self._awaits_form(request):
                self._take_form(request, form, now, updates)

    def _take_form(
        self, request: Request, form: CompiledForm | InvalidRequestError, now: Nanos, updates: list[RequestUpdate]
    ) -> None:
        del self._awaiting_form[request.request_id]
        given_up = self._given_up.pop(request.request_id, ())
        if isinstance(form, InvalidRequestError):
            self._forms_in_use.release(request.request_id)
            self._refuse(request, form)
        else:
            self._forms_in_use.hold(request.request_id, form)
            self._add(request, now)
            for sample_index in given_up:
                self._abort(request.request_id, now, updates, sample_index)

    def _refuse(self, request: Request, error: InvalidRequestError | OverloadedError) -> None:
        param = error.param if isinstance(error, InvalidRequestError) else None
        self._connection.send(RequestRefused(request.request_id, type(error).__name__, str(error), param))

    def _add(self, request: Request, now: Nanos) -> None:
        self._record(Added(now, request))
        try:
            self._core.add_request(request, now)
        except (InvalidRequestError, OverloadedError) as error:
            self._forms_in_use.release(request.request_id)
            self._refuse(request, error)
        else:
            self._num_unfinished[request.request_id] = request.num_sequences

    def _give_up(self, request_id: RequestId, now: Nanos, updates: list[RequestUpdate], sample_index: int | None) -> None:
        """A request that still waits for its form waits on for those of its continuations that are wanted."""
        if request_id not in self._awaiting_form:
            self._abort(request_id, now, updates, sample_index)
        elif sample_index is not None:
            self._given_up.setdefault(request_id, []).append(sample_index)
        else:
            del self._awaiting_form[request_id]
            self._given_up.pop(request_id, None)
            self._forms_in_use.release(request_id)

    def _abort(
        self, request_id: RequestId, now: Nanos, updates: list[RequestUpdate], sample_index: int | None = None
    ) -> None:
        if request_id in self._num_unfinished:  # else it has ended already: the two crossed on the way
            self._record(Aborted(now, request_id, sample_index))
            self._collect(self._core.abort(request_id, now, sample_index=sample_index), updates)

    # What the executor did

    def _take_results(self, now: Nanos, updates: list[RequestUpdate]) -> int:
        """Returns how many there were."""
        num_results = 0
        while self._completed:
            num_results += 1
            result = self._completed.popleft()
            if isinstance(result, BaseException):
                raise result
            assert next(iter(self._in_flight)) == result.step_id, "steps are answered in the order of their plans"
            plan = self._in_flight.pop(result.step_id)
            self._record(Finished(now, result))
            self._collect(self._core.finish_step(plan, result, now), updates)
        return num_results

    def _collect(self, news: list[RequestUpdate], updates: list[RequestUpdate]) -> None:
        updates.extend(news)
        for update in news:
            if update.finish_reason is not None:
                remaining = self._num_unfinished[update.request_id] - 1
                if remaining:
                    self._num_unfinished[update.request_id] = remaining
                else:
                    del self._num_unfinished[update.request_id]
                    self._forms_in_use.release(update.request_id)

    # What comes next

    def _plan_steps(self, now: Nanos) -> None:
        while not self._stopping and (plan := self._core.begin_step(now)) is not None:
            self._record(Planned(now, plan))
            self._in_flight[plan.step_id] = plan
            self._step_token_counts.append(plan.num_tokens)
            self._executor.submit(plan, self._step_done)

    def _step_done(self, result: StepResult) -> None:
        """Called by the executor, possibly from a thread of its own."""
        self._completed.append(result)
        self._doorbell.ring()

    def _report(self, updates: list[RequestUpdate], wants_stats: bool) -> None:
        if updates:
            self._connection.send(Updates(tuple(updates), self._stats()))
        if wants_stats:
            self._connection.send(self._stats())

    def _stats(self) -> Stats:
        now = self._core.stats()
        step_token_counts, self._step_token_counts = tuple(self._step_token_counts), []
        return Stats(
            num_requests_running=now.num_running,
            num_requests_waiting=now.num_waiting,
            kv_cache_usage=now.kv_cache_usage,
            num_preemptions=now.num_preemptions,
            prefix_cache_queries=now.prefix_cache_queries,
            prefix_cache_hits=now.prefix_cache_hits,
            num_steps=now.num_steps,
            step_token_counts=step_token_counts,
            num_blocks_in_use=now.num_blocks_in_use,
            num_blocks_cached=now.num_blocks_cached,
        )

    def _record(self, event: Event) -> None:
        """Every event that reaches the mind or leaves it passes here."""
        self._is_unchecked = True
        if self._recorder is not None:
            self._recorder.write(event)


def describe_failure(error: BaseException) -> EngineFailed:
    """An error as the client tells it: an operating error in its own words, a bug with the place where it showed."""
    if isinstance(error, HeadraceError):
        return EngineFailed(type(error).__name__, str(error))
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    return EngineFailed("", f"{type(error).__name__}: {error}{place}")

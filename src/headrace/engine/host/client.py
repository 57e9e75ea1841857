"""EngineClient: the engine as the HTTP process has it. Starts the engine process, carries requests to it and text back.

Knows the life of the engine process (start, readiness, hanging, death, restart) and which answer belongs to whom. Does
not compute, does not schedule, knows no HTTP, and never blocks the event loop that it lives on.

                 start ─> STARTING ──ready──> READY ──┐
                             ^                        │ the process ends
                             │ restart, with backoff  v
                             └──────────────────── DOWN ──too often, or not wanted──> GONE
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from headrace.base import errors
from headrace.base.errors import EngineDeadError, HeadraceError, InvalidRequestError
from headrace.base.ids import RequestId
from headrace.base.system_clock import SystemClock, unix_seconds
from headrace.base.units import seconds
from headrace.engine.host.answer import Answer
from headrace.engine.host.child import EngineChild, describe_exit
from headrace.engine.host.config import ClientConfig, EngineConfig, EngineDeath
from headrace.engine.host.generation import EngineFacts, GenerationRequest, OutputChunk, Tokenizer
from headrace.engine.host.head_start import engine_command
from headrace.engine.host.known_forms import SentForms
from headrace.engine.host.messages import (
    Abort,
    EngineFailed,
    EngineMessage,
    EngineReady,
    Ping,
    RequestRefused,
    ResetPrefixCache,
    StartupPhase,
    Stats,
    Updates,
)
from headrace.engine.mind.request import Request
from headrace.engine.mind.update import RequestUpdate

_SECONDS_TO_EARN_TRUST = 60.0
"""An engine that served for so long before it died counts as a first failure again."""


class Condition(Enum):
    STARTING = "starting"
    READY = "ready"
    DOWN = "down"
    GONE = "gone"


class EngineClient:
    """Implements `generation.Engine`. Belongs to one event loop."""

    def __init__(
        self,
        config: EngineConfig,
        client_config: ClientConfig,
        *,
        load_tokenizer: Callable[[Path], Tokenizer],
        on_phase: Callable[[StartupPhase], None] = lambda _: None,
        on_log_line: Callable[[str], None] = lambda _: None,
        command: tuple[str, ...] | None = None,
    ) -> None:
        """`on_phase` hears of the start-up's phases as they end; `on_log_line` of what the process writes for people."""
        self._config = config
        self._client_config = client_config
        self._load_tokenizer = load_tokenizer
        self._on_phase = on_phase
        self._on_log_line = on_log_line
        self._command = command or engine_command()
        self.on_stats: Callable[[Stats], None] = lambda _: None
        """Hears the engine's numbers, with every step and at least once per ping interval."""

        self._condition = Condition.STARTING
        self._reason = "the engine is starting"
        """Why it cannot serve, where it cannot."""
        self._child: EngineChild | None = None
        self._sent_forms = SentForms()
        """To this child: the next knows none of them."""
        self._tokenizer: Tokenizer | None = None
        self._facts: EngineFacts | None = None
        self._kv_bytes = 0
        self._startup_seconds: dict[str, float] = {}
        self._ready: asyncio.Future[EngineReady] | None = None
        self._inboxes: dict[RequestId, _Inbox] = {}
        self._watch = _HangWatch(client_config)
        self._gone: asyncio.Future[EngineDeadError] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # Life

    async def start(self) -> None:
        """Returns when the engine is ready. Raises what kept it from that, in the engine's own words."""
        self._gone = asyncio.get_running_loop().create_future()
        try:
            child = self._begin_launch()  # before anything else of the start takes this process's time
            _, ready = await asyncio.gather(self._load_words(), self._await_ready(child))
        except BaseException:
            await self.close()
            raise
        self._become_ready(ready)
        self._tasks = [asyncio.create_task(self._supervise()), asyncio.create_task(self._ping())]

    async def close(self) -> None:
        """Ends the engine process; what is in flight ends with it. Safe to call at any time, and again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._child is not None:
            is_ready = self._condition is Condition.READY
            await self._child.close(self._client_config.shutdown_timeout_s if is_ready else 0)
        self._become_unready(Condition.GONE, "the server is shutting down")

    async def wait_until_gone(self) -> EngineDeadError:
        """Returns when the engine is dead for good, with the reason."""
        assert self._gone is not None, "start() comes first"
        return await asyncio.shield(self._gone)

    @property
    def pid(self) -> int:
        """Of the engine process."""
        assert self._child is not None, "start() comes first"
        return self._child.pid

    def kill(self) -> None:
        """Ends the engine process at once, for a process that is about to end itself."""
        if self._child is not None:
            self._child.kill()

    @property
    def is_gone(self) -> bool:
        """Whether the engine died and will not come back."""
        return self._gone is not None and self._gone.done()

    @property
    def kv_bytes(self) -> int:
        """Memory of the KV cache."""
        return self._kv_bytes

    @property
    def facts(self) -> EngineFacts:
        assert self._facts is not None, "start() comes first"
        return self._facts

    @property
    def tokenizer(self) -> Tokenizer:
        assert self._tokenizer is not None, "start() comes first"
        return self._tokenizer

    @property
    def num_open_requests(self) -> int:
        return len(self._inboxes)

    async def check_health(self) -> None:
        self._require_ready()
        if complaint := self._watch.complaint():
            raise EngineDeadError(complaint)

    async def reset_prefix_cache(self) -> None:
        self._require_ready().send(ResetPrefixCache())

    # Requests

    async def generate(self, request: GenerationRequest) -> AsyncIterator[OutputChunk]:
        child = self._require_ready()
        request.sampling.check_vocabulary(self.facts.vocab_size)
        if request.request_id in self._inboxes:
            raise InvalidRequestError(f"request_id {request.request_id!r} is in use", param="request_id")
        answers = [Answer(request, index, self.tokenizer) for index in range(request.num_sequences)]
        inbox = self._inboxes[request.request_id] = _Inbox(request.num_sequences)
        child.send(self._sent_forms.message(_for_engine(request, self.tokenizer.eos_token_ids)))
        try:
            num_open = len(answers)
            while num_open:
                for index, updates in await inbox.take():
                    answer = answers[index]
                    was_stopped = answer.wants_no_more
                    chunk = answer.take(updates)
                    if answer.is_over:
                        num_open -= 1
                        inbox.num_open = num_open
                    elif answer.wants_no_more and not was_stopped:
                        child.send(Abort((request.request_id,), sample_index=index))
                    if chunk is not None:
                        yield chunk
                        if not answer.wants_no_more and request.has_enough(index):
                            answer.give_up()
                            child.send(Abort((request.request_id,), sample_index=index))
        finally:
            # Reached at the end, and as well when the reader goes: then the engine must stop computing for nobody.
            del self._inboxes[request.request_id]
            if inbox.num_open and inbox.error is None:
                child.send(Abort((request.request_id,)))

    def _require_ready(self) -> EngineChild:
        if self._condition is not Condition.READY or self._child is None:
            raise EngineDeadError(self._reason)
        return self._child

    # What the engine says

    def _hear(self, message: EngineMessage) -> None:
        self._watch.heard()
        match message:
            case Updates(updates, stats):
                for update in updates:
                    inbox = self._inboxes.get(update.request_id)
                    if inbox is not None:  # else its reader has gone, and the abort is on its way
                        inbox.put(update)
                self._take_stats(stats)
            case Stats():
                self._take_stats(message)
            case RequestRefused(request_id, kind, text, param):
                inbox = self._inboxes.get(request_id)
                if inbox is not None:
                    inbox.fail(_error_named(kind, text, param))
            case StartupPhase(name, duration_s):
                self._startup_seconds[name] = duration_s
                self._on_phase(message)
            case EngineReady():
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(message)
            case EngineFailed(kind, text):
                self._has_failed(_error_named(kind, text) if kind else EngineDeadError(f"the engine failed: {text}"))

    def _take_stats(self, stats: Stats) -> None:
        self._watch.take(stats)
        self.on_stats(stats)

    def _has_failed(self, error: HeadraceError) -> None:
        """The engine cannot start, or cannot go on; its process will end by itself."""
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
        self._become_unready(Condition.DOWN, str(error))
        if self._child is not None:
            asyncio.get_running_loop().call_later(self._client_config.shutdown_timeout_s, self._child.kill)

    # Start, death, restart

    async def _load_words(self) -> None:
        clock = SystemClock()
        began = clock.now()
        self._tokenizer = await asyncio.to_thread(self._load_tokenizer, Path(self._config.model_path))
        phase = StartupPhase("load_tokenizer", seconds(clock.now() - began), f"{self._tokenizer.vocab_size} tokens")
        self._hear(phase)

    def _begin_launch(self) -> EngineChild:
        """A new process, told what to do."""
        self._ready = asyncio.get_running_loop().create_future()
        self._sent_forms = SentForms()
        self._child = EngineChild(self._config, command=self._command, on_message=self._hear, on_log_line=self._on_log_line)
        return self._child

    async def _await_ready(self, child: EngineChild) -> EngineReady:
        assert self._ready is not None, "it was launched"
        ready = self._ready
        awaited: list[asyncio.Future[Any]] = [ready, child.ended]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            self._has_failed(EngineDeadError(f"the engine process {describe_exit(child.ended.result())} while starting"))
        if ready.exception() is not None:
            await child.close(0)
        return ready.result()

    def _become_ready(self, ready: EngineReady) -> None:
        self._facts = EngineFacts(
            served_model_names=self._client_config.served_model_names,
            model_path=self._config.model_path,
            max_model_len=ready.max_model_len,
            vocab_size=ready.vocab_size,
            block_size=ready.block_size,
            num_blocks=ready.num_blocks,
            dtype=ready.dtype,
            device=ready.device,
            policy=str(self._config.policy),
            execution_identity=ready.execution_identity,
            started_unix_s=unix_seconds(),
            startup_seconds=dict(self._startup_seconds),
            default_sampling=ready.generation_defaults,
        )
        self._kv_bytes = ready.kv_bytes
        self._watch.restart()
        self._condition, self._reason = Condition.READY, ""

    def _become_unready(self, condition: Condition, reason: str) -> None:
        """Tells every open stream, at once."""
        if self._condition is Condition.GONE:
            return
        self._condition, self._reason = condition, reason
        for inbox in self._inboxes.values():
            inbox.fail(EngineDeadError(reason))

    async def _supervise(self) -> None:
        """Waits for the process to end unasked, and does what was ordered for that case."""
        loop = asyncio.get_running_loop()
        num_failures = 0
        while True:
            began = loop.time()
            await self._note_end()
            num_failures = 1 if loop.time() - began > _SECONDS_TO_EARN_TRUST else num_failures + 1
            while self._condition is not Condition.READY:
                if not self._may_restart(num_failures):
                    self._give_up(num_failures)
                    return
                await asyncio.sleep(self._client_config.restart_backoff_s * 2 ** (num_failures - 1))
                try:
                    self._become_ready(await self._await_ready(self._begin_launch()))
                except (HeadraceError, OSError) as error:
                    self._become_unready(Condition.DOWN, f"the engine could not be restarted: {error}")
                    num_failures += 1

    async def _note_end(self) -> None:
        assert self._child is not None
        status = await asyncio.shield(self._child.ended)
        if self._condition is Condition.READY:
            self._become_unready(Condition.DOWN, f"the engine process {describe_exit(status)}")

    def _may_restart(self, num_failures: int) -> bool:
        wanted = self._client_config.on_engine_death is EngineDeath.RESTART
        return wanted and num_failures <= self._client_config.max_restarts

    def _give_up(self, num_failures: int) -> None:
        reason = self._reason if num_failures == 1 else f"{self._reason} ({num_failures} failures in a row)"
        self._become_unready(Condition.GONE, reason)
        assert self._gone is not None
        self._gone.set_result(EngineDeadError(reason))

    async def _ping(self) -> None:
        """Asks for numbers, and notices where no answer comes."""
        while True:
            await asyncio.sleep(self._client_config.ping_interval_s)
            if self._condition is Condition.READY and self._child is not None:
                self._watch.asked()
                self._child.send(Ping())


class _Inbox:
    """What the engine said about one request and its reader has not taken yet. Bounded by the answer's own length."""

    __slots__ = ("_updates", "_waiter", "error", "num_open")

    def __init__(self, num_sequences: int) -> None:
        self._updates: list[RequestUpdate] = []
        self._waiter: asyncio.Future[None] | None = None
        self.error: HeadraceError | None = None
        self.num_open = num_sequences
        """Continuations that have not ended."""

    def put(self, update: RequestUpdate) -> None:
        self._updates.append(update)
        self._wake()

    def fail(self, error: HeadraceError) -> None:
        """After what is there already, the reader gets this."""
        self.error = self.error or error
        self._wake()

    async def take(self) -> list[tuple[int, list[RequestUpdate]]]:
        """All that is there, by continuation; waits for something. However slow its reader, there is one wake-up per
        take."""
        while not self._updates:
            if self.error is not None:
                raise self.error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        updates, self._updates = self._updates, []
        if len(updates) == 1:
            return [(updates[0].sample_index, updates)]
        by_index: dict[int, list[RequestUpdate]] = {}
        for update in updates:
            by_index.setdefault(update.sample_index, []).append(update)
        return list(by_index.items())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _HangWatch:
    """Whether the engine that should answer does. Counts pings, not seconds, so that a machine's sleep is no hang."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self.restart()

    def restart(self) -> None:
        self._num_unanswered = 0
        self._num_steps = -1
        self._num_pings_without_step = 0

    def asked(self) -> None:
        self._num_unanswered += 1
        self._num_pings_without_step += 1

    def heard(self) -> None:
        self._num_unanswered = 0

    def take(self, stats: Stats) -> None:
        if stats.num_steps != self._num_steps or stats.num_requests_running == 0:
            self._num_steps, self._num_pings_without_step = stats.num_steps, 0

    def complaint(self) -> str:
        """What is wrong, or nothing."""
        interval_s = self._config.ping_interval_s
        silent_s = self._num_unanswered * interval_s
        if silent_s > self._config.hang_timeout_s:
            return f"the engine process has not answered for {silent_s:.0f} s"
        stuck_s = self._num_pings_without_step * interval_s
        if stuck_s > self._config.step_timeout_s:
            return f"the engine has finished no step for {stuck_s:.0f} s, though requests run"
        return ""


def _for_engine(request: GenerationRequest, end_token_ids: tuple[int, ...]) -> Request:
    """`end_token_ids`: what ends a text by the tokenizer's account, which may name more than the model's description."""
    sampling = request.sampling
    if not sampling.ignore_eos:
        stop_token_ids = tuple(dict.fromkeys((*sampling.stop_token_ids, *end_token_ids)))
        sampling = msgspec.structs.replace(sampling, stop_token_ids=stop_token_ids)
    return Request(
        request_id=request.request_id,
        prompt_token_ids=tuple(request.prompt_token_ids),
        sampling=sampling,
        num_sequences=request.num_sequences,
        priority=request.priority,
        cache_salt=request.cache_salt,
        structured_output=request.structured_output,
    )


def _error_named(kind: str, message: str, param: str | None = None) -> HeadraceError:
    """The exception that the other process raised."""
    error_type = getattr(errors, kind, HeadraceError)
    assert isinstance(error_type, type) and issubclass(error_type, HeadraceError), kind
    error = error_type(message)
    if isinstance(error, InvalidRequestError):
        error.param = param
    return error

"""What every door needs, in one place: the engine, its words, the limits, the numbers, and what is in progress.

Made once by `create_app`. Knows how to run text work without stalling the event loop; not what any door does with it.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from headrace.base.clock import Clock
from headrace.engine.host.generation import Engine
from headrace.obs.metrics import ServingMetrics
from headrace.server.config import ServerConfig
from headrace.server.known_schemas import KnownSchemas

T = TypeVar("T")

_NUM_TEXT_THREADS = 2
_INLINE_CHARS = 2_000
"""Text up to this size is tokenised in about half a millisecond: less than a thread's detour is worth."""


class ChatRenderer(Protocol):
    """Turns a conversation into a prompt's text. `engine/host/chat_template.py` has the real one."""

    @property
    def source(self) -> str | None:
        """The template itself, which shows how the model writes calls and reasoning."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """Contents are texts or lists of text parts. Raises InvalidRequestError where the template will not have them."""
        ...


class TextPool:
    """Rendering and tokenising: at once where it is short, in a thread where it would hold up every other stream."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_NUM_TEXT_THREADS, thread_name_prefix="text")

    async def run(self, num_chars: int, work: Callable[[], T]) -> T:
        """The result of `work`, which handles a text of so many characters."""
        if num_chars <= _INLINE_CHARS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(eq=False)
class InFlight:
    """The requests in progress, so that they can be counted, and ended when the server must go."""

    tasks: dict[asyncio.Task[None], None] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.tasks)

    def add(self, task: asyncio.Task[None]) -> None:
        self.tasks[task] = None
        task.add_done_callback(self.tasks.pop)

    def end_all(self) -> None:
        """Cancels them; each then tells its client that the server shut down."""
        for task in list(self.tasks):
            task.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What doors share."""

    engine: Engine
    config: ServerConfig
    metrics: ServingMetrics
    clock: Clock
    chat_template: ChatRenderer | None
    """The model's own; None where it has none."""
    compile_chat_template: Callable[[str], ChatRenderer] | None
    """Makes a renderer of a template that a client sent; None where clients are not trusted with that."""
    known_schemas: KnownSchemas = field(default_factory=KnownSchemas)
    text_pool: TextPool = field(default_factory=TextPool)
    in_flight: InFlight = field(default_factory=InFlight)
    request_numbers: Iterator[int] = field(default_factory=itertools.count)
    """Make engine requests' ids unique, whatever ids clients choose."""

    @property
    def system_fingerprint(self) -> str:
        return f"fp_{self.engine.facts.execution_identity[:12]}"

"""The real server over real sockets with the fake engine behind it, in a thread of its own."""

import asyncio
import queue
import threading
from types import TracebackType
from typing import Self

import openai
import uvloop
from tests.fakes import FakeChatTemplate, FakeEngine
from tests.patience import PATIENCE_S

from headrace.obs.metrics import ServingMetrics
from headrace.server.app import create_app, serve_http
from headrace.server.config import ServerConfig


class LiveServer:
    """`with LiveServer(engine) as server: openai.OpenAI(base_url=server.url + "/v1", …)`"""

    def __init__(
        self,
        engine: FakeEngine | None = None,
        config: ServerConfig | None = None,
        *,
        drain_timeout_s: float = 10.0,
        chat_template: FakeChatTemplate | None = None,
    ) -> None:
        self.engine = engine or FakeEngine()
        self.url = ""
        self._config = config or ServerConfig(access_log=False)
        self._drain_timeout_s = drain_timeout_s
        self._chat_template = chat_template or FakeChatTemplate()
        self._started: queue.Queue[str | BaseException] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        outcome = self._started.get(timeout=PATIENCE_S)
        if isinstance(outcome, BaseException):
            raise outcome
        self.url = outcome
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.begin_to_stop()
        self.wait_until_stopped()

    def begin_to_stop(self) -> None:
        """As a signal would."""
        assert self._loop is not None
        assert self._stop is not None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)

    def wait_until_stopped(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server does not end"

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as error:
                self._started.put(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        facts = self.engine.facts
        metrics = ServingMetrics(model_name=facts.served_model_names[0], max_model_len=facts.max_model_len)
        await serve_http(
            create_app(self.engine, self._config, metrics, chat_template=self._chat_template),
            host="127.0.0.1",
            port=0,
            drain_timeout_s=self._drain_timeout_s,
            on_started=self._started.put,
            stop=self._stop,
        )

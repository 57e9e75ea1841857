"""The HTTP doors of an engine that has started: put together, opened, and seen to their end.

Knows the options that concern them. Does not know how the engine came to be, nor which doors there are (`server/app.py`).
"""

import asyncio
import logging
import socket

from rich.console import Console

from headrace.cli.serve_options import ServeOptions
from headrace.cli.startup import Invitation
from headrace.engine.host.chat_template import ChatTemplate
from headrace.engine.host.client import EngineClient
from headrace.engine.host.memory import return_freed_memory
from headrace.engine.host.tokenizer import TextTokenizer
from headrace.obs.metrics import ServingMetrics
from headrace.server.app import create_app, serve_http
from headrace.server.config import ServerConfig

EXIT_OK = 0
EXIT_ENGINE_DIED = 4

LINGER_S = 1.0
"""How long a server whose engine died for good still answers, so that streams carry the error and /health says it."""

_TIDY_AFTER_S = 1.0
"""From the start: the first answer does not wait for it."""

_LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")

_logger = logging.getLogger("headrace.serve")


class Doors:
    """Made while the engine still starts; opened when it is ready."""

    def __init__(
        self, tokenizer: TextTokenizer, options: ServeOptions, config: ServerConfig, chat_template: str | None
    ) -> None:
        """`chat_template`: instead of the model's own. Raises CheckpointError where it is none."""
        self._options = options
        self._config = config
        self._special_tokens = tokenizer.special_tokens
        source, file = tokenizer.chat_template, tokenizer.chat_template_file
        if chat_template:
            source, file = chat_template, options.chat_template
        self._template = None if source is None else ChatTemplate(source, self._special_tokens, file=file)

    async def answer(self, client: EngineClient, listener: socket.socket, *, stop: asyncio.Event, console: Console) -> int:
        """Serves until told to stop, or until the engine is dead for good. Returns the process's exit status."""
        options, facts = self._options, client.facts
        metrics = ServingMetrics(model_name=facts.served_model_names[0], max_model_len=facts.max_model_len)
        client.on_stats = metrics.observe_stats
        app = create_app(
            client,
            self._config,
            metrics,
            chat_template=self._template,
            compile_chat_template=self._compile_chat_template if options.trust_request_chat_template else None,
        )

        def on_started(url: str) -> None:
            self._invite(url, facts.served_model_names[0], console)
            asyncio.get_running_loop().call_later(_TIDY_AFTER_S, return_freed_memory)

        watching = asyncio.create_task(_stop_when_gone(client, stop))
        try:
            await serve_http(
                app,
                host=options.host,
                port=options.port,
                drain_timeout_s=options.drain_timeout_s,
                on_started=on_started,
                stop=stop,
                listener=listener,
            )
        finally:
            watching.cancel()
        return EXIT_ENGINE_DIED if client.is_gone else EXIT_OK

    def _compile_chat_template(self, text: str) -> ChatTemplate:
        return ChatTemplate.of_request(text, self._special_tokens)

    def _invite(self, url: str, model_name: str, console: Console) -> None:
        needs_key = self._config.api_key is not None
        Invitation(url=url, model_name=model_name, can_chat=self._template is not None, needs_key=needs_key).show(console)
        if not needs_key and self._options.host not in _LOCAL_HOSTS:
            _logger.warning("everybody who reaches this machine may ask: --api-key would keep strangers out")


async def _stop_when_gone(client: EngineClient, stop: asyncio.Event) -> None:
    _logger.error("%s", await client.wait_until_gone())
    await asyncio.sleep(LINGER_S)
    stop.set()

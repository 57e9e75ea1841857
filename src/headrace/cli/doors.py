"""The HTTP doors of an engine that has started: put together, opened, and seen to their end.

Knows the options that concern them. Does not know how the engine came to be, nor which doors there are (`server/app.py`).
"""

import asyncio
import logging

from rich.console import Console

from headrace.cli.serve_options import ServeOptions
from headrace.cli.startup import Invitation
from headrace.engine.host.chat_template import ChatTemplate
from headrace.engine.host.client import EngineClient
from headrace.engine.host.tokenizer import TextTokenizer
from headrace.obs.metrics import ServingMetrics
from headrace.server.app import create_app, serve_http
from headrace.server.config import ServerConfig

EXIT_OK = 0
EXIT_ENGINE_DIED = 4

LINGER_S = 1.0
"""How long a server whose engine died for good still answers, so that streams carry the error and /health says it."""

_LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")

_logger = logging.getLogger("headrace.serve")


async def answer(
    client: EngineClient,
    *,
    options: ServeOptions,
    config: ServerConfig,
    chat_template: str | None,
    stop: asyncio.Event,
    console: Console,
) -> int:
    """Serves until told to stop, or until the engine is dead for good. Returns the process's exit status."""
    facts, tokenizer, name = client.facts, client.tokenizer, client.facts.served_model_names[0]
    metrics = ServingMetrics(model_name=name, max_model_len=facts.max_model_len)
    client.on_stats = metrics.observe_stats
    assert isinstance(tokenizer, TextTokenizer)
    source = chat_template or tokenizer.chat_template
    special_tokens = tokenizer.special_tokens
    template = ChatTemplate(source, special_tokens)
    app = create_app(
        client,
        config,
        metrics,
        chat_template=template if source is not None else None,
        compile_chat_template=(
            (lambda text: ChatTemplate.of_request(text, special_tokens)) if options.trust_request_chat_template else None
        ),
    )
    needs_key = config.api_key is not None

    def on_started(url: str) -> None:
        Invitation(url=url, model_name=name, can_chat=source is not None, needs_key=needs_key).show(console)
        if not needs_key and options.host not in _LOCAL_HOSTS:
            _logger.warning("everybody who reaches this machine may ask: --api-key would keep strangers out")

    watching = asyncio.create_task(_stop_when_gone(client, stop))
    try:
        await serve_http(
            app,
            host=options.host,
            port=options.port,
            drain_timeout_s=options.drain_timeout_s,
            on_started=on_started,
            stop=stop,
        )
    finally:
        watching.cancel()
    return EXIT_ENGINE_DIED if client.is_gone else EXIT_OK


async def _stop_when_gone(client: EngineClient, stop: asyncio.Event) -> None:
    _logger.error("%s", await client.wait_until_gone())
    await asyncio.sleep(LINGER_S)
    stop.set()

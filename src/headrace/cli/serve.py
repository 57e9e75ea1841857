"""`headrace serve`: puts an engine and its HTTP doors together, shows how they start, and sees them to their end.

The composition root of a server: the only place that sees the options of the engine, of its client and of the doors at
once. Decides nothing that they could decide.
"""

import argparse
import asyncio
import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from headrace.base.errors import ConfigurationError
from headrace.base.system_clock import SystemClock
from headrace.cli.config_file import read_config_file
from headrace.cli.environment import read_environment
from headrace.cli.model_names import names_served, resolve_model
from headrace.cli.serve_options import ServeOptions, add_options, merge
from headrace.cli.startup import Invitation, StartupDisplay
from headrace.engine.host.chat_template import ChatTemplate
from headrace.engine.host.client import EngineClient
from headrace.engine.host.config import ClientConfig, EngineConfig, EngineDeath
from headrace.engine.host.tokenizer import TextTokenizer, load_tokenizer
from headrace.engine.mind.config import SchedulingPolicy
from headrace.obs.logging import LogFormat, configure_logging
from headrace.obs.metrics import ServingMetrics
from headrace.server.app import create_app, serve_http, stop_on_signals
from headrace.server.config import ServerConfig
from headrace.server.listen import check_address

EXIT_OK = 0
EXIT_ENGINE_DIED = 4
EXIT_INTERRUPTED = 130

LINGER_S = 1.0
"""How long a server whose engine died for good still answers, so that streams carry the error and /health says it."""

_LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")

_logger = logging.getLogger("headrace.serve")


@dataclass(frozen=True, slots=True)
class Assembly:
    """The options of `serve`, sorted by whom they are for."""

    engine: EngineConfig
    client: ClientConfig
    server: ServerConfig
    chat_template: str | None


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "serve",
        usage="headrace serve [MODEL] [options]",
        help="serve a model over HTTP",
        description="Serves a model over the OpenAI API, with a chat page at the root. Fetches it first if need be.",
        epilog="Every option may stand in a TOML file as well (--config), with underscores: max_model_len = 4096.",
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="a TOML file with options; the command line wins")
    add_options(parser)
    parser.set_defaults(run=run)


def run(words: argparse.Namespace) -> int:
    from_file = read_config_file(words.config) if words.config is not None else {}
    options = merge(vars(words), from_file)
    configure_logging(level=options.log_level, log_format=LogFormat(options.log_format))
    console = Console()
    # What needs no model is checked before one is fetched or loaded.
    check_address(options.host, options.port)
    _assemble(options, Path())
    path = resolve_model(options.model, revision=options.revision or None, console=console)
    assembly = _assemble(options, path)
    with asyncio.Runner(loop_factory=_event_loop_factory()) as runner:
        return runner.run(_serve(options, assembly, console))


def _assemble(options: ServeOptions, path: Path) -> Assembly:
    """Raises ConfigurationError where options contradict each other or their limits."""
    if options.drain_timeout_s < 0:
        raise ConfigurationError(f"drain_timeout_s must not be negative (got {options.drain_timeout_s:g})")
    return Assembly(
        engine=EngineConfig(
            model_path=str(path),
            dtype=options.dtype,
            device=options.device,
            ops=options.ops,
            attention_backend=options.attention_backend,
            kv_cache_dtype=options.kv_cache_dtype,
            quantization=options.quantization,
            batch_invariant=options.batch_invariant,
            num_threads=options.threads,
            max_model_len=options.max_model_len,
            block_size=options.block_size,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_num_seqs=options.max_num_seqs,
            max_tokens_per_prompt_chunk=options.max_tokens_per_prompt_chunk,
            policy=SchedulingPolicy(options.scheduling_policy),
            enable_prefix_caching=options.enable_prefix_caching,
            max_steps_in_flight=options.max_steps_in_flight,
            max_num_queued_requests=options.max_num_queued_requests,
            kv_cache_bytes=options.kv_cache_memory,
            memory_fraction=options.memory_fraction,
            structured_output_backend=options.structured_output_backend,
            record_steps=options.record_steps,
        ),
        client=ClientConfig(
            served_model_names=options.served_model_name or names_served(options.model, path),
            on_engine_death=EngineDeath(options.on_engine_death),
            hang_timeout_s=options.hang_timeout_s,
        ),
        server=ServerConfig(
            api_key=options.api_key or read_environment().api_key,
            cors_origins=options.allowed_origins,
            access_log=options.access_log,
            tool_call_parser=options.tool_call_parser or None,
            reasoning_parser=options.reasoning_parser or None,
        ),
        chat_template=_read_chat_template(options.chat_template),
    )


def _read_chat_template(path: str) -> str | None:
    if not path:
        return None
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"chat_template: cannot read {path!r}: {error}") from None


async def _serve(options: ServeOptions, assembly: Assembly, console: Console) -> int:
    display = StartupDisplay(console, SystemClock())
    client = EngineClient(
        assembly.engine,
        assembly.client,
        load_tokenizer=load_tokenizer,
        on_phase=display.phase_over,
        on_log_line=logging.getLogger("headrace.engine").warning,
    )
    stop = asyncio.Event()

    def end_at_once() -> None:
        client.kill()
        os._exit(EXIT_INTERRUPTED)

    with stop_on_signals(stop, on_second=end_at_once):
        try:
            display.begin(assembly.client.served_model_names[0])
            if not await _has_started(client, stop):
                return EXIT_INTERRUPTED
            display.ready(client.facts, max_num_seqs=options.max_num_seqs, kv_bytes=client.kv_bytes)
            return await _answer(options, assembly, client, stop, console)
        finally:
            display.end()
            await client.close()


async def _has_started(client: EngineClient, stop: asyncio.Event) -> bool:
    """False where somebody stopped it first."""
    starting, stopping = asyncio.create_task(client.start()), asyncio.create_task(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        starting.result()
        return True
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    return False


async def _answer(
    options: ServeOptions, assembly: Assembly, client: EngineClient, stop: asyncio.Event, console: Console
) -> int:
    """Serves until told to stop, or until the engine is dead for good."""
    facts, tokenizer, name = client.facts, client.tokenizer, client.facts.served_model_names[0]
    metrics = ServingMetrics(model_name=name, max_model_len=facts.max_model_len)
    client.on_stats = metrics.observe_stats
    assert isinstance(tokenizer, TextTokenizer)
    source = assembly.chat_template or tokenizer.chat_template
    special_tokens = tokenizer.special_tokens
    template = ChatTemplate(source, special_tokens)
    app = create_app(
        client,
        assembly.server,
        metrics,
        chat_template=template if source is not None else None,
        compile_chat_template=(
            (lambda text: ChatTemplate.of_request(text, special_tokens)) if options.trust_request_chat_template else None
        ),
    )
    needs_key = assembly.server.api_key is not None

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


def _event_loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    """uvloop's, where it exists: the same loop, in C."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop

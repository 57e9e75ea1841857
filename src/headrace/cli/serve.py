"""`headrace serve`: puts an engine and its HTTP doors together, shows how they start, and sees them to their end.

The composition root of a server: the only place that sees the options of the engine, of its client and of the doors at
once. Decides nothing that they could decide.
"""

import argparse
import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import Awaitable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from headrace.base.errors import ConfigurationError
from headrace.base.system_clock import SystemClock
from headrace.cli.config_file import read_config_file
from headrace.cli.environment import read_environment
from headrace.cli.model_names import names_served, resolve_model
from headrace.cli.serve_options import ServeOptions, add_options, merge
from headrace.cli.startup import StartupDisplay
from headrace.engine.grammar.registry import ENFORCES_TAGS
from headrace.engine.host.client import EngineClient
from headrace.engine.host.config import ClientConfig, EngineConfig, EngineDeath
from headrace.engine.mind.config import SchedulingPolicy
from headrace.engine.ops.registry import check_something_computes
from headrace.measure.bench.event_loop import event_loop_factory
from headrace.obs.logging import LogFormat, configure_logging
from headrace.server.address import bind, check_address
from headrace.server.config import ServerConfig
from headrace.server.loading import answering_while_loading
from headrace.server.signals import stop_on_signals

if TYPE_CHECKING:
    from headrace.cli.doors import Doors
    from headrace.engine.host.tokenizer import TextTokenizer

EXIT_INTERRUPTED = 130


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
    check_something_computes(options.ops)
    check_address(options.host, options.port)
    _assemble(options, Path())
    path = resolve_model(options.model, revision=options.revision or None, console=console)
    assembly = _assemble(options, path)
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        return runner.run(_serve(options, assembly, console))


def _assemble(options: ServeOptions, path: Path) -> Assembly:
    """Raises ConfigurationError where options contradict each other or their limits."""
    if options.drain_timeout_s < 0:
        raise ConfigurationError(f"drain_timeout_s must not be negative (got {options.drain_timeout_s:g})")
    if not options.hang_timeout_s > 0:
        raise ConfigurationError(f"hang_timeout_s must be above 0, not {options.hang_timeout_s:g}")
    if options.record_steps and Path(options.record_steps).is_dir():
        raise ConfigurationError(f"record_steps: {options.record_steps!r} is a folder: name a file in it")
    if options.record_steps and not (folder := Path(options.record_steps).parent).is_dir():
        raise ConfigurationError(f"record_steps: {options.record_steps!r} cannot be written: there is no folder {folder}")
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
            enforce_eager=options.enforce_eager,
            max_model_len=options.max_model_len,
            block_size=options.block_size,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_num_seqs=options.max_num_seqs,
            max_tokens_per_prompt_chunk=options.max_tokens_per_prompt_chunk,
            min_prompt_tokens_per_step=options.min_prompt_tokens_per_step,
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
            enforces_tags=options.structured_output_backend in ENFORCES_TAGS,
        ),
        chat_template=_read_chat_template(options.chat_template),
    )


def _read_chat_template(path: str) -> str | None:
    if not path:
        return None
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"chat_template: {path!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"chat_template: {path!r} is no UTF-8: {error}") from None


async def _serve(options: ServeOptions, assembly: Assembly, console: Console) -> int:
    display = StartupDisplay(console, SystemClock())
    words = _Words()
    client = EngineClient(
        assembly.engine,
        assembly.client,
        load_tokenizer=words.load,
        on_phase=display.phase_over,
        on_log_line=logging.getLogger("headrace.engine").warning,
    )
    stop = asyncio.Event()

    def end_at_once() -> None:
        client.kill()
        os._exit(EXIT_INTERRUPTED)

    with stop_on_signals(stop, on_second=end_at_once), contextlib.closing(bind(options.host, options.port)) as listener:
        try:
            display.begin(assembly.client.served_model_names[0])
            async with answering_while_loading(listener):
                doors = await _start(client, _prepare_doors(words, options, assembly), stop)
            if doors is None:
                return EXIT_INTERRUPTED
            _collect_from_now_on()
            display.ready(client.facts, max_num_seqs=options.max_num_seqs, kv_bytes=client.kv_bytes)
            return await doors.answer(client, listener, stop=stop, console=console)
        finally:
            display.end()
            await client.close()


def _collect_from_now_on() -> None:
    """Garbage. What a start leaves (modules, the vocabulary) stays for good: never looked through again, it stops nobody."""
    gc.freeze()
    gc.enable()


class _Words:
    """The tokenizer, once for the engine's client and once for the doors, which need it sooner than the engine is ready."""

    def __init__(self) -> None:
        self.loaded: Future[TextTokenizer] = Future()

    def load(self, path: Path) -> "TextTokenizer":
        try:
            from headrace.engine.host.tokenizer import load_tokenizer  # once the engine has been told what to load

            tokenizer = load_tokenizer(path)
        except BaseException as error:
            self.loaded.set_exception(error)
            raise
        self.loaded.set_result(tokenizer)
        return tokenizer


async def _prepare_doors(words: _Words, options: ServeOptions, assembly: Assembly) -> "Doors":
    """What speaks HTTP takes as long to import as all else here: done in threads, while the engine starts."""
    make_doors = await asyncio.to_thread(_import_doors)
    tokenizer = await asyncio.wrap_future(words.loaded)
    return await asyncio.to_thread(make_doors, tokenizer, options, assembly.server, assembly.chat_template)


def _import_doors() -> "type[Doors]":
    from headrace.cli.doors import Doors

    return Doors


async def _start(client: EngineClient, preparing: Awaitable["Doors"], stop: asyncio.Event) -> "Doors | None":
    """None where somebody stopped it first."""
    starting, stopping = asyncio.gather(client.start(), preparing), asyncio.create_task(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        return starting.result()[1]
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    return None

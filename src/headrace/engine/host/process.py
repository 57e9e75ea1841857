"""The engine process, from its first line to its exit status: `python -m headrace.engine.host.process`.

Knows the order of the start-up, how the KV cache's size is decided, and when to die: with its parent, at once,
whatever it is doing. Does not know what happens in a turn (`loop.py`), nor HTTP.

Its parent writes one line of JSON, a `Launch`, to its standard input, perhaps some time after the start (`head_start.py`),
and keeps that pipe open: its end is the sign that the parent is gone. All else goes over the socket that the line names.
Standard error is for people. All imports come before that line is read, except torch's, which take seconds: the parent's
death must be noticed during them.
"""

import contextlib
import gc
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

import msgspec

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError
from headrace.base.system_clock import SystemClock
from headrace.base.units import format_bytes, seconds
from headrace.engine.executor.in_process import InProcessExecutor
from headrace.engine.grammar.cache import FormCache
from headrace.engine.grammar.protocol import Vocabulary
from headrace.engine.grammar.registry import check_installed
from headrace.engine.host.config import EngineConfig
from headrace.engine.host.connection import Connection, engine_end
from headrace.engine.host.grammar import FormCompiler, load_forms, load_vocabulary
from headrace.engine.host.loop import EXIT_FAILED, EngineLoop, describe_failure
from headrace.engine.host.memory import KVCacheSize, available_bytes, return_freed_memory, size_kv_cache
from headrace.engine.host.messages import ClientMessage, EngineMessage, EngineReady, StartupPhase
from headrace.engine.host.recording import Opening, RecordingWriter
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.worker.constraint import Masks
from headrace.engine.worker.worker import Worker, WorkerConfig

EXIT_ORPHANED = 3
"""The parent was gone: nobody is left to tell."""

CPU_MEMORY_FRACTION = 0.4
GPU_MEMORY_FRACTION = 0.9


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What the parent says to begin with."""

    endpoint: str
    """The socket on which the parent listens."""
    launched: Nanos
    """When the parent started this process, by the machine's clock."""
    config: EngineConfig


def main() -> int:
    # A terminal's Ctrl-C reaches every process of its group; this one goes on until the parent has drained.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = _read_line(sys.stdin.fileno())
    if not line:
        return EXIT_ORPHANED  # it had a head start, and the parent then found nothing to serve
    launch = msgspec.json.decode(line, type=Launch)
    threading.Thread(target=_die_with_parent, args=(sys.stdin.fileno(),), daemon=True).start()
    connection = engine_end(launch.endpoint)
    try:
        return serve(launch, connection)
    except Exception as error:
        failure = describe_failure(error)
        if not failure.kind:
            traceback.print_exception(error, file=sys.stderr)
        connection.send(failure)
        return EXIT_FAILED
    finally:
        connection.close()


def serve(launch: Launch, connection: Connection[EngineMessage, ClientMessage]) -> int:
    """Loads, says that it is ready, and serves until told to stop."""
    config, clock = launch.config, SystemClock()

    def report(name: str, duration_s: float, detail: str) -> None:
        connection.send(StartupPhase(name, duration_s, detail))

    report("start_process", seconds(clock.now() - launch.launched), f"pid {os.getpid()}")
    check_installed(config.structured_output_backend)
    worker = Worker(
        WorkerConfig(
            model_path=config.model_path,
            dtype=config.dtype,
            block_size=config.block_size,
            max_model_len=max(0, config.max_model_len),
            num_threads=config.num_threads,
            device=config.device,
            ops=config.ops,
            attention_backend=config.attention_backend,
            kv_cache_dtype=config.kv_cache_dtype,
            quantization=config.quantization,
            batch_invariant=config.batch_invariant,
            enforce_eager=config.enforce_eager,
        ),
        report,
    )
    size = _size_kv_cache(
        config,
        bytes_per_block=worker.kv_bytes_per_block,
        model_max_len=worker.spec.max_position_embeddings,
        device_bytes=worker.free_device_bytes(),
    )
    worker.allocate_kv_cache(size.num_blocks, max_model_len=size.max_model_len)
    worker.warm_up()

    scheduler_config = config.scheduler_config(
        num_blocks=size.num_blocks, max_model_len=size.max_model_len, is_on_cpu=worker.free_device_bytes() is None
    )
    eos_token_ids, identity = worker.spec.eos_token_ids, worker.identity.digest()
    opening = Opening(now=clock.now(), scheduler=scheduler_config, eos_token_ids=eos_token_ids, identity_digest=identity)
    with _recorder(config.record_steps, opening) as recorder:

        def executor_failed(error: BaseException) -> None:
            loop.fail(error)

        def load() -> tuple[Vocabulary, FormCache]:
            vocabulary = load_vocabulary(
                Path(config.model_path), num_logits=worker.spec.vocab_size, eos_token_ids=eos_token_ids
            )
            forms = load_forms(config.structured_output_backend, vocabulary)
            worker.enforce_forms(Masks(forms, vocabulary))
            return vocabulary, forms

        def rest() -> None:
            # Embeddings are read from the file, row by row: the pages around those rows add up to the whole table.
            worker.checkpoint.release_pages()
            return_freed_memory()

        core = EngineCore(scheduler_config, eos_token_ids=eos_token_ids, identity_digest=identity)
        executor = InProcessExecutor(worker, executor_failed, after_step=worker.prepare)
        compiler = FormCompiler(load)
        loop = EngineLoop(
            core=core,
            executor=executor,
            connection=connection,
            clock=clock,
            recorder=recorder,
            forms=compiler,
            on_rest=rest,
        )
        connection.send(
            EngineReady(
                num_blocks=size.num_blocks,
                block_size=config.block_size,
                max_model_len=size.max_model_len,
                kv_bytes=size.num_blocks * worker.kv_bytes_per_block,
                vocab_size=worker.spec.vocab_size,
                generation_defaults=worker.checkpoint.generation_defaults,
                execution_identity=identity.hex(),
                dtype=worker.dtype,
                device=worker.device,
            )
        )
        gc.freeze()  # what a start leaves stays for good: to look through it for garbage takes longer than a step
        status = loop.run()
        executor.close()
        compiler.close()
        return status


def _size_kv_cache(
    config: EngineConfig, *, bytes_per_block: int, model_max_len: int, device_bytes: int | None
) -> KVCacheSize:
    """`device_bytes`: what is free on a device with memory of its own; None where it computes in the machine's."""
    if device_bytes is None:
        free, fraction = available_bytes(), config.memory_fraction or CPU_MEMORY_FRACTION
    else:
        free, fraction = device_bytes, config.memory_fraction or GPU_MEMORY_FRACTION
    if config.kv_cache_bytes > free:
        raise ConfigurationError(
            f"kv_cache_memory {format_bytes(config.kv_cache_bytes)} exceeds the {format_bytes(free)} that are available "
            "once the weights are loaded: lower it"
        )
    return size_kv_cache(
        budget_bytes=config.kv_cache_bytes or int(free * fraction),
        budget_is_given=config.kv_cache_bytes > 0,
        bytes_per_block=bytes_per_block,
        block_size=config.block_size,
        max_model_len=config.max_model_len,
        model_max_len=model_max_len,
        max_num_seqs=config.max_num_seqs,
    )


def _recorder(path: str, opening: Opening) -> "contextlib.AbstractContextManager[RecordingWriter | None]":
    if not path:
        return contextlib.nullcontext()
    writer = RecordingWriter(Path(path))
    writer.write(opening)
    return writer


def _read_line(descriptor: int) -> bytes:
    """One line, and not a byte more: the rest of the pipe is the watcher's."""
    line = bytearray()
    while (byte := os.read(descriptor, 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line)


def _die_with_parent(descriptor: int) -> None:
    """The pipe's other end closes when the parent ends, in whatever way. Nothing here is worth finishing then."""
    while os.read(descriptor, 4096):
        pass
    os._exit(EXIT_ORPHANED)


if __name__ == "__main__":
    sys.exit(main())

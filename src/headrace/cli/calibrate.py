"""`headrace calibrate`: measures the engine of this machine and writes a file with which `headrace simulate` rehearses it.

Composes a server, its clients, a recording and the fit; decides nothing that they could decide. The server is a real one,
over HTTP, because what shares the machine with an engine is part of how fast it is.
"""

import argparse
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError, EngineDeadError
from headrace.base.system_clock import SystemClock
from headrace.base.units import nanos
from headrace.cli.output_files import output_file, write_output
from headrace.cli.parser import at_least_one, whole_number
from headrace.cli.report_view import report_console
from headrace.engine.host.recording import Opening, read_recording
from headrace.measure.bench.formats import BodyOptions, format_named
from headrace.measure.bench.runner import LoadOptions, run_load
from headrace.measure.bench.server_facts import first_model
from headrace.measure.report.record import Run, RunFacts
from headrace.measure.workload.request import Workload
from headrace.sim.calibrate import Observed, fit_front_end, fit_steps, observe, phases, residuals, speed_spread, warm_up
from headrace.sim.cost_model import EngineModel, FittedRange

_READY_S = 300.0
_STOP_S = 60.0
_VOCAB_SIZE = 8000


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "calibrate",
        help="measure this machine's engine, for rehearsals of it",
        description="Serves a model, drives it with loads that meet all kinds of steps (a minute or two), fits a cost to "
        "each step that it took, and writes what `headrace simulate --engine` needs. Nothing else should run meanwhile.",
    )
    parser.add_argument("model", nargs="?", default="", metavar="MODEL", help="what to serve, as for serve")
    parser.add_argument(
        "--serve-options",
        type=_words,
        default=[],
        metavar="WORDS",
        help="how, as for serve: '--max-model-len 4096 --threads 2'",
    )
    parser.add_argument(
        "--output",
        type=output_file,
        default=Path("engine.json"),
        metavar="FILE",
        help="where to write (default engine.json)",
    )
    parser.add_argument(
        "--recording", type=Path, metavar="FILE", help="fit this recording (serve --record-steps) and measure nothing"
    )
    parser.add_argument(
        "--num-rounds", type=at_least_one, default=1, metavar="N", help="repeat all loads N times (default 1)"
    )
    parser.add_argument("--seed", type=whole_number, default=0, help="of the loads' lengths and tokens (default 0)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    console = report_console()
    if options.recording is not None:
        if options.model or options.serve_options:
            raise ConfigurationError("--recording measures nothing: leave out the model and --serve-options, or it")
        observed = observe(read_recording(options.recording), ())
        source = f"recording {options.recording.name}"
    else:
        words = [*([options.model] if options.model else []), *options.serve_options]
        observed = measure(words, num_rounds=options.num_rounds, seed=options.seed, console=console)
        source = f"headrace serve {' '.join(words)}".strip()
    if not observed.steps:
        raise ConfigurationError("the recording has no finished step: nothing can be fitted")
    engine = fit(observed, source, console)
    write_output(options.output, msgspec.json.format(msgspec.json.encode(engine), indent=1) + b"\n")
    console.print(
        f"[dim]engine: {options.output}; rehearse it with headrace simulate --engine {options.output} --workload …[/]"
    )
    return 0


def _words(text: str) -> list[str]:
    """As a shell takes them apart. Raises ArgumentTypeError, for which the option is named."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be taken apart as a shell would: {error}") from None


def measure(serve_words: list[str], *, num_rounds: int, seed: int, console: Console) -> Observed:
    """Serves, drives and reads back. The server is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        recording = Path(folder) / "steps"
        runs: list[Run] = []
        with _served([*serve_words, "--record-steps", str(recording)]) as url:
            load = _load_options(url)
            run_load(warm_up(vocab_size=_VOCAB_SIZE), load, RunFacts(source="live", duration_ns=Nanos(0)))
            opening = next(read_recording(recording))  # written with the first request at the latest
            assert isinstance(opening, Opening)
            for round_index in range(num_rounds):
                for workload in phases(opening.scheduler, vocab_size=_VOCAB_SIZE, seed=seed * 100 + round_index):
                    named = _for_round(workload, round_index)
                    with console.status(f"{workload.name}: {len(workload.requests)} requests"):
                        runs.append(run_load(named, load, RunFacts(source="live", duration_ns=Nanos(0))))
        return observe(read_recording(recording), runs)


def _for_round(workload: Workload, index: int) -> Workload:
    """Requests are told apart by their ids, so those of different rounds differ."""
    return msgspec.structs.replace(
        workload,
        requests=tuple(
            msgspec.structs.replace(
                request,
                request_id=f"{index}-{request.request_id}",
                after=f"{index}-{request.after}" if request.after else "",
            )
            for request in workload.requests
        ),
    )


def _load_options(url: str) -> LoadOptions:
    return LoadOptions(
        url=url,
        format=format_named("openai"),
        body=BodyOptions(model=first_model(url, {}), seed=0, vocab_size=_VOCAB_SIZE, ignore_eos=True, extra_body={}),
    )


@contextlib.contextmanager
def _served(words: list[str]) -> Iterator[str]:
    """A server of this package as a child process, and its address once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "headrace.cli.main", "serve", *words, "--host", "127.0.0.1", "--port", str(port)]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, url)
            yield url
        except BaseException:
            if process.poll() not in (None, 0):
                said.seek(0)
                sys.stderr.write(said.read().decode(errors="replace"))
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    clock = SystemClock()
    give_up = clock.now() + nanos(_READY_S)
    while clock.now() < give_up:
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(timeout=0.1)
            raise EngineDeadError(f"the server to be measured ended with status {status} before it answered")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            if answer.status == 200:
                return
    raise EngineDeadError(f"the server to be measured does not answer within {_READY_S:.0f} s")


def fit(observed: Observed, source: str, console: Console) -> EngineModel:
    """Prints how far what was measured and what was fitted are apart."""
    fitted = fit_steps(observed.steps)
    _show(observed, console)
    sizes = [size for step in observed.steps for size in step.sizes]
    spread = speed_spread(observed.steps, fitted)
    front_end = fit_front_end(observed.entrances, observed.exits)
    console.print(
        f"speed between blocks of 5 s: ±{spread:.1%} (one standard deviation); a request reaches the mind after "
        f"{front_end.request_us / 1e3:.2f} ms, its first chunk its client after {front_end.latency_us / 1e3:.2f} ms, "
        f"{front_end.chunk_us:.0f} us for each chunk before it"
    )
    return EngineModel(
        scheduler=observed.config,
        steps=fitted,
        front_end=front_end,
        fitted=FittedRange(
            max_tokens=max(size.num_tokens for size in sizes),
            max_decodes=max(size.num_decodes for size in sizes),
            max_context_per_sequence=max(
                max(size.decode_context // max(1, size.num_decodes), size.chunk_context // max(1, size.num_chunks))
                for size in sizes
            ),
        ),
        speed_spread=round(spread, 5),
        about={
            "source": source,
            "date": date.today().isoformat(),
            "num_steps": str(len(sizes)),
            "num_cores": str(len(os.sched_getaffinity(0))),
        },
    )


def _show(observed: Observed, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title="steps: measured against fitted", title_justify="left")
    for column in ("what they compute", "steps", "share of time", "bias", "median error", "p90 error"):
        table.add_column(column, justify="left" if column.startswith("what") else "right", no_wrap=True)
    for row in residuals(observed.steps, fit_steps(observed.steps)):
        table.add_row(
            row.kind, str(row.num_steps), f"{row.share_of_time:.1%}", f"{row.bias:+.1%}", f"{row.median_error:.1%}",
            f"{row.p90_error:.1%}",
        )  # fmt: skip
    console.print(table)

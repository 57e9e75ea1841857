"""The options that say what users do, and the workload that they mean: `headrace bench` and its files of workloads.

Knows option names (vLLM's where it has one) and opens trace files. Draws nothing itself: `measure.workload` does.
"""

import argparse
import io
import math
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.cli.input_files import opened, reading
from headrace.cli.output_files import output_file
from headrace.cli.parser import at_least_one, count, number, whole_number
from headrace.cli.workload_files import read_workload_file
from headrace.measure.workload import prompts, traces
from headrace.measure.workload.arrivals import arrival_times, ramp_times
from headrace.measure.workload.lengths import Lengths, Uniform, parse_lengths
from headrace.measure.workload.request import Workload, WorkloadRequest

_TIMED = ("mooncake", "timed_trace", "azure", "servegen", "agentic", "workload")
"""Data sets that bring their own moments."""
_MADE_UP = ("random", "prefix_repetition", "sessions")
_READ = ("sharegpt", "custom")
DATASETS = (*_MADE_UP, *_READ, *_TIMED)


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what users send")
    group.add_argument(
        "--dataset-name",
        choices=DATASETS,
        default="random",
        help="random, prefix_repetition and sessions are made up; sharegpt and custom are JSON lines with conversations, "
        "messages or prompts; mooncake (also timed_trace), azure, servegen and agentic are public traces; workload is a "
        "file that --write-workload wrote (default random)",
    )
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="the file (or .tar.xz) of a data set that is read")
    group.add_argument(
        "--num-prompts", type=at_least_one, default=None, help="requests (default 1000 made up, or all of a file)"
    )
    group.add_argument(
        "--input-len",
        "--random-input-len",
        dest="input_len",
        default="1024",
        metavar="LENGTHS",
        help="prompt tokens: 128, uniform:64:256, lognormal:MEAN:CV or empirical:100=3,200=1 (default 1024)",
    )
    group.add_argument(
        "--output-len",
        "--random-output-len",
        "--sharegpt-output-len",
        "--custom-output-len",
        dest="output_len",
        default="128",
        metavar="LENGTHS",
        help="answer tokens, written the same way (default 128)",
    )
    group.add_argument(
        "--random-range-ratio",
        type=number(least=0, most=1),
        default=0.0,
        metavar="R",
        help="spread fixed lengths evenly over (1 - R) to (1 + R) times their value (default 0)",
    )
    group.add_argument(
        "--random-prefix-len", type=count(0), default=0, metavar="N", help="tokens that all random prompts begin with"
    )
    group.add_argument(
        "--prefix-repetition-prefix-len", type=count(0), default=256, metavar="N", help="tokens a group shares"
    )
    group.add_argument("--prefix-repetition-num-prefixes", type=at_least_one, default=10, metavar="N", help="groups")
    group.add_argument("--num-turns", type=at_least_one, default=5, help="turns of each made-up session (default 5)")
    group.add_argument("--system-len", type=count(0), default=0, metavar="N", help="tokens that all sessions begin with")
    group.add_argument(
        "--tool-turn-share",
        type=number(least=0, most=1),
        default=0.0,
        metavar="P",
        help="share of turns that bring a tool's result",
    )
    group.add_argument(
        "--servegen-rates", type=Path, metavar="CSV", help="the client's trace.csv; --dataset-path is its dataset"
    )
    group.add_argument("--from-s", type=number(least=0), default=0.0, metavar="S", help="where in a trace to begin")
    group.add_argument(
        "--until-s",
        type=number(above=0, may_be_infinite=True),
        default=math.inf,
        metavar="S",
        help="where in a trace to end",
    )
    group.add_argument(
        "--speedup", type=number(above=0), default=1.0, metavar="F", help="divide all of a trace's waits by F"
    )
    group.add_argument(
        "--mix",
        type=Path,
        metavar="FILE",
        help='JSON {name: {"weight": w, "body": {…}}}: extra fields drawn for each request (JSON schemas, tools)',
    )
    group.add_argument(
        "--lora-modules", nargs="+", default=(), metavar="NAME", help="spread requests over these model names"
    )
    group.add_argument("--lora-assignment", choices=("random", "round-robin"), default="random", help="how (default random)")
    group.add_argument(
        "--vocab-size", type=at_least_one, default=8000, metavar="N", help="random token ids stay below N (default 8000)"
    )
    group.add_argument("--seed", type=whole_number, default=0, help="of everything that is drawn (default 0)")
    group.add_argument(
        "--write-workload",
        type=output_file,
        metavar="FILE",
        help="write the workload to a file, for `headrace simulate --workload` or to run it again, and send nothing",
    )
    arrivals = parser.add_argument_group("when they send it")
    arrivals.add_argument(
        "--request-rate",
        type=number(above=0, may_be_infinite=True),
        default=math.inf,
        metavar="RPS",
        help="open loop: requests per second, whatever becomes of them (default inf: all at once)",
    )
    arrivals.add_argument(
        "--burstiness",
        type=number(above=0, may_be_infinite=True),
        default=1.0,
        help="shape of the Gamma gaps: 1 is Poisson, less is burstier, inf is constant (default 1)",
    )
    arrivals.add_argument("--ramp-up-strategy", choices=("linear", "exponential"), help="let the rate change over the run")
    arrivals.add_argument("--ramp-up-start-rps", type=number(above=0), metavar="RPS", help="from this")
    arrivals.add_argument("--ramp-up-end-rps", type=number(above=0), metavar="RPS", help="to this")
    arrivals.add_argument(
        "--num-users", type=at_least_one, metavar="N", help="closed loop: users who ask, read, think and ask again"
    )
    arrivals.add_argument(
        "--think-time", type=number(least=0), default=0.0, metavar="S", help="mean of a user's exponential think time"
    )
    arrivals.add_argument("--self-timed", action="store_true", help="use the trace's own moments (traces always do)")


def build_workload(options: argparse.Namespace, *, rate: float | None = None, num_users: int | None = None) -> Workload:
    """What the options mean; `rate` and `num_users` are a sweep's, in place of the options' own."""
    name: str = options.dataset_name
    if name == "workload":
        workload = read_workload_file(_path(options))
        return workload if options.num_prompts is None else _cut(workload, options.num_prompts)
    requests = _requests(options)
    if name in _TIMED:
        requests = _within(requests, options) if name != "servegen" else requests
        requests = traces.speeded(requests[: options.num_prompts], options.speedup)
    elif name != "sessions":
        requests = _timed(requests, options, rate=rate, num_users=num_users)
    if options.lora_modules:
        requests = prompts.with_models(requests, options.lora_modules, assignment=options.lora_assignment, seed=options.seed)
    if options.mix is not None:
        requests = prompts.with_bodies(requests, _read_mix(options.mix), seed=options.seed)
    if not requests:
        when = " between --from-s and --until-s" if name in _TIMED else ""
        raise ConfigurationError(f"{options.dataset_path} has no requests{when}: there is nothing to send")
    return Workload(name=name, requests=tuple(requests), seed=options.seed, vocab_size=options.vocab_size)


def brings_its_own_times(options: argparse.Namespace) -> bool:
    return options.dataset_name in (*_TIMED, "sessions")


def _requests(options: argparse.Namespace) -> list[WorkloadRequest]:
    name, seed = options.dataset_name, options.seed
    number: int = options.num_prompts or 1000
    inputs, outputs = (_lengths(text, options.random_range_ratio) for text in (options.input_len, options.output_len))
    match name:
        case "random":
            return prompts.random_requests(
                number, inputs=inputs, outputs=outputs, num_prefix_tokens=options.random_prefix_len, seed=seed
            )
        case "prefix_repetition":
            return prompts.shared_prefix_requests(
                number,
                num_groups=options.prefix_repetition_num_prefixes,
                num_prefix_tokens=options.prefix_repetition_prefix_len,
                suffixes=inputs,
                outputs=outputs,
                seed=seed,
            )
        case "sessions":
            num_sessions = -(-number // options.num_turns)
            return prompts.sessions(
                num_sessions,
                num_turns=options.num_turns,
                inputs=inputs,
                outputs=outputs,
                num_system_tokens=options.system_len,
                think_time_s=options.think_time,
                tool_turn_share=options.tool_turn_share,
                starts=arrival_times(num_sessions, rate=options.request_rate, burstiness=options.burstiness, seed=seed),
                seed=seed,
            )
        case _:
            path = _path(options)
            with reading(path):
                return _read_requests(name, path, options)[: options.num_prompts]


def _read_requests(name: str, path: Path, options: argparse.Namespace) -> list[WorkloadRequest]:
    match name:
        case "mooncake" | "timed_trace":
            with opened(path) as file:
                return traces.read_mooncake(file)
        case "azure":
            with opened(path) as file:
                return traces.read_azure(io.TextIOWrapper(file, encoding="utf-8"))
        case "servegen":
            return _read_servegen(path, options)
        case "agentic":
            return [r for document in _documents(path) for r in traces.read_agentic_session(document)]
        case _:
            with opened(path) as file:
                first = file.read(1)
                file.seek(0)
                lines: Sequence[bytes] | IO[bytes] = file
                if first == b"[":  # ShareGPT as one JSON array
                    lines = [msgspec.json.encode(row) for row in msgspec.json.decode(file.read())]
                return traces.read_messages(lines, outputs=parse_lengths(options.output_len), seed=options.seed)


def _read_servegen(path: Path, options: argparse.Namespace) -> list[WorkloadRequest]:
    rates_path: Path | None = options.servegen_rates
    if rates_path is None:
        raise ConfigurationError("a ServeGen client has two files: give its trace.csv with --servegen-rates")
    with opened(path) as file:
        histograms = msgspec.json.decode(file.read())
    with reading(rates_path), opened(rates_path) as rates:
        return traces.read_servegen_client(
            path.stem,
            io.TextIOWrapper(rates, encoding="utf-8"),
            histograms,
            from_s=options.from_s,
            until_s=options.until_s,
            seed=options.seed,
        )


def _within(requests: Sequence[WorkloadRequest], options: argparse.Namespace) -> list[WorkloadRequest]:
    """The part of a trace between two moments, counted from the first; sessions stay whole."""
    kept = [r for r in requests if r.after or options.from_s <= r.at_s < options.until_s]
    return [r if r.after else msgspec.structs.replace(r, at_s=r.at_s - options.from_s) for r in kept]


def _timed(
    requests: list[WorkloadRequest], options: argparse.Namespace, *, rate: float | None, num_users: int | None
) -> list[WorkloadRequest]:
    users = num_users or options.num_users
    if users is not None:
        return prompts.closed_loop(requests, num_users=users, think_time_s=options.think_time, seed=options.seed)
    if options.ramp_up_strategy is not None and rate is None:
        if options.ramp_up_start_rps is None or options.ramp_up_end_rps is None:
            raise ConfigurationError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
        moments = ramp_times(
            len(requests),
            start_rps=options.ramp_up_start_rps,
            end_rps=options.ramp_up_end_rps,
            strategy=options.ramp_up_strategy,
            burstiness=options.burstiness,
            seed=options.seed,
        )
    else:
        moments = arrival_times(
            len(requests), rate=rate or options.request_rate, burstiness=options.burstiness, seed=options.seed
        )
    return prompts.at(requests, moments)


def _lengths(text: str, range_ratio: float) -> Lengths:
    lengths = parse_lengths(text)
    if range_ratio and text.isdigit():
        return Uniform(max(1, math.floor(int(text) * (1 - range_ratio))), math.ceil(int(text) * (1 + range_ratio)))
    return lengths


def _cut(workload: Workload, num_requests: int) -> Workload:
    return msgspec.structs.replace(workload, requests=workload.requests[:num_requests])


class _MixEntry(msgspec.Struct):
    weight: Annotated[float, msgspec.Meta(ge=0)]
    body: dict[str, Any]


def _read_mix(path: Path) -> dict[str, tuple[float, dict[str, Any]]]:
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=dict[str, _MixEntry])
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ConfigurationError(f'{path} is no mix of the form {{name: {{"weight": w, "body": {{…}}}}}}: {error}') from None
    if not any(entry.weight for entry in entries.values()):
        raise ConfigurationError(f"{path}: nothing in this mix has a weight above 0")
    return {name: (entry.weight, entry.body) for name, entry in entries.items()}


def _path(options: argparse.Namespace) -> Path:
    if options.dataset_path is None:
        raise ConfigurationError(f"the data set {options.dataset_name} is a file: say which with --dataset-path")
    path: Path = options.dataset_path
    if not path.exists():
        raise ConfigurationError(f"--dataset-path {path} does not exist")
    return path


def _documents(path: Path) -> Iterator[Any]:
    """JSON documents of a file, a folder or an archive, in order of their names."""
    if path.is_dir():
        for file in sorted(path.rglob("*.json")):
            yield msgspec.json.decode(file.read_bytes())
    elif ".tar" in path.suffixes:
        with tarfile.open(path) as archive:
            for member in sorted(archive.getmembers(), key=lambda member: member.name):
                content = archive.extractfile(member) if member.name.endswith(".json") else None
                if content is not None:
                    yield msgspec.json.decode(content.read())
    else:
        yield msgspec.json.decode(path.read_bytes())

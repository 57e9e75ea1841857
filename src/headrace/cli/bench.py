"""`headrace bench`: drive a server with a workload and report what its users felt.

Composes workload, client, report and view; measures nothing itself. Options are vLLM's where `vllm bench serve` has one,
so its scripts run; what only this command has is listed under its own heading.
"""

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.markup import escape
from rich.table import Table

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError, nearest
from headrace.cli.input_files import reading
from headrace.cli.output_files import output_file, write_output, writing
from headrace.cli.parser import at_least_one, count, number
from headrace.cli.report_view import report_console, show_comparison, show_summary
from headrace.cli.workload_options import add_workload_options, brings_its_own_times, build_workload
from headrace.measure.bench.campaign import Point, StopRule, highest_load, interleaved, sweep
from headrace.measure.bench.formats import FORMATS, BodyOptions, format_named
from headrace.measure.bench.live_view import LiveView
from headrace.measure.bench.runner import LoadOptions, run_load, wait_until_ready
from headrace.measure.bench.server_facts import counters, first_model, grown
from headrace.measure.report.comparison import compare
from headrace.measure.report.goodput import parse_objectives, read_objectives
from headrace.measure.report.page import render_page
from headrace.measure.report.record import Run, RunFacts
from headrace.measure.report.result_file import DEFAULT_METRICS, KNOWN_METRICS, write_result
from headrace.measure.report.summary import DEFAULT_SHARES, Summary, summarize, without_warm_up
from headrace.measure.report.table import figure
from headrace.measure.workload.request import Workload
from headrace.measure.workload.reuse import reuse
from headrace.measure.workload.workload_file import write_workload

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "bench",
        help="measure what users of a server feel",
        description="Sends a workload to any server that speaks OpenAI's or Anthropic's API and reports latencies "
        "from the moment at which each request was meant to leave. Takes the options of `vllm bench serve` and writes "
        "its result files.",
    )
    _add_server_options(parser)
    add_workload_options(parser)
    _add_load_options(parser)
    _add_report_options(parser)
    _add_campaign_options(parser)
    parser.set_defaults(run=run)


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the server")
    group.add_argument("--backend", choices=tuple(FORMATS), default="openai", help="the API that is spoken (default openai)")
    group.add_argument("--base-url", help="where it is, such as http://127.0.0.1:8000; in place of --host and --port")
    group.add_argument("--host", default="127.0.0.1", help="its host (default 127.0.0.1)")
    group.add_argument("--port", type=count(1, 65535), default=8000, help="its port (default 8000)")
    group.add_argument("--endpoint", default="", help="the path, if not the API's own")
    group.add_argument("--header", nargs="+", default=(), metavar="K=V", help="headers to send")
    group.add_argument("--model", help="the model to ask for (default: the first that the server names)")
    group.add_argument("--served-model-name", help="its name at the server, if --model is not")
    group.add_argument("--tokenizer", help="accepted; prompts are sent as token ids and tokens are counted by the server")
    group.add_argument(
        "--ready-check-timeout-sec",
        type=number(least=0),
        default=600,
        metavar="S",
        help="wait so long for a first answer; 0 does not wait (default 600)",
    )


def _add_load_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it is sent")
    group.add_argument(
        "--max-concurrency",
        type=at_least_one,
        metavar="N",
        help="requests at once; more wait in the client, and the wait counts unless all were due at once",
    )
    group.add_argument("--num-warmups", type=count(0), default=0, metavar="N", help="requests before the run, not counted")
    group.add_argument(
        "--request-timeout", type=number(above=0), default=6 * 3600.0, metavar="S", help="give up after (default 6 h)"
    )
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask for exactly the workload's answer lengths; some servers do not know the field (default: yes)",
    )
    for name in _SAMPLING:
        group.add_argument(
            f"--{name.replace('_', '-')}", type=number(), metavar="X", help="sampling, sent with every request"
        )
    group.add_argument("--logprobs", type=count(0), metavar="N", help="ask for so many log-probabilities")
    group.add_argument("--extra-body", type=_json, default={}, metavar="JSON", help="fields for every request's body")
    group.add_argument("--chat-template-kwargs", type=_json, metavar="JSON", help="sent as that field")


def _add_report_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is reported")
    group.add_argument(
        "--goodput",
        nargs="+",
        default=(),
        metavar="NAME:MS",
        help="promises that count as good: ttft:200 tpot:50 e2el:5000 itl:300",
    )
    group.add_argument("--slo", type=Path, metavar="FILE", help="the same from a TOML file: [slo] ttft_ms = 200")
    group.add_argument(
        "--percentile-metrics",
        default=",".join(DEFAULT_METRICS),
        metavar="NAMES",
        help="which figures have statistics at the top of the result file (default ttft,tpot,itl,e2el)",
    )
    group.add_argument(
        "--metric-percentiles",
        default=",".join(f"{s:g}" for s in DEFAULT_SHARES),
        metavar="P",
        help="which percentiles (default 50,90,95,99)",
    )
    group.add_argument("--save-result", action="store_true", help="write a result file")
    group.add_argument("--save-detailed", action="store_true", help="with vLLM's lists of every request and gap")
    group.add_argument("--append-result", action="store_true", help="append a line to the result file")
    group.add_argument("--result-dir", type=Path, default=Path(), metavar="FOLDER", help="where (default: here)")
    group.add_argument("--result-filename", metavar="NAME", help="its name (default: made of rate, model and time)")
    group.add_argument("--metadata", nargs="+", default=(), metavar="K=V", help="kept in the result file")
    group.add_argument("--label", default="", help="what to call this run")
    group.add_argument("--exclude-warm-up", action="store_true", help="leave out the requests that look like a warm-up")
    group.add_argument("--html", type=output_file, metavar="FILE", help="write the report as one page that needs no network")
    group.add_argument("--disable-tqdm", "--no-live", dest="no_live", action="store_true", help="no live view")


def _add_campaign_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("many runs")
    group.add_argument("--sweep-rate", type=_separated(number(above=0)), metavar="R,R,…", help="a run at each request rate")
    group.add_argument(
        "--sweep-concurrency", type=_separated(at_least_one), metavar="N,N,…", help="a run with each number of users"
    )
    group.add_argument(
        "--stop-kept",
        type=number(least=0, most=1),
        default=0.0,
        metavar="SHARE",
        help="end a sweep once fewer requests keep their promises (default: never)",
    )
    group.add_argument(
        "--stop-growth",
        type=number(least=0),
        default=0.0,
        metavar="SHARE",
        help="end a sweep once throughput grows by less than this (default: never)",
    )
    group.add_argument(
        "--find-rate",
        type=number(above=0),
        metavar="START",
        help="search the highest request rate at which --find-kept of the requests keep all promises, from this one",
    )
    group.add_argument(
        "--find-kept", type=number(above=0, most=1), default=0.99, metavar="SHARE", help="of requests (default 0.99)"
    )
    group.add_argument(
        "--find-precision", type=number(above=0), default=0.05, metavar="SHARE", help="relative (default 0.05)"
    )
    group.add_argument(
        "--find-most-runs", type=at_least_one, default=20, metavar="N", help="end the search after so many (default 20)"
    )
    group.add_argument("--against", metavar="URL", help="a second server, B: runs alternate, and B is shown beside A")
    group.add_argument(
        "--num-rounds", type=at_least_one, default=5, metavar="N", help="pairs of runs against it (default 5)"
    )


def run(options: argparse.Namespace) -> int:
    """Exit status: 0, or 1 if every request of a run failed."""
    bench = _Bench(options)
    if options.write_workload is not None:
        return bench.write_workload(options.write_workload)
    campaigns = [options.sweep_rate, options.sweep_concurrency, options.find_rate, options.against]
    if sum(campaign is not None for campaign in campaigns) > 1:
        raise ConfigurationError("--sweep-rate, --sweep-concurrency, --find-rate and --against are one or the other")
    if options.against is not None:
        return bench.against(options.against)
    if options.find_rate is not None:
        return bench.find_rate(options.find_rate)
    if options.sweep_rate is not None or options.sweep_concurrency is not None:
        return bench.sweep()
    return bench.once()


class _Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._console = report_console()
        self._shares = _shares(options.metric_percentiles)
        self._metrics = _metrics(options.percentile_metrics)
        self._slo_ms = _read_slo(options.slo) | parse_objectives(options.goodput)
        self._headers = _pairs(options.header, "--header")
        self._metadata = _pairs(options.metadata, "--metadata")
        if self._keeps_results:
            _check_folder(options.result_dir, options.result_filename)
        self._url = options.base_url or f"http://{options.host}:{options.port}"
        self._models: dict[str, str] = {}
        self._files: list[str] = []
        self._written: set[Path] = set()

    # What a run can be part of

    def write_workload(self, path: Path) -> int:
        workload = build_workload(self._options)
        with writing(path), path.open("wb") as file:
            file.writelines(write_workload(workload))
        found = reuse(workload.requests)
        self._console.print(
            f"{len(workload.requests):,} requests written to {path}; of {found.num_tokens:,} prompt tokens a cache without "
            f"limits would find {found.token_share:.1%} ({found.segment_share:.1%} of {found.num_segments:,} blocks)"
        )
        return 0

    def once(self) -> int:
        run = self._measure(self._url, build_workload(self._options))
        summary = self._summary(run)
        self._keep(run, summary)
        self._write_page([run])
        show_summary(self._console, run.facts, summary, self._shares)
        self._tell_files()
        return 0 if summary.num_completed else 1

    def sweep(self) -> int:
        options = self._options
        by_rate = options.sweep_rate is not None
        loads: Sequence[float] = options.sweep_rate if by_rate else options.sweep_concurrency
        rule = StopRule(least_kept_share=options.stop_kept, least_growth=options.stop_growth)
        points, reason = sweep(loads, self._measure_at(by_rate), rule, on_point=self._show_point)
        if reason:
            self._console.print(f"[dim]stopped: {reason}[/]")
        return self._finish_points(points)

    def find_rate(self, start: float) -> int:
        if not self._slo_ms:
            raise ConfigurationError("--find-rate needs a promise to keep: add for example --goodput ttft:500 tpot:50")
        best, points = highest_load(
            self._measure_at(by_rate=True),
            start=start,
            kept_share=self._options.find_kept,
            precision=self._options.find_precision,
            most_runs=self._options.find_most_runs,
            on_point=self._show_point,
        )
        if best is None:
            self._console.print(f"[red]no rate down to {points[0].load:.3g} req/s keeps the promises[/]")
        else:
            self._console.print(
                f"[bold]{best.load:.3g} req/s[/] is the highest rate found at which {best.kept_share:.1%} of requests keep "
                f"all promises ({_promises(self._slo_ms)})"
            )
            if best is points[-1]:
                self._console.print("[yellow]! it kept them at the highest rate that was tried: the limit lies above[/]")
        return self._finish_points(points) if best is not None else 1

    def against(self, second_url: str) -> int:
        workload = build_workload(self._options)
        first, second = interleaved(
            lambda: self._measure(self._url, workload, label="A"),
            lambda: self._measure(second_url, workload, label="B"),
            num_rounds=self._options.num_rounds,
            on_run=lambda what: self._console.print(f"[dim]{what}[/]"),
        )
        for run in (*first, *second):
            self._keep(run, self._summary(run))
        if not first or not second:
            raise KeyboardInterrupt
        rows = compare(first, second, seed=self._options.seed)
        self._write_page([*first, *second])
        show_comparison(self._console, rows, (f"A {self._url}", f"B {second_url}"), ())
        self._tell_files()
        return 0

    def _measure_at(self, by_rate: bool) -> Callable[[float], Run]:
        def measure(load: float) -> Run:
            workload = build_workload(
                self._options, rate=load if by_rate else None, num_users=None if by_rate else round(load)
            )
            return self._measure(
                self._url, workload, rate=load if by_rate else None, num_users=None if by_rate else round(load)
            )

        return measure

    def _finish_points(self, points: Sequence[Point]) -> int:
        for point in points:
            self._keep(point.run, point.summary)
        self._write_page([point.run for point in points])
        self._tell_files()
        return 0 if any(point.summary.num_completed for point in points) else 1

    # One run

    def _measure(
        self, url: str, workload: Workload, *, label: str = "", rate: float | None = None, num_users: int | None = None
    ) -> Run:
        options = self._options
        model = self._model(url)
        load = self._load_options(url, model, workload)
        if options.ready_check_timeout_sec > 0:
            with self._console.status(f"waiting until {escape(url)} answers"):
                wait_until_ready(workload, load, timeout_s=options.ready_check_timeout_sec)
        facts = self._facts(url, model, workload, label, rate, num_users)
        before = counters(url, self._headers)
        with self._view(f"{label} {url}".strip()) as show:
            measured = run_load(workload, load, facts, on_progress=show)
        run = Run(
            facts=msgspec.structs.replace(measured.facts, server_counters=grown(before, counters(url, self._headers))),
            records=measured.records,
        )
        if options.exclude_warm_up:
            return without_warm_up(run, summarize(run).num_warm_up)
        return run

    def _load_options(self, url: str, model: str, workload: Workload) -> LoadOptions:
        options = self._options
        extra = {name: value for name in _SAMPLING if (value := getattr(options, name)) is not None}
        extra |= {"logprobs": options.logprobs} if options.logprobs is not None else {}
        extra |= {"chat_template_kwargs": options.chat_template_kwargs} if options.chat_template_kwargs else {}
        return LoadOptions(
            url=url,
            format=format_named(options.backend),
            body=BodyOptions(
                model=options.served_model_name or model,
                seed=workload.seed,
                vocab_size=workload.vocab_size,
                ignore_eos=options.ignore_eos,
                extra_body=extra | options.extra_body,
            ),
            endpoint=options.endpoint,
            headers=self._headers,
            max_concurrency=options.max_concurrency,
            intends_when_free=math.isinf(options.request_rate) and not brings_its_own_times(options),
            timeout_s=options.request_timeout,
            num_warm_ups=options.num_warmups,
            keep_texts=options.save_detailed,
        )

    def _facts(
        self, url: str, model: str, workload: Workload, label: str, rate: float | None, num_users: int | None
    ) -> RunFacts:
        options = self._options
        asked = rate if rate is not None else options.request_rate
        is_open = (
            not brings_its_own_times(options) and num_users is None and options.num_users is None and not math.isinf(asked)
        )
        return RunFacts(
            source="live",
            duration_ns=Nanos(0),
            label=f"{options.label} {label}".strip(),
            date=datetime.now().strftime("%Y%m%d-%H%M%S"),
            backend=options.backend,
            url=url,
            model=model,
            workload=workload.name,
            seed=workload.seed,
            request_rate=asked if is_open else None,
            burstiness=options.burstiness if math.isfinite(options.burstiness) else 0.0,
            max_concurrency=num_users or options.max_concurrency or options.num_users,
            slo_ms=self._slo_ms,
            reusable_token_share=reuse(workload.requests).token_share,
            metadata=self._metadata,
        )

    def _model(self, url: str) -> str:
        if self._options.model is not None:
            return str(self._options.model)
        if url not in self._models:
            self._models[url] = first_model(url, self._headers)
        return self._models[url]

    @contextlib.contextmanager
    def _view(self, title: str) -> Iterator[Any]:
        if self._options.no_live or not sys.stderr.isatty():
            yield None
            return
        with LiveView(title) as view:
            yield view.show

    # What is kept

    @property
    def _keeps_results(self) -> bool:
        options = self._options
        return bool(options.save_result or options.append_result or options.save_detailed or options.result_filename)

    def _summary(self, run: Run) -> Summary:
        return summarize(run, shares=self._shares)

    def _show_point(self, point: Point) -> None:
        summary = point.summary
        table = Table.grid(padding=(0, 3))
        ttft, tpot = summary.distributions.get("ttft"), summary.distributions.get("tpot")
        table.add_row(
            f"load [bold]{point.load:.4g}[/]",
            f"{figure(summary.request_throughput)} req/s",
            f"{figure(summary.output_throughput)} tok/s",
            f"TTFT p99 {figure(ttft.percentile(99.0))} ms" if ttft is not None and 99.0 in self._shares else "",
            f"TPOT mean {figure(tpot.mean)} ms" if tpot is not None else "",
            f"kept {point.kept_share:.1%}",
        )
        self._console.print(table)
        for warning in summary.warnings:
            self._console.print(f"  [yellow]! {escape(warning)}[/]")

    def _keep(self, run: Run, summary: Summary) -> None:
        options = self._options
        if not self._keeps_results:
            return
        summary = summarize(run, shares=self._shares)
        data = write_result(run, summary, metrics=self._metrics, detailed=options.save_detailed)
        path = options.result_dir / _file_name(run.facts, options.result_filename)
        mode = "ab" if options.append_result or path in self._written else "wb"  # runs of one campaign share a file
        self._written.add(path)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open(mode) as file:
                file.write(data + b"\n")
        self._files.append(f"result: {path}")

    def _write_page(self, runs: Sequence[Run]) -> None:
        if self._options.html is not None:
            write_output(self._options.html, render_page(runs, shares=self._shares))
            self._files.append(f"page: {self._options.html}")

    def _tell_files(self) -> None:
        """Nothing is told before all is written: whoever reads may have left."""
        for one in dict.fromkeys(self._files):
            self._console.print(f"[dim]{escape(one)}[/]")


def _file_name(facts: RunFacts, asked: str | None) -> str:
    """What was asked for, with A or B where there are two servers; else vLLM's form."""
    if asked is not None:
        path = Path(asked)
        side = facts.label.rpartition(" ")[2]
        return f"{path.stem}-{side}{path.suffix}" if side in ("A", "B") else asked
    rate = "inf" if facts.request_rate is None else f"{facts.request_rate:g}"
    concurrency = f"-concurrency{facts.max_concurrency}" if facts.max_concurrency is not None else ""
    label = facts.label or facts.backend
    return f"{label}-{rate}qps{concurrency}-{facts.model.split('/')[-1]}-{facts.date}.json"


def _promises(slo_ms: dict[str, float]) -> str:
    return ", ".join(f"{name} within {limit:g} ms" for name, limit in slo_ms.items())


def _pairs(pairs: Sequence[str], option: str) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise ConfigurationError(f"{option} takes NAME=VALUE, not {pair!r}")
    return dict(pair.split("=", 1) for pair in pairs)


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = sorted({float(word) for word in text.split(",") if word.strip()})
    except ValueError:
        raise ConfigurationError(f"--metric-percentiles takes numbers, not {text!r}") from None
    for share in shares:
        if not 0 <= share <= 100:
            raise ConfigurationError(f"--metric-percentiles lie between 0 and 100, not {share:g}")
    return tuple(shares)


def _metrics(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in KNOWN_METRICS:
            known = ", ".join(KNOWN_METRICS)
            raise ConfigurationError(
                f"--percentile-metrics: there is no figure {name!r}{nearest(name, KNOWN_METRICS)} (known: {known})"
            )
    return names


def _read_slo(path: Path | None) -> dict[str, float]:
    if path is None:
        return {}
    with reading(path):
        return read_objectives(path.read_text(encoding="utf-8"))


def _check_folder(folder: Path, name: str | None) -> None:
    """Before hours of requests, not after them. Raises ConfigurationError where no result can be written there."""
    path = folder / (name or "")
    nearest_folder = next(parent for parent in (path if name is None else path.parent, *path.parents) if parent.exists())
    if not nearest_folder.is_dir() or not os.access(nearest_folder, os.W_OK):
        raise ConfigurationError(
            f"results cannot be written to {path}: {nearest_folder} is no folder that may be written to"
        )
    if name is not None and path.is_dir():
        raise ConfigurationError(f"results cannot be written to {path}: it is a folder; --result-dir names one")


def _separated(read: Callable[[str], float]) -> Callable[[str], list[float]]:
    """The type of an option with several values, as `1,2,4`."""
    return lambda text: [read(word) for word in text.split(",")]


def _json(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise argparse.ArgumentTypeError(f"is no JSON object: {error}") from None

"""`headrace plan`: the cheapest fleet of GPUs that keeps a promise under a workload, found by rehearsal.

Composes the search and prints; decides nothing.
"""

import argparse
import gc
import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from headrace.base.errors import ConfigurationError
from headrace.cli.garbage import collector_at_rest
from headrace.cli.output_files import output_file, write_output
from headrace.cli.parser import at_least_one, number, one_of
from headrace.cli.report_view import report_console
from headrace.cli.workload_files import read_workload_to_do
from headrace.measure.report.goodput import parse_objectives
from headrace.measure.report.pareto_plot import ParetoPoint, pareto_svg
from headrace.measure.workload.request import Workload
from headrace.router.mind.profile import POLICIES
from headrace.sim.cost.gpu import Precision
from headrace.sim.cost_model import EngineModel, GpuDeployment, known_shape
from headrace.sim.fleet_spec import TransferOverlap
from headrace.sim.plan import Candidate, ExpertLayout, Plan, Promise, Space, known_prices, plan, read_prices, rehearse
from headrace.specs.device import device

_SHOWN_ROWS = 8


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "plan",
        help="the cheapest fleet of GPUs that keeps a promise",
        description="Searches devices, layouts, token budgets, routing policies and numbers of replicas for the cheapest "
        "fleet that keeps a promise under a workload: aggregated ones, whose replicas do all there is to do, and "
        "disaggregated ones, where some compute prompts and hand their KV to those that answer. Each is rehearsed with the "
        "real schedulers and router; steps take what published kernel measurements say (docs/cost-model.md).",
    )
    parser.add_argument("model", help="a public model by its short name, such as llama-3.1-8b")
    parser.add_argument(
        "--workload", type=Path, required=True, metavar="FILE", help="what `headrace bench --write-workload` wrote"
    )
    parser.add_argument(
        "--slo", nargs="+", required=True, metavar="NAME:MS", help="the promise, such as ttft:500 tpot:50 (milliseconds)"
    )
    parser.add_argument(
        "--share",
        type=number(above=0, most=1),
        default=0.95,
        help="of all requests, those that must keep all of it (default 0.95)",
    )
    parser.add_argument("--devices", nargs="+", metavar="NAME", help="only these (default: all that have a price)")
    parser.add_argument(
        "--tensor-parallel-sizes", nargs="+", type=at_least_one, default=[1, 2, 4, 8], metavar="N",
        help="GPUs of a replica (default 1 2 4 8)",
    )  # fmt: skip
    parser.add_argument(
        "--token-budgets",
        nargs="+",
        type=at_least_one,
        default=[2048, 8192],
        metavar="N",
        help="tokens a step (default 2048 8192)",
    )
    parser.add_argument(
        "--policies",
        nargs="+",
        choices=POLICIES,
        default=["least-requests", "prefix-affinity"],
        help="of routing requests to replicas",
    )
    parser.add_argument("--max-replicas", type=at_least_one, default=64, help="of a fleet, all together (default 64)")
    parser.add_argument(
        "--serving", choices=("any", "aggregated", "disaggregated"), default="any",
        help="only fleets that compute prompts where answers are, or only those that do not (default any)",
    )  # fmt: skip
    parser.add_argument(
        "--one-device", action="store_true", help="compute prompts on the same devices as answers (default: on any)"
    )
    parser.add_argument(
        "--kv-overlap", default=TransferOverlap.NONE, type=one_of(TransferOverlap), metavar="HOW",
        help="what of a prompt's KV goes to whoever answers before all of the prompt is computed: none, chunks (when "
        "each is computed) or layers (default none)",
    )  # fmt: skip
    parser.add_argument(
        "--backend", choices=("vllm", "sglang", "trtllm"), default="",
        help="whose measured deployments to resemble: how far their steps are from the kernels, and what stands before a "
        "first token (default: kernels alone)",
    )  # fmt: skip
    parser.add_argument(
        "--expert-layouts", nargs="+", default=list(ExpertLayout), type=one_of(ExpertLayout), metavar="LAYOUT",
        help="of a model with experts: tensor: each GPU of a replica has a part of every expert; expert: each has "
        "whole ones; attention-dp: and computes attention for sequences of its own, where KV cannot be split over all GPUs "
        "(default all)",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", choices=("bfloat16", "fp8"), default="bfloat16", help="of weights and products (default bfloat16)"
    )
    parser.add_argument(
        "--kv-cache-dtype", choices=("bfloat16", "fp8"), default="bfloat16", help="of keys and values (default bfloat16)"
    )
    parser.add_argument("--prices", type=Path, metavar="FILE", help="TOML: dollars an hour by device (h100_sxm = 6.88)")
    parser.add_argument("--result", type=output_file, metavar="FILE", help="write all that was rehearsed, as JSON")
    parser.add_argument(
        "--plot", type=output_file, metavar="FILE", help="write throughput per GPU against interactivity, as an SVG"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exit status: 0 if a fleet keeps the promise, 1 if none does."""
    console = report_console()
    known_shape(options.model)
    prices = _read_prices(options.prices)
    for name in options.devices or ():
        device(name)  # raises where there is none of this name: one without a price is only left out
    workload = read_workload_to_do(options.workload)
    promise = Promise(slo_ms=parse_objectives(options.slo), share=options.share)
    for name, limit in promise.slo_ms.items():
        if not limit > 0:
            raise ConfigurationError(f"--slo {name} must be above 0 ms, not {limit:g}: nothing is as fast as that")
    space = Space(
        devices=tuple(options.devices or prices),
        tensor_parallel_sizes=tuple(options.tensor_parallel_sizes),
        token_budgets=tuple(options.token_budgets),
        policies=tuple(options.policies),
        max_replicas=options.max_replicas,
        is_aggregated=options.serving != "disaggregated",
        is_disaggregated=options.serving != "aggregated",
        mixes_devices=not options.one_device,
        overlap=options.kv_overlap,
        expert_layouts=tuple(dict.fromkeys(options.expert_layouts)),
    )
    precision = Precision(gemm=options.dtype, experts=options.dtype, kv=options.kv_cache_dtype)
    deployment = GpuDeployment(device=space.devices[0], model=options.model, precision=precision, backend=options.backend)
    found = _search(workload, deployment, promise, space, prices, console)
    _show(console, found, workload, promise)
    if options.result is not None:
        write_output(options.result, json.dumps(_document(found, promise), indent=1) + "\n")
        console.print(f"[dim]result: {options.result}[/]")
    if options.plot is not None:
        write_output(options.plot, _plot(found, options.model, workload))
        console.print(f"[dim]plot: {options.plot}[/]")
    return 0 if found.best is not None else 1


def _read_prices(path: Path | None) -> dict[str, float]:
    if path is None:
        return known_prices()
    try:
        return read_prices(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"the prices {path} cannot be read: {error.strerror}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _search(
    workload: Workload,
    deployment: GpuDeployment,
    promise: Promise,
    space: Space,
    prices: dict[str, float],
    console: Console,
) -> Plan:
    columns = (SpinnerColumn(), TextColumn("rehearsing {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar, collector_at_rest():
        task = bar.add_task("", total=None)

        def begin(name: str) -> None:
            gc.collect()  # the fleet before
            bar.update(task, description=name)

        return plan(workload, deployment, promise, space, prices, on_rehearsal=begin)


def _show(console: Console, found: Plan, workload: Workload, promise: Promise) -> None:
    asked = ", ".join(f"{name} {limit:g} ms" for name, limit in promise.slo_ms.items())
    console.print(f"{promise.share:.0%} of {len(workload.requests):,} requests within {asked}\n")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("", "GPUs", "$/h", "kept", "tok/s per GPU", "tok/s per user"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=bool(column))
    kept = found.kept
    for one in kept[:_SHOWN_ROWS]:
        table.add_row(*_row(one))
    if kept:
        console.print(table)
    console.print(f"[dim]{len(found.candidates)} fleets rehearsed[/]")
    for why in dict.fromkeys(found.left_out.values()):
        names = ", ".join(name for name, reason in found.left_out.items() if reason == why)
        console.print(f"[dim]left out: {names}: {why}[/]")
    best = found.best
    if best is None:
        if not found.candidates:
            console.print("[red]nothing could be rehearsed[/]: what was left out says why")
            return
        console.print("[red]no fleet in this space keeps it[/]: allow more replicas, other devices, or promise less")
        nearest = max(found.candidates, key=lambda one: one.kept_share)
        console.print(f"nearest: {nearest.setup.name}: {nearest.kept_share:.1%} kept")
        return
    console.print(f"[bold]{best.setup.name}: ${best.price:,.2f} an hour[/]")
    _show_what_binds(console, found, best)
    engine = EngineModel(gpu=best.shape.gpu)
    slow = rehearse(workload, best.setup, promise, speed=engine.speeds_90[0])
    console.print(
        f"At the slow end of the cost model's 90 % interval {slow.kept_share:.1%} of requests keep it"
        + ("." if slow.keeps else f": less than asked, by its {slow.binds}; another replica is the price of being sure.")
    )
    for note in engine.notes:
        console.print(f"[yellow]! {note}[/]")


def _show_what_binds(console: Console, found: Plan, best: Candidate) -> None:
    if best.is_disaggregated:
        for fewer in found.fewer:
            console.print(
                f"What binds is {fewer.binds}: with {fewer.setup.num_prefill} prefill and {fewer.num_replicas} decode "
                f"{fewer.kept_share:.1%} of requests keep the promise."
            )
    elif (one := found.one_fewer) is not None:
        console.print(
            f"What binds is {one.binds}: with {one.num_replicas} "
            f"{'replica' if one.num_replicas == 1 else 'replicas'} {one.kept_share:.1%} of requests keep the promise."
        )
    elif best.num_replicas == 1:
        console.print("One replica keeps it; none would be too few.")
    if best.has_attention_dp:
        console.print(
            "DP: each GPU of a replica computes attention for sequences of its own, since splitting it by heads would have "
            "GPUs keep the same KV; experts are spread over all of them."
        )
    if (other := found.best_by_attention_dp) is not None:
        kind = "With" if other.has_attention_dp else "Without"
        console.print(f"{kind} attention-DP, the cheapest is {other.setup.name}: ${other.price:,.2f} an hour.")
    elif not best.has_attention_dp and any(one.has_attention_dp for one in found.candidates):
        console.print("No fleet with attention-DP of those rehearsed keeps it for less.")
    if (other := found.best_of_other_kind) is not None:
        kind = "Disaggregated" if other.is_disaggregated else "Aggregated"
        console.print(f"{kind}, the cheapest is {other.setup.name}: ${other.price:,.2f} an hour.")
    elif not best.is_disaggregated and any(one.is_disaggregated for one in found.candidates):
        console.print("No disaggregated fleet of those rehearsed keeps it for less.")


def _in_lines(one: Candidate) -> str:
    """Its name; those that compute prompts and those that answer in a line each."""
    return one.setup.name.replace(" + ", "\n+ ")


def _row(one: Candidate) -> list[str]:
    return [
        _in_lines(one),
        str(one.num_gpus),
        f"{one.price:,.2f}",
        f"{one.kept_share:.1%}",
        f"{one.throughput_per_gpu:,.0f}",
        f"{one.interactivity:,.0f}",
    ]


def _document(found: Plan, promise: Promise) -> dict[str, Any]:
    best = found.best
    return {
        "slo_ms": dict(promise.slo_ms),
        "share": promise.share,
        "best": _figures(best) if best is not None else None,
        "candidates": [_figures(one) for one in found.candidates],
        "left_out": found.left_out,
    }


def _figures(one: Candidate) -> dict[str, Any]:
    prefill = one.setup.prefill
    apart = {} if prefill is None else {
        "prefill_device": prefill.gpu.device,
        "prefill_tensor_parallel_size": prefill.gpu.tensor_parallel_size,
        "prefill_data_parallel_size": prefill.gpu.data_parallel_size,
        "prefill_expert_parallel_size": prefill.gpu.expert_parallel_size,
        "prefill_max_num_batched_tokens": prefill.scheduler.max_num_batched_tokens,
        "num_prefill_replicas": one.setup.num_prefill,
    }  # fmt: skip
    return {
        "serving": "disaggregated" if one.is_disaggregated else "aggregated",
        **apart,
        "device": one.shape.gpu.device,
        "tensor_parallel_size": one.shape.gpu.tensor_parallel_size,
        "data_parallel_size": one.shape.gpu.data_parallel_size,
        "expert_parallel_size": one.shape.gpu.expert_parallel_size,
        "max_num_batched_tokens": one.shape.scheduler.max_num_batched_tokens,
        "policy": one.shape.policy,
        "num_replicas": one.num_replicas,
        "usd_per_hour": one.price,
        "keeps": one.keeps,
        "kept_share": one.kept_share,
        "output_tokens_per_s_per_gpu": one.throughput_per_gpu,
        "interactivity_tokens_per_s": one.interactivity,
    }


def _plot(found: Plan, model: str, workload: Workload) -> str:
    best, frontier = found.best, found.pareto
    points = [
        ParetoPoint(
            x=one.interactivity,
            y=one.throughput_per_gpu,
            label=f"{_in_lines(one)}\n${one.price:,.2f} an hour",
            series=one.shape.gpu.device,
            is_square=one.is_disaggregated,
            is_on_frontier=one in frontier,
            is_chosen=one is best,
        )
        for one in found.candidates
    ]
    return pareto_svg(f"{model} under {workload.name}", points)

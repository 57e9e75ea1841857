"""The report as one HTML page that needs no network: style, plots and figures are all inside.

Knows layout; draws with `plots`, and computes nothing. The page has no script: what is to be read at a point is in its
title, which browsers show under the pointer.
"""

from collections.abc import Sequence
from html import escape

from headrace.measure.report.latency import e2el_ms, itl_ms, ttft_ms
from headrace.measure.report.palette import PALETTE
from headrace.measure.report.plots import Line, Marks, plot
from headrace.measure.report.record import Run, RunFacts
from headrace.measure.report.summary import Summary, summarize
from headrace.measure.report.table import FOOTNOTE, distribution_header, distribution_rows, facts, figure
from headrace.measure.report.timeline import stalls, timeline

_MOST_POINTS = 400
_MOST_STALLS = 200

_STYLE = """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 2.5rem 1.5rem 4rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; letter-spacing: -.01em; } h2 { font-size: 1.05rem; margin: 2.4rem 0 .8rem; }
.about { color: var(--faint); margin: 0 0 1.6rem; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(142px, 1fr)); gap: .8rem; }
.tile, .card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: .9rem 1.1rem; }
.tile b { display: block; font-size: 1.45rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { color: var(--faint); font-size: .85rem; }
.warnings { list-style: none; padding: 0; margin: 1rem 0 0; } .warnings li { border-left: 4px solid var(--warn);
  padding: .45rem .9rem; margin-bottom: .4rem; background: var(--card); } .warnings li.alarm { border-color: var(--alarm);
  color: var(--alarm); font-weight: 600; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 500px), 1fr)); gap: 1rem; }
figure { margin: 0; } figcaption { font-weight: 600; margin-bottom: .4rem; } figcaption small { font-weight: 400;
  color: var(--faint); }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; color: var(--faint); font-size: .8rem; margin-bottom: .3rem; }
.legend i { display: inline-block; width: 12px; height: 4px; margin-right: .4rem; vertical-align: middle; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--faint); font-size: 11px; }
svg .grid { stroke: var(--rule); } svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .35rem .7rem; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--faint); font-weight: 500; font-size: .85rem; } th:first-child, td:first-child { text-align: left; }
table.facts td { text-align: left; white-space: normal; } table.facts td:nth-child(2) { font-weight: 600; }
table.facts td:nth-child(3) { color: var(--faint); } footer { color: var(--faint); font-size: .85rem; margin-top: 2.5rem; }
"""


def render_page(runs: Sequence[Run], *, shares: Sequence[float]) -> str:
    """One run, or several: a sweep, or A beside B. Several also get a table and goodput against load."""
    summaries = [summarize(run, shares=shares) for run in runs]
    names = _names([run.facts for run in runs])
    several = len(runs) > 1
    parts = [_head([run.facts for run in runs])]
    if several:
        parts += [_table_of_runs(names, summaries), _plots_of_runs(runs, summaries)]
    else:
        parts += [_tiles(summaries[0])]
    parts.append(_warnings(names, summaries))
    parts.append(_plots(names, runs, summaries))
    for name, run, summary in zip(names, runs, summaries, strict=True):
        parts.append(_figures(name if several else "", run, summary, shares))
    parts.append(
        "<footer>Latencies count from the moment at which a request was meant to leave. A percentile is only as good "
        f"as the count behind it: {FOOTNOTE}. Made by headrace.</footer>"
    )
    title = escape(runs[-1].facts.label or runs[-1].facts.model or "run")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}: what users felt</title><style>{PALETTE}{_STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _head(runs: Sequence[RunFacts]) -> str:
    """What all of them have in common."""
    first = runs[0]
    sources = " and ".join(sorted({run.source for run in runs}))
    what = f"{sources} run" if len(runs) == 1 else f"{len(runs)} runs, {sources}"
    rate = f"{first.request_rate:g} req/s" if len(runs) == 1 and first.request_rate is not None else ""
    seeds, models, urls = ({getattr(run, name) for run in runs} - {""} for name in ("seed", "model", "url"))
    about = [*sorted(models), *sorted(urls), what, first.workload, rate, f"seed {first.seed}" if len(seeds) == 1 else "",
             runs[-1].date]  # fmt: skip
    title = first.label if len(runs) == 1 and first.label else "What users felt"
    return f'<h1>{escape(title)}</h1><p class="about">{escape(" · ".join(part for part in about if part))}</p>'


def _tiles(summary: Summary) -> str:
    found = summary.distributions
    tiles = [
        ("output tokens/s", figure(summary.output_throughput)),
        ("requests/s", figure(summary.request_throughput)),
        *((f"{title}, ms", figure(found[name].median)) for name, title in (("ttft", "TTFT median"), ("itl", "ITL median"))
          if name in found),
        *((f"p{p.share:g} {title}, ms", figure(p.value)) for name, title in (("ttft", "TTFT"), ("itl", "ITL"))
          if name in found for p in found[name].percentiles[-1:]),
    ]  # fmt: skip
    if summary.goodput is not None:
        tiles.append(("kept all promises", f"{summary.goodput.joint_share:.1%}"))
    if summary.num_failed:
        tiles.append(("failed", f"{summary.num_failed:,}"))
    body = "".join(f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in tiles)
    return f'<div class="tiles">{body}</div>'


def _warnings(names: Sequence[str], summaries: Sequence[Summary]) -> str:
    lines = []
    for name, summary in zip(names, summaries, strict=True):
        for warning in summary.warnings:
            kind = ' class="alarm"' if warning.startswith("THE CLIENT") else ""
            lines.append(f"<li{kind}>{escape(f'{name}: ' if len(names) > 1 else '')}{escape(warning)}</li>")
    return f'<ul class="warnings">{"".join(lines)}</ul>' if lines else ""


def _ttft_values(run: Run) -> list[float]:
    return [value for record in run.records if (value := ttft_ms(record)) is not None]


def _gap_values(run: Run) -> list[float]:
    return [gap for record in run.records for gap in itl_ms(record)]


def _e2e_values(run: Run) -> list[float]:
    return [value for record in run.records if (value := e2el_ms(record)) is not None]


_DISTRIBUTIONS = (
    ("Time to first token", "requests", _ttft_values),
    ("Gaps between tokens", "gaps", _gap_values),
    ("End to end", "requests", _e2e_values),
)


def _plots(names: Sequence[str], runs: Sequence[Run], summaries: Sequence[Summary]) -> str:
    """Several runs share the distributions' plots; the timeline is the last run's."""
    figures = [
        _figure(f"{title} <small>share of {of} at most so long</small>",
                plot([Line(name, _cumulated(values(run))) for name, run in zip(names, runs, strict=True)],
                     x_name="ms", y_name="share", log_x=True, y_top=1.0))
        for title, of, values in _DISTRIBUTIONS
        if any(values(run) for run in runs)
    ]  # fmt: skip
    last = runs[-1]
    line = timeline(last.records, last.facts.duration_ns)
    seconds = [(index + 0.5) * line.bin_ns / 1e9 for index in range(len(line.in_flight))]
    what = f" <small>{escape(names[-1])}</small>" if len(runs) > 1 else ""
    stalled = [s.from_ns / 1e9 for s in stalls(last.records)[:_MOST_STALLS]]
    in_flight = Line("in flight", list(zip(seconds, line.in_flight, strict=True)))
    tokens = Line("tokens/s", list(zip(seconds, line.tokens_per_s, strict=True)))
    figures.append(_figure(f"Requests in flight{what}", plot([in_flight], x_name="s", y_name="")))
    figures.append(
        _figure(
            f"Output tokens per second{what}"
            + (
                f" <small>stalls begin at the marks: {_of(len(stalled), summaries[-1].num_stalls)}</small>"
                if stalled
                else ""
            ),
            plot([tokens], x_name="s", y_name="", marks=Marks("a stall begins", stalled)),
        )
    )
    figures.append(
        _figure(f"Time to first token over the run{what} <small>by the intended send; ms</small>", _ttft_over_time(last))
    )
    return f'<h2>Distributions and time</h2><div class="plots">{"".join(figures)}</div>'


def _of(shown: int, total: int) -> str:
    return f"{total:,}" if shown == total else f"the longest {shown:,} of {total:,}"


def _ttft_over_time(run: Run) -> str:
    points = [(r.intended_ns / 1e9, value) for r in run.records if (value := ttft_ms(r)) is not None]
    step = max(1, len(points) // 1500)
    return plot([Line("TTFT", sorted(points)[::step], is_scatter=True)], x_name="s", y_name="")


def _plots_of_runs(runs: Sequence[Run], summaries: Sequence[Summary]) -> str:
    """Against the load that was offered, where the runs differ in it."""
    loads = [_load(run.facts, summary) for run, summary in zip(runs, summaries, strict=True)]
    if len(set(loads)) < 3:
        return ""

    def against(name: str, values: Sequence[float | None]) -> Line:
        return Line(name, sorted((x, y) for x, y in zip(loads, values, strict=True) if y is not None), has_points=True)

    what = "users" if runs[0].facts.request_rate is None else "offered req/s"
    throughput = [against("throughput", [s.request_throughput for s in summaries])]
    if summaries[0].goodput is not None:
        throughput.append(against("goodput, joint", [s.goodput.joint if s.goodput else None for s in summaries]))
        for name in summaries[0].goodput.per_objective:
            throughput.append(
                against(f"goodput {name}", [s.goodput.per_objective.get(name) if s.goodput else None for s in summaries])
            )
    tails = [
        against(f"p{share:g} TTFT", [_value(summary, "ttft", share) for summary in summaries])
        for share in [p.share for p in summaries[0].distributions["ttft"].percentiles]
    ] if "ttft" in summaries[0].distributions else []  # fmt: skip
    figures = [
        _figure("Goodput against load <small>requests per second</small>", plot(throughput, x_name=what, y_name="")),
        _figure("Output tokens per second against load", 
                plot([against("tokens/s", [s.output_throughput for s in summaries])], x_name=what, y_name="")),
        _figure("Time to first token against load <small>ms</small>", plot(tails, x_name=what, y_name="")) if tails else "",
    ]  # fmt: skip
    return f'<h2>Against load</h2><div class="plots">{"".join(figures)}</div>'


def _value(summary: Summary, name: str, share: float) -> float | None:
    found = summary.distributions.get(name)
    return found.percentile(share) if found is not None else None


def _load(facts: RunFacts, summary: Summary) -> float:
    if facts.request_rate is not None:
        return facts.request_rate
    return float(facts.max_concurrency or summary.max_concurrent_requests)


def _table_of_runs(names: Sequence[str], summaries: Sequence[Summary]) -> str:
    share = max((p.share for s in summaries for d in s.distributions.values() for p in d.percentiles), default=None)
    header = ["run", "completed", "failed", "req/s", "tok/s", "goodput", "median TTFT", 
              *([f"p{share:g} TTFT"] if share else ()), "mean TPOT", "stalls"]  # fmt: skip
    rows = []
    for name, s in zip(names, summaries, strict=True):
        ttft, tpot = s.distributions.get("ttft"), s.distributions.get("tpot")
        rows.append([
            name, f"{s.num_completed:,}", f"{s.num_failed:,}", figure(s.request_throughput), figure(s.output_throughput),
            f"{s.goodput.joint_share:.1%}" if s.goodput else "", figure(ttft.median) if ttft else "",
            *([figure(ttft.percentile(share)) if ttft else ""] if share else ()), figure(tpot.mean) if tpot else "",
            f"{s.num_stalls:,}",
        ])  # fmt: skip
    return f"<h2>Runs</h2>{_table(header, rows)}"


def _figures(name: str, run: Run, summary: Summary, shares: Sequence[float]) -> str:
    rows = "".join(
        f"<tr><td>{escape(f.name)}</td><td>{escape(f.value)}</td><td>{escape(f.note)}</td></tr>"
        for f in facts(run.facts, summary)
    )
    return (
        f"<h2>{escape(name) or 'Figures'}</h2>{_table(distribution_header(shares), distribution_rows(summary, shares))}<br>"
        f'<div class="card scroll"><table class="facts">{rows}</table></div>'
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="card scroll"><table><tr>{head}</tr>{body}</table></div>'


def _figure(caption: str, drawing: str) -> str:
    return f'<figure class="card"><figcaption>{caption}</figcaption>{drawing}</figure>'


def _names(runs: Sequence[RunFacts]) -> list[str]:
    """What tells runs apart: label, then load; numbered where that does not."""
    names = []
    for run in runs:
        load = f"{run.request_rate:g} req/s" if run.request_rate is not None else f"{run.max_concurrency or 'all'} at once"
        names.append(f"{run.label} {load}".strip() if run.source == "live" else f"{run.label} {run.source}".strip())
    repeated = {name for name in names if names.count(name) > 1}
    return [f"{name} #{names[: i + 1].count(name)}" if name in repeated else name for i, name in enumerate(names)]


def _cumulated(values: Sequence[float]) -> list[tuple[float, float]]:
    """Points of the distribution, thinned in the middle and whole at the tail, where the eye looks."""
    ordered = sorted(values)
    count = len(ordered)
    places = {round(index * (count - 1) / _MOST_POINTS) for index in range(_MOST_POINTS + 1)} | set(
        range(max(0, count - 50), count)
    )
    return [(ordered[place], (place + 1) / count) for place in sorted(places) if count]

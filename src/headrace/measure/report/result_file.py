"""The result file: vLLM's names and values at the top, so that scripts and plots made for it work, and all records below.

Writes and reads bytes; opens no file. Every figure of ours is computed again from the records when a file is read. Of files
that `vllm bench serve --save-detailed` wrote, the records are made from its lists.
"""

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError
from headrace.base.units import nanos, seconds
from headrace.measure.report.record import RequestRecord, Run, RunFacts
from headrace.measure.report.statistics import Distribution
from headrace.measure.report.summary import Summary
from headrace.measure.report.table import TITLES

DEFAULT_METRICS = ("ttft", "tpot", "itl", "e2el")
_VERSION = 1


def result_document(
    run: Run, summary: Summary, *, metrics: Sequence[str] = DEFAULT_METRICS, detailed: bool = False
) -> dict[str, Any]:
    """Ready for JSON. `detailed` adds vLLM's lists of every request; our own records are always there."""
    facts = run.facts
    document: dict[str, Any] = {
        "date": facts.date,
        "endpoint_type": facts.backend,
        "backend": facts.backend,
        "label": facts.label or None,
        "model_id": facts.model,
        "tokenizer_id": facts.model,
        "num_prompts": len(run.records),
        **facts.metadata,
        "request_rate": "inf" if facts.request_rate is None else facts.request_rate,
        "burstiness": "inf" if math.isinf(facts.burstiness) else facts.burstiness,
        "max_concurrency": facts.max_concurrency,
        "duration": summary.duration_s,
        "completed": summary.num_completed,
        "failed": summary.num_failed,
        "total_input": summary.num_prompt_tokens,
        "total_output": summary.num_output_tokens,
        "total_input_tokens": summary.num_prompt_tokens,
        "total_output_tokens": summary.num_output_tokens,
        "request_throughput": summary.request_throughput,
        "request_goodput": summary.goodput.joint if summary.goodput else None,
        "output_throughput": summary.output_throughput,
        "total_token_throughput": summary.total_token_throughput,
        "max_output_tokens_per_s": summary.max_output_tokens_per_s,
        "max_concurrent_requests": summary.max_concurrent_requests,
    }
    for name in metrics:
        found = summary.distributions.get(_OUR_NAMES.get(name, name))
        if found is not None:
            document |= _vllm_statistics(name, found)
    if detailed:
        document |= _vllm_lists(run.records)
    document["headrace"] = {"version": _VERSION, "summary": summary, "run": run}
    return document


_OUR_NAMES = {"e2el_including_client_queue": "e2el"}
"""Our latencies count from the intended send anyway."""
KNOWN_METRICS = (*TITLES, *_OUR_NAMES)
"""What may have statistics at the top of a result file."""


def _vllm_statistics(name: str, found: Distribution) -> dict[str, float]:
    values = {f"mean_{name}_ms": found.mean, f"median_{name}_ms": found.median, f"std_{name}_ms": found.std}
    return values | {f"p{p.share:g}_{name}_ms": p.value for p in found.percentiles}


def _vllm_lists(records: Iterable[RequestRecord]) -> dict[str, list[Any]]:
    records = list(records)
    return {
        "input_lens": [r.num_prompt_tokens for r in records],
        "output_lens": [r.num_output_tokens for r in records],
        "ttfts": [seconds(r.first_chunk_ns - r.intended_ns) if r.first_chunk_ns is not None else 0.0 for r in records],
        "itls": [[seconds(gap) for gap in r.gaps_ns] for r in records],
        "latencies": [seconds(r.finished_ns - r.intended_ns) for r in records],
        "start_times": [seconds(r.sent_ns) for r in records],
        "queue_times": [seconds(r.sent_ns - r.intended_ns) for r in records],
        "generated_texts": [r.text for r in records],
        "errors": [r.error_detail or r.error for r in records],
    }


def write_result(run: Run, summary: Summary, *, metrics: Sequence[str] = DEFAULT_METRICS, detailed: bool = False) -> bytes:
    return msgspec.json.encode(result_document(run, summary, metrics=metrics, detailed=detailed), enc_hook=_as_list)


def _as_list(value: object) -> list[int]:
    """Long runs keep gaps in arrays."""
    if isinstance(value, array):
        return value.tolist()
    raise TypeError(f"a result holds no {type(value).__name__}")


def read_results(data: bytes, *, name: str) -> list[Run]:
    """The runs of a file: one document, or one a line as `--append-result` leaves them. Ours, or vLLM's with its lists."""
    lines = [line for line in data.splitlines() if line.strip()]
    documents = lines if len(lines) > 1 and all(line.startswith(b"{") and line.endswith(b"}") for line in lines) else [data]
    return [_read_result(document, name) for document in documents]


def _read_result(data: bytes, name: str) -> Run:
    try:
        document = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{name} is no result file: {error}") from None
    if isinstance(document, dict) and isinstance(document.get("headrace"), dict):
        if document["headrace"].get("version") != _VERSION:
            raise ConfigurationError(f"{name} has another version than this program reads ({_VERSION})")
        try:
            return msgspec.convert(document["headrace"]["run"], Run)
        except (msgspec.ValidationError, KeyError) as error:
            raise ConfigurationError(f"{name} is no result file: {error}") from None
    if isinstance(document, dict) and "itls" in document and "ttfts" in document:
        return _from_vllm(document, name)
    raise ConfigurationError(f"{name} holds no requests; with `vllm bench serve`, use --save-detailed")


class _VllmResult(msgspec.Struct):
    """What of a file of `vllm bench serve --save-detailed` says how each request fared; seconds."""

    duration: Annotated[float, msgspec.Meta(gt=0)]
    ttfts: list[float]
    itls: list[list[float]]
    input_lens: list[int]
    output_lens: list[int]
    start_times: list[float] | None = None
    queue_times: list[float] | None = None
    latencies: list[float] | None = None
    errors: list[str | None] | None = None
    request_rate: float | str | None = None
    max_concurrency: int | None = None
    label: str | None = None
    date: str = ""
    endpoint_type: str = ""
    model_id: str = ""


def _from_vllm(document: dict[str, Any], name: str) -> Run:
    try:
        found = msgspec.convert(document, _VllmResult)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{name} is no result file: {error}") from None
    number = len(found.ttfts)
    starts, waits = found.start_times or [0.0] * number, found.queue_times or [0.0] * number
    errors, wholes = found.errors or [""] * number, found.latencies or [0.0] * number
    for lists in (found.itls, found.input_lens, found.output_lens, starts, waits, errors, wholes):
        if len(lists) != number:
            raise ConfigurationError(
                f"{name} is no result file: it has {number} first tokens, and {len(lists)} of another list"
            )
    origin = min((start - wait for start, wait in zip(starts, waits, strict=True)), default=0.0)
    records = []
    for index, (ttft, itls, start, wait) in enumerate(zip(found.ttfts, found.itls, starts, waits, strict=True)):
        sent = nanos(start - origin)
        records.append(
            RequestRecord(
                request_id=f"r{index}",
                intended_ns=Nanos(sent - nanos(wait)),
                sent_ns=Nanos(sent),
                first_chunk_ns=Nanos(sent + nanos(ttft)) if ttft else None,
                gaps_ns=tuple(Nanos(nanos(gap)) for gap in itls),
                finished_ns=Nanos(sent + nanos(wholes[index] or ttft + math.fsum(itls))),
                num_prompt_tokens=found.input_lens[index],
                num_output_tokens=found.output_lens[index],
                error="failed" if errors[index] else "",
                error_detail=errors[index] or "",
            )
        )
    facts = RunFacts(
        source="live",
        duration_ns=Nanos(nanos(found.duration)),
        label=found.label or name,
        date=found.date,
        backend=found.endpoint_type,
        model=found.model_id,
        request_rate=found.request_rate if isinstance(found.request_rate, float) else None,
        max_concurrency=found.max_concurrency,
    )
    return Run(facts=facts, records=tuple(records))

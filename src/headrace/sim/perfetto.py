"""A fleet's log as a trace for Perfetto (ui.perfetto.dev) and `chrome://tracing`, in the Trace Event Format.

One process a replica; requests as async slices with their queueing, prefill and decode inside, KV that comes from other
replicas likewise, figures as counters, faults as instants. Makes bytes; opens no file.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.sim.fleet_log import FleetLog, Span, TransferSpan


def perfetto_trace(log: FleetLog) -> bytes:
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": list(_events(log))})


def _events(log: FleetLog) -> Iterator[dict[str, Any]]:
    numbers = {name: index + 1 for index, name in enumerate(log.replicas)}
    for name, pid in numbers.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        columns = log.columns[name]
        for index, at_ms in enumerate(log.at_ms):
            yield {
                "ph": "C", "name": "sequences", "pid": pid, "ts": at_ms * 1e3,
                "args": {"running": columns.num_running[index], "waiting": columns.num_waiting[index]},
            }  # fmt: skip
            yield {
                "ph": "C", "name": "KV blocks, per mille", "pid": pid, "ts": at_ms * 1e3,
                "args": {"in use": columns.kv_permille[index], "cached": columns.cached_permille[index]},
            }  # fmt: skip
    for number, span in enumerate(log.spans):
        yield from _slices(span, numbers[span.replica], number)
    for number, transfer in enumerate(log.transfers):
        yield from _transfer(transfer, numbers[transfer.target], number)
    for event in log.events:
        name = f"{event.kind} {event.replica}".strip()
        yield {"ph": "i", "name": name, "pid": numbers.get(event.replica, 1), "tid": 0, "ts": event.at_ms * 1e3, "s": "g"}


def _transfer(transfer: TransferSpan, pid: int, number: int) -> Iterator[dict[str, Any]]:
    """On the replica that it comes to: the wait for its turn, and the way."""
    common = {"cat": "transfer", "id": number, "pid": pid, "tid": 0}
    name = f"KV from {transfer.source}" + (f": {transfer.error}" if transfer.error else "")
    facts = {"request": transfer.request_id, "megabytes": transfer.num_bytes / 1e6}
    pieces = [(name, transfer.asked, transfer.ended), ("on its way", transfer.begun, transfer.ended)]
    for piece, begin, end in pieces:
        yield {**common, "name": piece, "ph": "b", "ts": begin / 1e3, "args": facts if piece == name else {}}
        yield {**common, "name": piece, "ph": "e", "ts": end / 1e3}


def _slices(span: Span, pid: int, number: int) -> Iterator[dict[str, Any]]:
    """The request's slice, and its phases inside it. Microseconds, as the format has it."""
    facts = {"cached tokens": span.num_cached_tokens, "output tokens": span.num_output_tokens}
    pieces = [
        (span.request_id, span.arrived, span.finished),
        ("queued", span.arrived, span.scheduled),
        ("prefill", span.scheduled, span.first_token),
        ("decode", span.first_token, span.finished),
    ]
    for name, begin, end in pieces:
        common = {"cat": "request", "id": number, "name": name, "pid": pid, "tid": 0}
        yield {**common, "ph": "b", "ts": begin / 1e3, "args": facts if name == span.request_id else {}}
        yield {**common, "ph": "e", "ts": end / 1e3}

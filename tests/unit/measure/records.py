"""Requests as they might have gone, made by hand: moments in milliseconds."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from headrace.base.clock import Nanos
from headrace.base.units import NANOS_PER_MILLI
from headrace.measure.report.record import RequestRecord, Run, RunFacts

MS = NANOS_PER_MILLI


def request(
    number: int = 0, *, intended: float = 0.0, late: float = 0.0, chunks: Sequence[float] = (), end: float | None = None,
    error: str = "", **more: Any,
) -> RequestRecord:  # fmt: skip
    """`chunks` are moments after the intended send, as is `end` (the last chunk, if nothing is said)."""
    at = [round((intended + chunk) * MS) for chunk in chunks]
    finished = intended + (end if end is not None else chunks[-1])
    return RequestRecord(
        request_id=f"r{number}",
        intended_ns=Nanos(round(intended * MS)),
        sent_ns=Nanos(round((intended + late) * MS)),
        first_chunk_ns=Nanos(at[0]) if at else None,
        gaps_ns=tuple(Nanos(after - before) for before, after in pairwise(at)),
        finished_ns=Nanos(round(finished * MS)),
        num_output_tokens=more.pop("num_output_tokens", len(at)),
        error=error,
        **more,
    )


def run_of(records: Sequence[RequestRecord], *, duration: float | None = None, **facts: Any) -> Run:
    end = max((record.finished_ns for record in records), default=Nanos(0))
    length = Nanos(round(duration * MS)) if duration is not None else end
    return Run(facts=RunFacts(source=facts.pop("source", "live"), duration_ns=length, **facts), records=tuple(records))

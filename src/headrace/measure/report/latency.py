"""TTFT, ITL, TPOT, E2E, interactivity and queueing of one request: the definitions, each with an example.

All in milliseconds, from the intended send. A value that does not exist is None, never 0.

The example is a request meant to leave at 1 s, sent 10 ms late, whose three tokens came 100, 150 and 350 ms after the
intended moment.

>>> from headrace.base.clock import Nanos
>>> ms = 1_000_000
>>> example = RequestRecord(
...     request_id="example", intended_ns=Nanos(1000 * ms), sent_ns=Nanos(1010 * ms), first_chunk_ns=Nanos(1100 * ms),
...     gaps_ns=(Nanos(50 * ms), Nanos(200 * ms)), finished_ns=Nanos(1350 * ms), num_output_tokens=3)
>>> ttft_ms(example), itl_ms(example), tpot_ms(example), e2el_ms(example)
(100.0, [50.0, 200.0], 125.0, 350.0)
>>> client_queue_time_ms(example), interactivity(example)
(10.0, 8.0)
"""

from headrace.base.units import NANOS_PER_MILLI
from headrace.measure.report.record import RequestRecord


def ttft_ms(record: RequestRecord) -> float | None:
    """Time to first token: from the intended send to the first chunk that carried a token."""
    if record.first_chunk_ns is None:
        return None
    return (record.first_chunk_ns - record.intended_ns) / NANOS_PER_MILLI


def itl_ms(record: RequestRecord) -> list[float]:
    """Inter-token latency: every gap between chunks that carried tokens, none averaged away."""
    return [gap / NANOS_PER_MILLI for gap in record.gaps_ns]


def e2el_ms(record: RequestRecord) -> float | None:
    """End-to-end latency: from the intended send to the last byte of a complete answer."""
    return (record.finished_ns - record.intended_ns) / NANOS_PER_MILLI if record.is_completed else None


def tpot_ms(record: RequestRecord) -> float | None:
    """Time per output token after the first: (E2E - TTFT) / (tokens - 1); None for answers of one token.

    It counts tokens, not chunks, so it is right where a server sends several tokens at once.
    """
    first, whole = ttft_ms(record), e2el_ms(record)
    if first is None or whole is None or record.num_output_tokens < 2:
        return None
    return (whole - first) / (record.num_output_tokens - 1)


def interactivity(record: RequestRecord) -> float | None:
    """Tokens per second as one user sees them: 1 / TPOT."""
    per_token = tpot_ms(record)
    return 1000 / per_token if per_token else None


def client_queue_time_ms(record: RequestRecord) -> float:
    """Between the intended and the real send: a limit on concurrency, or a client that was late."""
    return (record.sent_ns - record.intended_ns) / NANOS_PER_MILLI


def server_queue_time_ms(record: RequestRecord) -> float | None:
    """In the server's own queue, where it says so."""
    return None if record.queued_ns is None else record.queued_ns / NANOS_PER_MILLI

"""The workload file: JSON lines, one that introduces and one a request. Takes and gives lines; opens no file."""

from collections.abc import Iterable, Iterator

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.measure.workload.request import Workload, WorkloadRequest

_VERSION = 1


class _Header(msgspec.Struct, kw_only=True):
    headrace_workload: int
    name: str
    seed: int
    vocab_size: int
    num_requests: int


def write_workload(workload: Workload) -> Iterator[bytes]:
    """Lines, each with its end."""
    header = _Header(
        headrace_workload=_VERSION,
        name=workload.name,
        seed=workload.seed,
        vocab_size=workload.vocab_size,
        num_requests=len(workload.requests),
    )
    yield msgspec.json.encode(header) + b"\n"
    for request in workload.requests:
        yield msgspec.json.encode(request) + b"\n"


_WRITTEN_BY = "`headrace bench --write-workload FILE` writes such a file"


def read_workload(lines: Iterable[bytes]) -> Workload:
    """Raises ConfigurationError naming the line where it is no workload of this version, or not whole."""
    rows = iter(lines)
    first = next(rows, b"")
    if not first.strip():
        raise ConfigurationError(f"line 1 is empty, and introduces no workload: {_WRITTEN_BY}")
    try:
        header = msgspec.json.decode(first, type=_Header)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"line 1 does not introduce a workload ({error}): {_WRITTEN_BY}") from None
    if header.headrace_workload != _VERSION:
        raise ConfigurationError(f"the workload has version {header.headrace_workload}; this program reads {_VERSION}")
    decoder = msgspec.json.Decoder(WorkloadRequest)
    requests = []
    for number, row in enumerate(rows, start=2):
        try:
            requests.append(decoder.decode(row))
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"line {number} is no request: {error}") from None
    if len(requests) != header.num_requests:
        raise ConfigurationError(f"the workload has {len(requests)} of its {header.num_requests} requests: it was cut off")
    return Workload(name=header.name, requests=tuple(requests), seed=header.seed, vocab_size=header.vocab_size)

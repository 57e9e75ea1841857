"""LoadReport: what an endpoint tells its router about itself, again and again. Versioned by the epoch that it belongs to."""

import msgspec


class LoadReport(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    """The membership epoch in which the endpoint serves; a report of another one is of another life of it."""
    sequence: int
    """Counts up within an epoch: of two reports the higher is the later, in whatever order they come."""
    num_running: int
    num_waiting: int
    kv_cache_usage: float
    """Share of KV blocks that sequences hold, 0..1."""

"""What a mind says of KV that moves between engines: where it lies, what is fetched, and who keeps it until when.

An engine that computed a prompt for another one keeps its blocks under a lease: until the other has fetched them, or until
the lease ends, so that nothing is held for somebody who died. Knows numbers of blocks and moments; moves nothing.
"""

from enum import StrEnum

import msgspec

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError
from headrace.base.ids import BlockId, RequestId, SequenceId


class LoadFailurePolicy(StrEnum):
    """What becomes of a request whose KV could not be fetched, or not all of it."""

    RECOMPUTE = "recompute"
    """What is missing is computed here."""
    FAIL = "fail"
    """It ends with an error: whoever asked may know a better place."""


class KVTransferConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    load_failure_policy: LoadFailurePolicy = LoadFailurePolicy.RECOMPUTE
    """What becomes of a request whose KV does not come."""
    lease_ns: Nanos = Nanos(60_000_000_000)
    """So long a finished request's KV is kept for whoever fetches it, from its end or from the last sign of the other."""

    def __post_init__(self) -> None:
        if self.lease_ns < 1:
            raise ConfigurationError(f"lease_ns must be at least 1, not {self.lease_ns}")


class KVSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where the KV of a prompt's first tokens lies. What OpenAI-style servers call `kv_transfer_params`."""

    engine_id: str
    """One life of one engine: whoever starts again is somebody else."""
    request_id: RequestId
    """Under which that engine keeps it."""
    block_ids: tuple[BlockId, ...]
    """There, in order."""
    num_tokens: int


class KVLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks to be filled from elsewhere. Until its end is told they belong to the transfer, whatever becomes of it."""

    sequence_id: SequenceId
    source: KVSource
    first_block: int
    """How many leading blocks of the source are not wanted: they were found here."""
    block_ids: tuple[BlockId, ...]
    """Of this engine, to be filled in order."""
    num_tokens: int
    """Of the source's tokens, counted from the prompt's first, how many are wanted; the last block may be full in part."""


class KVLeases:
    """Blocks that finished requests left for others to fetch. A lease ends once: fetched, or over."""

    def __init__(self) -> None:
        self._leases: dict[RequestId, tuple[list[BlockId], Nanos]] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._leases

    @property
    def holders(self) -> list[list[BlockId]]:
        return [block_ids for block_ids, _ in self._leases.values()]

    @property
    def num_blocks(self) -> int:
        """Of all leases; what two of them share counts twice."""
        return sum(len(block_ids) for block_ids, _ in self._leases.values())

    def begin(self, request_id: RequestId, block_ids: list[BlockId], until: Nanos) -> None:
        assert request_id not in self._leases, f"the KV of {request_id} is kept already"
        self._leases[request_id] = block_ids, until

    def renew(self, request_id: RequestId, until: Nanos) -> bool:
        """Whether there is such a lease; it lasts longer then, never shorter."""
        found = self._leases.pop(request_id, None)
        if found is not None:
            self._leases[request_id] = found[0], max(found[1], until)
        return found is not None

    def end(self, request_id: RequestId) -> list[BlockId]:
        """What it held: nothing, if it has ended before, for its end and its confirmation may cross."""
        return self._leases.pop(request_id, ([], 0))[0]

    def over(self, now: Nanos) -> list[RequestId]:
        return [request_id for request_id, (_, until) in self._leases.items() if until <= now]

    def next_end(self) -> Nanos | None:
        return min((until for _, until in self._leases.values()), default=None)

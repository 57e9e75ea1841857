"""What must hold in rehearsal, whatever goes wrong. What must hold of a mind's own books, the mind checks itself
(`check_integrity`); here is what nobody inside can know: what was told to whom, and in which order.

Keeps its own account of members, epochs, generations and tenants, and believes none of the fleet's.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from headrace.base.ids import BlockId, RequestId, SequenceId
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.decode_run import DecodeRun
from headrace.engine.mind.request import Request
from headrace.engine.mind.step import StepPlan
from headrace.router.mind.disaggregation import Leg
from headrace.router.mind.endpoint import EndpointRole
from headrace.sim.watch import Watch

_LEGS = {
    EndpointRole.BOTH: (Leg.WHOLE, Leg.PREFILL, Leg.DECODE),
    EndpointRole.PREFILL: (Leg.PREFILL,),
    EndpointRole.DECODE: (Leg.WHOLE, Leg.DECODE),
}
"""What each may be sent."""


def check_step(plan: StepPlan, config: SchedulerConfig) -> None:
    """Asserts that a step advances somebody, stays within its budget and names each sequence once."""
    assert plan.scheduled, "a step that computes nothing"
    assert plan.num_tokens <= config.max_num_batched_tokens, "the token budget is exceeded"
    assert len(plan.scheduled) <= config.max_num_seqs, "too many sequences at once"
    ids = [entry.sequence_id for entry in plan.scheduled]
    assert len(ids) == len(set(ids)), "a sequence is scheduled twice in one step"
    assert all(entry.num_tokens >= 1 for entry in plan.scheduled), "an entry that computes nothing"
    assert {new.sequence_id for new in plan.new_sequences} <= set(ids), "a new sequence that is not scheduled"


class FleetInvariants(Watch):
    """Asserts, as things happen. `salt_of` knows the tenant of a request by its seed, which crosses every boundary."""

    def __init__(
        self,
        configs: Mapping[str, SchedulerConfig],
        salt_of: Callable[[int], str],
        roles: Mapping[str, EndpointRole] = MappingProxyType({}),
    ) -> None:
        """`roles`: by replica, where it is not both."""
        self._roles = roles
        self._configs = configs
        self._salt_of = salt_of
        self._last_epoch = 0
        self._accepting: dict[str, int] = {}  # by replica, the epoch in which it may be sent to
        self._present: dict[str, int] = {}  # by replica, the epoch of which it is a member, draining or not
        self._newest: dict[RequestId, int] = {}
        self._forwarded: dict[RequestId, int] = {}
        self._admitted: set[tuple[str, int, RequestId, int]] = set()
        self._tenants: dict[str, _Tenants] = {name: _Tenants() for name in configs}
        self.touched: dict[str, None] = {}
        """Replicas whose minds decided something since somebody looked."""
        self.num_dispatches = 0

    # The router and its members

    def joined(self, replica: str, epoch: int) -> None:
        if self._present.get(replica) == epoch:
            return  # the same news again; if it drains meanwhile, it goes on draining
        assert epoch > self._last_epoch, f"{replica} joins in epoch {epoch}, and {self._last_epoch} was given before"
        self._last_epoch = epoch
        self._accepting[replica] = self._present[replica] = epoch

    def draining(self, replica: str) -> None:
        self._accepting.pop(replica, None)

    def left(self, replica: str) -> None:
        self._accepting.pop(replica, None)
        self._present.pop(replica, None)

    def dispatched(self, replica: str, epoch: int, request_id: RequestId, generation: int, leg: Leg) -> None:
        self.num_dispatches += 1
        assert leg in _LEGS[self._roles.get(replica, EndpointRole.BOTH)], f"{replica} is sent the {leg} leg of {request_id}"
        assert self._accepting.get(replica) == epoch, (
            f"{request_id} is sent to {replica} in epoch {epoch}, where it takes {self._accepting.get(replica, 'nothing')}"
        )
        assert generation > self._newest.get(request_id, 0), f"{request_id} is sent twice in generation {generation}"
        assert request_id not in self._forwarded, f"{request_id} is sent again after its client saw output"
        self._newest[request_id] = generation

    def admitted(self, replica: str, epoch: int, present_epoch: int, request: Request, generation: int) -> None:
        self.touched[replica] = None
        assert epoch == present_epoch, f"{replica} takes work of epoch {epoch} in epoch {present_epoch}"
        name = (replica, epoch, request.request_id, generation)
        assert name not in self._admitted, f"{replica} takes generation {generation} of {request.request_id} twice"
        self._admitted.add(name)

    def forwarded(self, request_id: RequestId, generation: int) -> None:
        assert generation == self._newest[request_id], (
            f"output of a superseded generation of {request_id} went to its client"
        )
        assert self._forwarded.setdefault(request_id, generation) == generation, (
            f"{request_id} has output of two generations"
        )

    # The engines

    def planned(self, replica: str, plan: StepPlan) -> None:
        self.touched[replica] = None
        config = self._configs[replica]
        check_step(plan, config)
        self._tenants[replica].note(plan, config.block_size, self._salt_of)

    def ran(self, replica: str, run: DecodeRun) -> None:
        self.touched[replica] = None
        assert len(run.sequences) <= self._configs[replica].max_num_seqs, "too many sequences at once"
        self._tenants[replica].note_run(run)

    def loaded(self, replica: str, block_ids: Sequence[BlockId], source: str, source_block_ids: Sequence[BlockId]) -> None:
        self.touched[replica] = None
        self._tenants[replica].note_load(block_ids, self._tenants[source], source_block_ids)

    def lost_cache(self, replica: str) -> None:
        self._tenants[replica] = _Tenants()


class _Tenants:
    """Whose content lies in each block of one replica, by who wrote it."""

    def __init__(self) -> None:
        self._salts: dict[SequenceId, str] = {}
        self._tables: dict[SequenceId, list[BlockId]] = {}
        self._writer: dict[BlockId, str] = {}

    def note(self, plan: StepPlan, block_size: int, salt_of: Callable[[int], str]) -> None:
        for sequence_id in plan.released_sequence_ids:
            self._salts.pop(sequence_id, None)
            self._tables.pop(sequence_id, None)
        for new in plan.new_sequences:
            self._salts[new.sequence_id] = salt_of(new.sampling.seed)
            self._tables[new.sequence_id] = []
        for entry in plan.scheduled:
            salt, table = self._salts[entry.sequence_id], self._tables[entry.sequence_id]
            begins = not table
            table[entry.block_offset : entry.block_offset + len(entry.block_ids)] = entry.block_ids
            first_written = entry.num_computed_tokens // block_size
            if begins:
                for block_id in table[:first_written]:
                    assert self._writer[block_id] == salt, f"sequence {entry.sequence_id} reads another tenant's block"
            for block_id in table[first_written:]:
                self._writer[block_id] = salt

    def note_load(self, block_ids: Sequence[BlockId], source: "_Tenants", source_block_ids: Sequence[BlockId]) -> None:
        """A transfer writes what somebody wrote there."""
        for block_id, source_block_id in zip(block_ids, source_block_ids, strict=True):
            self._writer[block_id] = source._writer[source_block_id]

    def note_run(self, run: DecodeRun) -> None:
        """Steps that were taken together write, too."""
        for growth in run.growths:
            sequence_id = run.sequences[growth.sequence_index].sequence_id
            self._tables[sequence_id][growth.block_offset : growth.block_offset + 1] = [growth.block_id]
            self._writer[growth.block_id] = self._salts[sequence_id]

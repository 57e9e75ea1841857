"""RequestQueue: who waits, in the order in which they should be considered.

By priority if the policy says so, else all are equal; among equals, preempted work first (it has waited before), then in
order of arrival. Knows order only; whether anybody fits is the scheduler's business. Adding, removing and looking at the
front cost the same however many wait.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.base.ids import SequenceId
from headrace.engine.mind.config import SchedulingPolicy
from headrace.engine.mind.sequence import SequenceState


@dataclass(slots=True)
class _Rank:
    """Those of one priority."""

    returned: list[SequenceState] = field(default_factory=list)
    """Preempted, in order of arrival; never more than may run at once."""
    arrived: OrderedDict[SequenceId, SequenceState] = field(default_factory=OrderedDict)


class RequestQueue:
    def __init__(self, policy: SchedulingPolicy) -> None:
        self._by_priority = policy is SchedulingPolicy.PRIORITY
        self._ranks: dict[int, _Rank] = {}
        self._priorities: list[int] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[SequenceState]:
        """In order. The queue may not change while it is iterated."""
        for priority in self._priorities:
            rank = self._ranks[priority]
            yield from rank.returned
            yield from rank.arrived.values()

    def priority_of(self, sequence: SequenceState) -> int:
        return sequence.request.priority if self._by_priority else 0

    def order_of(self, sequence: SequenceState) -> tuple[int, SequenceId]:
        """The key by which running sequences are ranked: the last is the first to be preempted."""
        return self.priority_of(sequence), sequence.sequence_id

    def append(self, sequence: SequenceState) -> None:
        """A new arrival, behind all of its priority."""
        self._rank_for(sequence).arrived[sequence.sequence_id] = sequence
        self._length += 1

    def put_back(self, sequence: SequenceState) -> None:
        """A preempted sequence: before all new work of its priority, among the preempted by arrival."""
        insort(self._rank_for(sequence).returned, sequence, key=lambda other: other.sequence_id)
        self._length += 1

    def remove(self, sequence: SequenceState) -> None:
        priority = self.priority_of(sequence)
        rank = self._ranks[priority]
        if rank.arrived.pop(sequence.sequence_id, None) is None:
            rank.returned.remove(sequence)
        self._length -= 1
        if not rank.arrived and not rank.returned:
            del self._ranks[priority]
            self._priorities.remove(priority)

    def _rank_for(self, sequence: SequenceState) -> _Rank:
        priority = self.priority_of(sequence)
        rank = self._ranks.get(priority)
        if rank is None:
            rank = self._ranks[priority] = _Rank()
            insort(self._priorities, priority)
        return rank

"""EventQueue: what happens next in virtual time. Knows order, nothing else.

Events are ordered by time, then by rank, then by their source, then by the order in which they were scheduled, so a run
depends on its inputs alone. A source may schedule an event anew, at the same moment, and nothing of any other changes place.
"""

import heapq
from collections.abc import Callable
from enum import IntEnum

from headrace.base.clock import ManualClock, Nanos


class Rank(IntEnum):
    """What comes first among events of one moment: the order of a turn of the real engine's loop."""

    MESSAGE = 0
    """Clients' requests and aborts."""
    RESULT = 1
    """Steps that finished."""
    TURN = 2
    """The mind plans, after everything else of this moment."""


class EventQueue:
    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._heap: list[tuple[Nanos, int, int, int, Callable[[], None]]] = []
        self._num_scheduled = 0
        self._is_stopped = False

    @property
    def num_scheduled(self) -> int:
        """Events since the beginning, those that have happened included."""
        return self._num_scheduled

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_moment(self) -> Nanos:
        return self._heap[0][0]

    def schedule(self, moment: Nanos, rank: Rank, action: Callable[[], None], *, source: int = 0) -> None:
        """`source`: whose event it is, by number; 0 where it does not matter."""
        assert moment >= self._clock.now(), "an event cannot be scheduled in the past"
        heapq.heappush(self._heap, (moment, rank, source, self._num_scheduled, action))
        self._num_scheduled += 1

    def run_next(self) -> None:
        """Advances the clock to the next event and performs it."""
        moment, _, _, _, action = heapq.heappop(self._heap)
        self._clock.advance_to(moment)
        action()

    def stop(self) -> None:
        """`run` ends after the event that is happening."""
        self._is_stopped = True

    def run(self, num_events: int) -> None:
        """The next so many events, or fewer, if one of them says `stop`. As `run_next`, with less ado."""
        heap, take, advance_to = self._heap, heapq.heappop, self._clock.advance_to
        self._is_stopped = False
        for _ in range(num_events):
            moment, _, _, _, action = take(heap)
            advance_to(moment)
            action()
            if self._is_stopped:
                return

"""What time is, for code that may not read it.

Knows the unit and the protocol of a clock, and a clock that moves only when told. Does not know the
system's time: `system_clock.py` is the only reader of that.
"""

from typing import NewType, Protocol

Nanos = NewType("Nanos", int)
"""A point in time or a duration in integer nanoseconds; only differences between points mean anything."""


class Clock(Protocol):
    def now(self) -> Nanos:
        """The present, in nanoseconds; never goes backwards."""
        ...


class ManualClock:
    """A clock for tests and rehearsal: it stands still until advanced."""

    def __init__(self, start: int = 0) -> None:
        self._now = Nanos(start)

    def now(self) -> Nanos:
        return self._now

    def advance(self, duration: int) -> Nanos:
        assert duration >= 0, f"time cannot run backwards (asked for {duration} ns)"
        self._now = Nanos(self._now + duration)
        return self._now

    def advance_to(self, moment: Nanos) -> Nanos:
        assert moment >= self._now, f"time cannot run backwards (asked for {moment - self._now} ns)"
        self._now = moment
        return moment

"""The only reader of time in the package. Minds, measures and the simulator may not import it."""

import time

from headrace.base.clock import Nanos


class SystemClock:
    """Monotonic time of this machine; comparable between processes of one machine, not across reboots."""

    def now(self) -> Nanos:
        return Nanos(time.monotonic_ns())


def unix_seconds() -> int:
    """Wall-clock seconds since 1970, for fields of public APIs that ask for them (`created`)."""
    return int(time.time())

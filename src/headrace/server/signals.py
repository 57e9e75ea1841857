"""Ctrl-C and SIGTERM as an event. Knows signals; not what is served."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def stop_on_signals(stop: asyncio.Event, *, on_second: Callable[[], None] | None = None) -> Iterator[None]:
    """While this lasts, Ctrl-C and SIGTERM set `stop`; a second one calls `on_second`, or ends the process as if nobody
    listened."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def remove() -> None:
        for number in signals:
            loop.remove_signal_handler(number)

    def first() -> None:
        stop.set()
        remove()
        if on_second is not None:
            for number in signals:
                loop.add_signal_handler(number, on_second)

    for number in signals:
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        remove()

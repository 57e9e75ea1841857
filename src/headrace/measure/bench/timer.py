"""An alarm on an event loop that rings when it should. Knows moments of the monotonic clock.

Event loops wait in whole milliseconds, which is late or early by up to one. On Linux a timer file descriptor rings within
some tens of microseconds; elsewhere the loop's own timer has to do.
"""

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable

from headrace.base.clock import Clock, Nanos
from headrace.base.units import NANOS_PER_SECOND, seconds

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1


class _TimerSpec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long), ("interval_ns", ctypes.c_long), 
        ("value_s", ctypes.c_long), ("value_ns", ctypes.c_long),
    )  # fmt: skip


class Alarm:
    """Calls back at the moment that was set last."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._descriptor = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._descriptor = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor >= 0:
            loop.add_reader(self._descriptor, self._on_ready)

    def set(self, moment: Nanos) -> None:
        if self._descriptor >= 0:
            moment = max(moment, Nanos(1))  # all zeros would disarm it
            spec = _TimerSpec(0, 0, moment // NANOS_PER_SECOND, moment % NANOS_PER_SECOND)
            self._libc.timerfd_settime(self._descriptor, _ABSOLUTE, ctypes.byref(spec), None)
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later(max(0.0, seconds(moment - self._clock.now())), self._ring)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _on_ready(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, 8)
        self._ring()

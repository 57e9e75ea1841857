"""EventScanner: server-sent events out of bytes as they come. Knows framing; not what an event says."""


class EventScanner:
    """Gives the data of each event that is complete. Written for the common case: whole events, one `data:` line each."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> list[bytes]:
        if self._rest:
            received = self._rest + received
        if b"\r" in received:
            received = _with_plain_line_ends(received)
        *whole, self._rest = received.split(b"\n\n")
        events = []
        for event in whole:
            if event.startswith(b"data: ") and b"\n" not in event:
                events.append(event[6:])
            elif (data := _data(event)) is not None:
                events.append(data)
        return events


def _with_plain_line_ends(received: bytes) -> bytes:
    """A carriage return at the very end may be half of a line's end, so it stays until its other half is there."""
    if received.endswith(b"\r"):
        return received[:-1].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + b"\r"
    return received.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data(event: bytes) -> bytes | None:
    """The `data` lines of an event, joined; None for one without (comments, keep-alives)."""
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None

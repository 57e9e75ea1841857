"""The two ends of the line between an HTTP process and its engine process: messages in, messages out, in order.

Knows ZeroMQ and MessagePack. Does not know what the messages mean, nor who else waits for what.

A PAIR socket on a Unix socket: one peer on each side, nothing is ever dropped. Queues have no high-water mark, since
neither side may stall on the other: the engine must not stop computing because an HTTP process is busy, and an event
loop must not block. What can pile up is bounded by what is in flight: requests by `max_num_queued_requests`, answers
by their `max_tokens`.
"""

from typing import Any, Generic, TypeVar

import msgspec
import zmq

from headrace.engine.host.messages import ClientMessage, EngineMessage

Outgoing = TypeVar("Outgoing")
Incoming = TypeVar("Incoming")

LINGER_MS = 1000
"""How long a closing end waits for its last messages to leave: enough for `EngineFailed`, short enough to exit
promptly."""


class Connection(Generic[Outgoing, Incoming]):
    """One end. Not for several threads."""

    def __init__(self, *, bind: str = "", connect: str = "", incoming: Any) -> None:
        assert bool(bind) != bool(connect), "one end binds, the other connects"
        self._context = zmq.Context(io_threads=1)
        self.socket = self._context.socket(zmq.PAIR)
        self.socket.set(zmq.SNDHWM, 0)
        self.socket.set(zmq.RCVHWM, 0)
        if bind:
            self.socket.bind(bind)
        else:
            self.socket.connect(connect)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Incoming] = msgspec.msgpack.Decoder(incoming)

    def send(self, message: Outgoing) -> None:
        self.socket.send(self._encoder.encode(message), zmq.NOBLOCK)

    def receive(self) -> Incoming | None:
        """The next message, or None where none has arrived."""
        try:
            raw = self.socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return self._decoder.decode(raw)

    def fileno(self) -> int:
        """Becomes readable when messages *may* have arrived; edge-triggered, so drain `receive` after it and after
        every send."""
        return int(self.socket.get(zmq.FD))

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """Sends what is still queued, for at most so long."""
        self.socket.close(linger_ms)
        self._context.term()


def engine_end(endpoint: str) -> "Connection[EngineMessage, ClientMessage]":
    return Connection(connect=endpoint, incoming=ClientMessage)


def client_end(endpoint: str) -> "Connection[ClientMessage, EngineMessage]":
    return Connection(bind=endpoint, incoming=EngineMessage)

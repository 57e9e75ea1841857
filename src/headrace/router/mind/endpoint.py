"""Endpoint: something that a router can send requests to, as the router knows it.

Knows what was reported and what the router itself has sent and not seen end. Reports are late and may be lost; the router's
own count is neither, but knows nothing of what others send.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum

from headrace.base.clock import Nanos
from headrace.protocol.load_report import LoadReport


class EndpointState(Enum):
    READY = "ready"
    DRAINING = "draining"
    """Finishes what it has; gets nothing new."""
    GONE = "gone"
    """Left, or not heard of for too long. It may come back, in another epoch."""


class EndpointRole(StrEnum):
    """What an endpoint does with a prompt."""

    BOTH = "both"
    """Computes it and answers; can also do either for another endpoint."""
    PREFILL = "prefill"
    """Computes it, for another endpoint to answer."""
    DECODE = "decode"
    """Answers, with KV from elsewhere or, where that does not pay, computed here."""


@dataclass(slots=True, eq=False)
class Endpoint:
    index: int
    """Its place in the order of first arrival: never reused, stays through its lives."""
    name: str
    epoch: int
    """Of all lives of all endpoints of this router, which one this is."""
    life: int
    """Its own count of its starts."""
    state: EndpointState
    heard: Nanos
    """When it last gave a sign of life."""
    load: LoadReport | None = None
    role: EndpointRole = EndpointRole.BOTH
    num_in_flight: int = 0
    """Requests sent to it in this epoch whose end is not known, and those that are to come to it from where their prompts
    are computed."""
    num_in_flight_tokens: int = 0
    """Prompt tokens of those."""

"""Fences: whose work still counts.

A request that is sent again is of a new generation, and the work of the old one, wherever it still goes on, must reach
neither the client nor the new endpoint's engine. `GenerationFence` stands on the router's side, `DispatchGate` at an
endpoint's door. Knows numbers and names; does not know time.
"""

from collections import OrderedDict

from headrace.base.ids import RequestId


class GenerationFence:
    """A generation for each open request, that only goes up."""

    def __init__(self) -> None:
        self._generations: dict[RequestId, int] = {}

    def __len__(self) -> int:
        return len(self._generations)

    def advance(self, request_id: RequestId) -> int:
        """The next generation of a request, from 1 on; all before it are superseded."""
        generation = self._generations.get(request_id, 0) + 1
        self._generations[request_id] = generation
        return generation

    def admits(self, request_id: RequestId, generation: int) -> bool:
        """Whether what comes under this number may go on; nothing may of a request that is closed."""
        return self._generations.get(request_id) == generation

    def close(self, request_id: RequestId) -> None:
        del self._generations[request_id]


class DispatchGate:
    """What an endpoint takes in during one epoch: each generation of each request once, and none that is older."""

    def __init__(self, epoch: int, *, max_remembered: int = 100_000) -> None:
        self.epoch = epoch
        self._max_remembered = max_remembered
        self._newest: OrderedDict[RequestId, int] = OrderedDict()

    def admits(self, epoch: int, request_id: RequestId, generation: int) -> bool:
        """Remembers it, if so. What was sent longest ago is forgotten beyond `max_remembered` requests."""
        if epoch != self.epoch or self._newest.get(request_id, 0) >= generation:
            return False
        self._newest[request_id] = generation
        if len(self._newest) > self._max_remembered:
            self._newest.popitem(last=False)
        return True

    def cancel(self, request_id: RequestId, generation: int) -> None:
        """A generation that was called off must not start if it comes later than its end."""
        self._newest[request_id] = max(generation, self._newest.get(request_id, 0))

"""ComputedKV: which part of a prompt's KV exists at which moment, while the prompt is being computed.

A step computes the layers of its tokens one after another, in equal times; so each layer's KV is there before the step
ends. Counts tokens times layers, in whole numbers, so that nothing is lost to rounding; sends nothing.
"""

from collections import deque

from headrace.base.clock import Nanos


class ComputedKV:
    """Of the tokens from `first_token` on, up to `end_token`.

    >>> kv = ComputedKV(num_layers=4, first_token=0, end_token=100)
    >>> kv.step(0, 100, begins=Nanos(1000), ends=Nanos(1400))
    >>> kv.next_moment(Nanos(1000)), kv.take(Nanos(1199)), kv.take(Nanos(1200)), kv.next_moment(Nanos(1200))
    (1100, 100, 100, 1300)
    >>> kv.take(Nanos(5000)), kv.next_moment(Nanos(5000)) is None
    (200, True)
    """

    def __init__(self, *, num_layers: int, first_token: int, end_token: int) -> None:
        self.num_layers = num_layers
        self.first_token = first_token
        self._end_token = end_token
        self._next_token = first_token
        self._steps: deque[list[int]] = deque()  # begins, ends, tokens, layers of them that were taken

    def step(self, first_token: int, num_tokens: int, *, begins: Nanos, ends: Nanos) -> None:
        """A step computes these tokens. Those before them that no step computed were found in a cache, and are there when
        it begins; those that are computed once more, after a preemption, are there already."""
        first, end = min(first_token, self._end_token), min(first_token + num_tokens, self._end_token)
        if first > self._next_token:
            self._steps.append([begins, begins, first - self._next_token, 0])
            self._next_token = first
        if end > self._next_token:
            self._steps.append([begins, ends, end - self._next_token, 0])
            self._next_token = end

    def take(self, now: Nanos) -> int:
        """Tokens times layers that are there and were not taken before."""
        taken, layers = 0, self.num_layers
        while self._steps:
            step = self._steps[0]
            begins, ends, num_tokens, num_taken = step
            if now >= ends:
                ready = layers
            elif now < begins:
                break
            else:  # layer i is there at begins + (ends - begins) * i // layers
                ready = (layers * (now - begins + 1) - 1) // (ends - begins)
            taken += (ready - num_taken) * num_tokens
            step[3] = ready
            if ready < layers:
                break
            self._steps.popleft()
        return taken

    @property
    def is_taken(self) -> bool:
        """All that the steps so far compute."""
        return not self._steps

    def next_moment(self, now: Nanos) -> Nanos | None:
        """When the next layer is there, after all that is there now was taken; None while no step computes any."""
        if not self._steps:
            return None
        begins, ends, _, num_taken = self._steps[0]
        return Nanos(max(now, begins + (ends - begins) * (num_taken + 1) // self.num_layers))

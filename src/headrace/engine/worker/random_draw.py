"""One uniform number per (seed, sample index, position): counter-based, so that a draw depends on nothing else.

No state is kept: not the batch, nor chunking, preemption or another request can shift it. The hash is splitmix64's
finaliser (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), chained over the three numbers;
all arithmetic is on integers, so the draw is the same on every machine.
"""

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_BITS = 40
"""Resolution of a draw: far below any probability that matters, and coarse enough that u * total < total in float64."""


def uniform(seed: int, sample_index: int, position: int) -> float:
    """In (0, 1), a multiple of 2^-41.

    >>> uniform(7, 0, 100) == uniform(7, 0, 100)
    True
    >>> uniform(7, 0, 100) == uniform(7, 1, 100)
    False
    """
    state = _mix(seed & _MASK)
    state = _mix(state ^ _mix(sample_index + _GOLDEN))
    state = _mix(state ^ _mix(position + 2 * _GOLDEN))
    return ((state >> (64 - _BITS)) + 0.5) * 2.0**-_BITS


def _mix(x: int) -> int:
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)

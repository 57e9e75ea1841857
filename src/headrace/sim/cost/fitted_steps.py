"""FittedSteps: the time of a step on a machine that was measured, as a few numbers. Knows sums over a plan; knows no model.

The products of a step depend on how many tokens it computes, and not in proportion: one token reads all weights, a few more
are nearly free, many pay by the token, and kernels change in between. So that part is a curve through a few knots. The rest
is in proportion: to the context that decodes read, to the pairs of prompts' attention, to sequences and samples.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.sim.cost.step_size import StepSize

KNOTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
"""Numbers of tokens; a fit uses those that its steps reach. Each of the first few, for kernels work in groups of rows: five
tokens take hardly longer than four, and six do."""


class FittedSteps(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """In microseconds."""

    knots: tuple[int, ...]
    knot_us: tuple[float, ...]
    """The products and the fixed part of a step of so many tokens; straight lines in between and beyond."""
    decode_context_us: float
    chunk_pairs_us: float
    num_decodes_us: float
    num_chunks_us: float

    def __post_init__(self) -> None:
        if not self.knots or len(self.knots) != len(self.knot_us) or any(a >= b for a, b in pairwise(self.knots)):
            raise ConfigurationError("steps: knots must rise, and knot_us must have a time for each of them")
        if min(self.knot_us) < 0:
            raise ConfigurationError(f"steps: knot_us must not be negative, not {min(self.knot_us):g}")

    def step_us(self, size: StepSize) -> float:
        total = sum(weight * self.knot_us[index] for index, weight in weights_of(size.num_tokens, self.knots))
        return (
            total
            + self.decode_context_us * size.decode_context
            + self.chunk_pairs_us * size.chunk_pairs
            + self.num_decodes_us * size.num_decodes
            + self.num_chunks_us * size.num_chunks
        )


def weights_of(num_tokens: int, knots: Sequence[int]) -> list[tuple[int, float]]:
    """Which knots a number of tokens lies between, and how near to each.

    >>> weights_of(3, (1, 2, 4))
    [(1, 0.5), (2, 0.5)]
    >>> weights_of(5, (1, 2, 4))
    [(1, -0.5), (2, 1.5)]
    """
    if len(knots) == 1:
        return [(0, 1.0)]
    above = min(max(bisect_right(knots, num_tokens), 1), len(knots) - 1)
    low, high = knots[above - 1], knots[above]
    share = (num_tokens - low) / (high - low)
    return [(above - 1, 1.0 - share), (above, share)]

"""ForwardBatch: what one step computes, as the model sees it. Built by the worker, passed as an argument, never a global.

Knows the step's tokens and where they stand. Does not know sequences, requests or sampling.
"""

from dataclasses import dataclass

from headrace.engine.ops.protocol import Placement, Rotation, Tensor


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    token_ids: Tensor
    """[num_tokens]"""
    placement: Placement
    rotations: tuple[Rotation, ...]
    """One per `ModelSpec.ropes`: its rows at the step's positions."""
    logit_rows: Tensor
    """[num_rows]: the rows whose next token is wanted."""

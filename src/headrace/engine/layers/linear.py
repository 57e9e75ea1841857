"""Projections: which tensors of a checkpoint one matrix product uses.

Knows names and biases. Does not know what they are for.
"""

from collections.abc import Sequence

from headrace.engine.layers.checkpoint import TensorSource
from headrace.engine.ops.protocol import Ops, Tensor, Weight


def load_projection(ops: Ops, source: TensorSource, names: Sequence[str], *, bias: bool) -> Weight:
    """The named projections of one input, stacked: one matrix product instead of several."""
    weights = [source.tensor(f"{name}.weight") for name in names]
    biases = [source.tensor(f"{name}.bias") for name in names] if bias else []
    return ops.load_linear(weights, biases)


class ResidualProjection:
    """The projection that ends a block: its output joins the residual stream, scaled."""

    def __init__(self, ops: Ops, source: TensorSource, name: str, *, bias: bool, multiplier: float) -> None:
        self._ops = ops
        self._weight = load_projection(ops, source, [name], bias=bias)
        self._multiplier = multiplier

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.linear(x, self._weight)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        if self._multiplier == 1.0:
            return self._ops.linear(x, self._weight, add_to=residual)
        return self._ops.add(residual, self._ops.linear(x, self._weight), scale=self._multiplier)

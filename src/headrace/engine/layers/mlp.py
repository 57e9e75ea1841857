"""The gated MLP: down(act(gate(x)) * up(x)) (Shazeer, "GLU variants", 2020). Knows its projections and its activation."""

from headrace.engine.layers.checkpoint import TensorSource
from headrace.engine.layers.linear import ResidualProjection, load_projection
from headrace.engine.ops.protocol import Ops, Tensor
from headrace.specs.model import ModelSpec


class MLP:
    def __init__(self, ops: Ops, spec: ModelSpec, source: TensorSource, name: str) -> None:
        self._ops = ops
        self._activation = spec.activation
        self._gate = load_projection(ops, source, [f"{name}.gate_proj"], bias=spec.mlp_bias)
        self._up = load_projection(ops, source, [f"{name}.up_proj"], bias=spec.mlp_bias)
        self.output = ResidualProjection(
            ops, source, f"{name}.down_proj", bias=spec.mlp_bias, multiplier=spec.residual_multiplier
        )

    def __call__(self, x: Tensor) -> Tensor:
        """All but the last projection, `output`: [num_tokens, hidden_size] -> [num_tokens, intermediate_size]."""
        return self._ops.gated_linear(x, self._gate, self._up, self._activation)

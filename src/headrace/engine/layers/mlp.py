"""The gated MLP: down(act(gate(x)) * up(x)) (Shazeer, "GLU variants", 2020). Knows its projections and its activation."""

from headrace.engine.layers.checkpoint import TensorSource
from headrace.engine.layers.linear import ResidualProjection, load_projection
from headrace.engine.ops.protocol import Ops, Tensor
from headrace.specs.model import Activation, ModelSpec


class MLP:
    def __init__(self, ops: Ops, spec: ModelSpec, source: TensorSource, name: str) -> None:
        self._ops = ops
        self._activation = spec.activation
        self._gate_up = load_projection(ops, source, [f"{name}.gate_proj", f"{name}.up_proj"], bias=spec.mlp_bias)
        self.output = ResidualProjection(
            ops, source, f"{name}.down_proj", bias=spec.mlp_bias, multiplier=spec.residual_multiplier
        )

    def __call__(self, x: Tensor) -> Tensor:
        """All but the last projection, `output`: [num_tokens, hidden_size] -> [num_tokens, intermediate_size]."""
        gate_up = self._ops.linear(x, self._gate_up)
        match self._activation:
            case Activation.SILU:
                return self._ops.silu_mul(gate_up)
            case Activation.GELU:
                return self._ops.gelu_mul(gate_up, tanh=False)
            case Activation.GELU_TANH:
                return self._ops.gelu_mul(gate_up, tanh=True)

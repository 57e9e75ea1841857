"""RMSNorm (Zhang and Sennrich, 2019). Knows its weight; computes in float32 and rounds once, whatever the compute dtype."""

from headrace.engine.layers.checkpoint import TensorSource
from headrace.engine.ops.protocol import Ops, Tensor
from headrace.specs.model import ModelSpec


class RMSNorm:
    def __init__(self, ops: Ops, spec: ModelSpec, source: TensorSource, name: str) -> None:
        self._ops = ops
        self._eps = spec.norm_eps
        self._weight = load_norm_weight(ops, spec, source, name)

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.rms_norm(x, self._weight, eps=self._eps)


def load_norm_weight(ops: Ops, spec: ModelSpec, source: TensorSource, name: str) -> Tensor:
    return ops.load_vector(source.tensor(f"{name}.weight"), plus=1.0 if spec.norm_plus_one else 0.0)

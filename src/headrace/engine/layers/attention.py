"""Grouped-query attention (Ainslie et al., 2023) over the paged KV cache.

Knows its projections and how its layer varies. Does not know blocks or sequences.
"""

from headrace.engine.layers.checkpoint import TensorSource
from headrace.engine.layers.forward_batch import ForwardBatch
from headrace.engine.layers.linear import ResidualProjection, load_projection
from headrace.engine.layers.norm import load_norm_weight
from headrace.engine.ops.protocol import AttentionShape, KVLayer, Ops, QKNorm, Tensor
from headrace.specs.model import ModelSpec


def attention_shape(spec: ModelSpec, layer: int) -> AttentionShape:
    return AttentionShape(
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        scale=spec.attention_scale if spec.attention_scale is not None else spec.head_dim**-0.5,
        softcap=spec.attention_softcap,
        window=spec.layers[layer].window,
    )


class Attention:
    def __init__(self, ops: Ops, spec: ModelSpec, source: TensorSource, name: str, layer: int) -> None:
        self._ops = ops
        self._shape = attention_shape(spec, layer)
        self._rope = spec.layers[layer].rope
        self._qkv = load_projection(ops, source, [f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj"], bias=spec.qkv_bias)
        self._norm = self._load_norm(spec, source, name) if spec.qk_norm else None
        self.output = ResidualProjection(
            ops, source, f"{name}.o_proj", bias=spec.output_bias, multiplier=spec.residual_multiplier
        )

    def __call__(self, x: Tensor, batch: ForwardBatch, kv: KVLayer) -> Tensor:
        """All but the last projection, `output`: [num_tokens, hidden_size] -> [num_tokens, num_heads * head_dim]."""
        qkv = self._ops.linear(x, self._qkv)
        rotation = None if self._rope is None else batch.rotations[self._rope]
        q = self._ops.rope_and_cache(qkv, kv, batch.placement, self._shape, rotation=rotation, norm=self._norm)
        return self._ops.attention(q, kv, batch.placement, self._shape)

    def _load_norm(self, spec: ModelSpec, source: TensorSource, name: str) -> QKNorm:
        return QKNorm(
            query_weight=load_norm_weight(self._ops, spec, source, f"{name}.q_norm"),
            key_weight=load_norm_weight(self._ops, spec, source, f"{name}.k_norm"),
            eps=spec.norm_eps,
        )

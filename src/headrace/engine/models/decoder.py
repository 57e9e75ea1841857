"""One decoder-only transformer, driven by ModelSpec: Llama, Mistral, Qwen, Gemma, Phi-3, Granite, SmolLM and the like.

Knows the order of layers and the residual stream. Does not know arrays, files, sequences or sampling. Families differ by
data: a new file is for a new structure.
"""

from collections.abc import Sequence

from headrace.engine.layers.attention import Attention
from headrace.engine.layers.checkpoint import TensorSource
from headrace.engine.layers.embedding import Embedding, LogitsHead
from headrace.engine.layers.forward_batch import ForwardBatch
from headrace.engine.layers.mlp import MLP
from headrace.engine.layers.norm import RMSNorm
from headrace.engine.ops.protocol import KVLayer, Ops, Tensor
from headrace.specs.model import ModelSpec


class Decoder:
    """Loads its weights when made; then a function of a batch and the KV cache."""

    def __init__(self, ops: Ops, spec: ModelSpec, source: TensorSource) -> None:
        self.spec = spec
        self._ops = ops
        self._embedding = Embedding(ops, spec, source)
        self._layers = [DecoderLayer(ops, spec, source, layer) for layer in range(spec.num_layers)]
        self._norm = RMSNorm(ops, spec, source, "model.norm")
        self._head = LogitsHead(ops, spec, source)

    def __call__(self, batch: ForwardBatch, kv: Sequence[KVLayer]) -> Tensor:
        """Writes the step's keys and values to `kv`; gives the logits of `batch.logit_rows`: [num_rows, vocab_size]."""
        return self.logits(self.residual(batch, kv), batch.logit_rows)

    def residual(self, batch: ForwardBatch, kv: Sequence[KVLayer]) -> Tensor:
        """All but the last layer: [num_tokens, hidden_size]. Writes the step's keys and values to `kv`."""
        residual = self._embedding(batch.token_ids)  # [num_tokens, hidden_size]
        for layer, layer_kv in zip(self._layers, kv, strict=True):
            residual = layer(residual, batch, layer_kv)
        return residual

    def logits(self, residual: Tensor, rows: Tensor) -> Tensor:
        """[num_rows, vocab_size]"""
        return self._head(self._norm(self._ops.select_rows(residual, rows)))


class DecoderLayer:
    """residual -> residual: attention, then MLP, each normed before and, where the model says so, after."""

    def __init__(self, ops: Ops, spec: ModelSpec, source: TensorSource, layer: int) -> None:
        name = f"model.layers.{layer}"
        self._ops = ops
        self._multiplier = spec.residual_multiplier
        self._attention = Attention(ops, spec, source, f"{name}.self_attn", layer)
        self._mlp = MLP(ops, spec, source, f"{name}.mlp")
        self._attention_norm = RMSNorm(ops, spec, source, f"{name}.input_layernorm")
        # Gemma 2 and 3 give `post_attention_layernorm` another place: after attention's output, not before the MLP.
        self._attention_post_norm: RMSNorm | None = None
        self._mlp_post_norm: RMSNorm | None = None
        if spec.post_norms:
            self._attention_post_norm = RMSNorm(ops, spec, source, f"{name}.post_attention_layernorm")
            self._mlp_norm = RMSNorm(ops, spec, source, f"{name}.pre_feedforward_layernorm")
            self._mlp_post_norm = RMSNorm(ops, spec, source, f"{name}.post_feedforward_layernorm")
        else:
            self._mlp_norm = RMSNorm(ops, spec, source, f"{name}.post_attention_layernorm")

    def __call__(self, residual: Tensor, batch: ForwardBatch, kv: KVLayer) -> Tensor:
        attended = self._attention(self._attention_norm(residual), batch, kv)
        residual = self._join(residual, attended, self._attention, self._attention_post_norm)
        activated = self._mlp(self._mlp_norm(residual))
        return self._join(residual, activated, self._mlp, self._mlp_post_norm)

    def _join(self, residual: Tensor, x: Tensor, block: Attention | MLP, post_norm: RMSNorm | None) -> Tensor:
        if post_norm is None:
            return block.output.add_to(residual, x)
        return self._ops.add(residual, post_norm(block.output(x)), scale=self._multiplier)

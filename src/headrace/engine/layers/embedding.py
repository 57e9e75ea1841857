"""The two ends of a model: token ids to vectors, vectors to logits. Knows whether the two share a table."""

from headrace.engine.layers.checkpoint import TensorSource
from headrace.engine.ops.protocol import Ops, Tensor
from headrace.specs.model import ModelSpec

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


class Embedding:
    def __init__(self, ops: Ops, spec: ModelSpec, source: TensorSource) -> None:
        self._ops = ops
        self._table = ops.load_embedding(source.tensor(_EMBEDDING))
        self._multiplier = spec.embedding_multiplier

    def __call__(self, token_ids: Tensor) -> Tensor:
        return self._ops.embed(token_ids, self._table, multiplier=self._multiplier)


class LogitsHead:
    def __init__(self, ops: Ops, spec: ModelSpec, source: TensorSource) -> None:
        self._ops = ops
        self._weight = ops.load_linear([source.tensor(_EMBEDDING if spec.tie_word_embeddings else _HEAD)])
        self._multiplier = spec.logits_multiplier
        self._softcap = spec.final_softcap

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.logits(x, self._weight, multiplier=self._multiplier, softcap=self._softcap)

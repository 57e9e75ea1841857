"""Graph: the model's pass over one step, with its caches and rotations bound.

Knows that a pass may be recorded once and then replayed with other sizes. Does not know how: the ops record.
"""

from headrace.engine.layers.forward_batch import ForwardBatch
from headrace.engine.layers.rotary import Rotary
from headrace.engine.models.decoder import Decoder
from headrace.engine.ops.protocol import Ops, Placement, Tensor
from headrace.engine.worker.kv_cache import KVCache


class Graph:
    def __init__(
        self, ops: Ops, decoder: Decoder, kv_cache: KVCache, *, max_model_len: int, enforce_eager: bool = False
    ) -> None:
        """`enforce_eager`: calls the model anew in every step; the bits are the same."""
        self._decoder = decoder
        self._layers = kv_cache.layers
        self._rotaries = [Rotary(ops, rope, max_model_len=max_model_len) for rope in decoder.spec.ropes]
        self.logits = self._eager_logits if enforce_eager else ops.record(self._eager_logits)
        """(token ids, placement, rows) -> [num_rows, vocab_size]. Writes the step's keys and values."""

    def _eager_logits(self, token_ids: Tensor, placement: Placement, rows: Tensor) -> Tensor:
        return self._decoder(self._batch(token_ids, placement, rows), self._layers)

    # In two parts, for who wants logits of many rows a few at a time

    def residual(self, token_ids: Tensor, placement: Placement, rows: Tensor) -> Tensor:
        """[num_tokens, hidden_size]. Writes the step's keys and values."""
        return self._decoder.residual(self._batch(token_ids, placement, rows), self._layers)

    def logits_of(self, residual: Tensor, rows: Tensor) -> Tensor:
        """[num_rows, vocab_size]"""
        return self._decoder.logits(residual, rows)

    def _batch(self, token_ids: Tensor, placement: Placement, rows: Tensor) -> ForwardBatch:
        rotations = tuple(rotary(placement) for rotary in self._rotaries)
        return ForwardBatch(token_ids=token_ids, placement=placement, rotations=rotations, logit_rows=rows)

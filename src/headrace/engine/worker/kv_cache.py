"""KVCache: the keys and values of every block and layer. Owns tensors; does not know which block is whose."""

from collections.abc import Sequence

from headrace.engine.layers.attention import attention_shape
from headrace.engine.ops.protocol import KVLayer, Ops
from headrace.specs.model import ModelSpec


class KVCache:
    def __init__(self, ops: Ops, spec: ModelSpec, *, num_blocks: int, block_size: int) -> None:
        self._ops = ops
        self.num_blocks = num_blocks
        self.layers: list[KVLayer] = [
            ops.allocate_kv(attention_shape(spec, layer), num_blocks=num_blocks, block_size=block_size)
            for layer in range(spec.num_layers)
        ]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        for layer in self.layers:
            self._ops.copy_blocks(layer, pairs)

    def make_finite(self, block_ids: Sequence[int]) -> None:
        for layer in self.layers:
            self._ops.make_finite(layer, block_ids)


def kv_bytes_per_block(ops: Ops, spec: ModelSpec, *, block_size: int) -> int:
    per_token = sum(ops.kv_bytes_per_token(attention_shape(spec, layer)) for layer in range(spec.num_layers))
    return per_token * block_size

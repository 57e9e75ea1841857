"""Weights for the native kernels: the file's own blocks wherever a kernel takes them.

Knows HostTensor and which storage formats have a kernel. Does not know models or layouts: the extension packs.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from headrace.engine.ops.dequantize import Floats, dequantize
from headrace.engine.ops.host_tensor import HostTensor
from headrace.engine.ops.native import _kernels
from headrace.engine.ops.quantize import quantize
from headrace.engine.ops.storage import row_bytes

_NO_BIAS = np.empty(0, np.float32)
_OWN_ORDER = np.empty(0, np.int32)


def load_vector(tensor: HostTensor) -> Floats:
    assert not tensor.interleaved_heads, "norms are not stored by rotary pairs"
    return dequantize(tensor.storage, tensor.data, tensor.shape)


def load_linear(
    engine: _kernels.Engine,
    weights: Sequence[HostTensor],
    biases: Sequence[HostTensor],
    *,
    kernels: frozenset[str],
    otherwise: str,
) -> _kernels.Linear:
    """`kernels`: the storage formats kept as they are; the others become `otherwise`, BF16 or F32."""
    assert len(biases) in (0, len(weights)), "biases: none, or one per weight"
    storages, parts = zip(*(_stored(weight, kernels, otherwise) for weight in weights), strict=True)
    orders = [_row_order(weight) for weight in weights]
    bias = np.concatenate([_bias(tensor) for tensor in biases]) if biases else _NO_BIAS
    return engine.load_linear(list(storages), list(parts), orders, weights[0].shape[-1], bias)


def requantized(tensor: HostTensor, storage: str) -> HostTensor:
    """The same numbers as nearly as `storage` can say them; itself if it is stored so already."""
    if tensor.storage == storage:
        return tensor
    data = quantize(storage, dequantize(tensor.storage, tensor.data, tensor.shape), name=tensor.name)
    return replace(tensor, storage=storage, data=memoryview(data.data))


def _stored(tensor: HostTensor, kernels: frozenset[str], otherwise: str) -> tuple[str, npt.NDArray[np.uint8]]:
    if tensor.storage in kernels:
        return tensor.storage, np.frombuffer(tensor.data, np.uint8)
    floats = dequantize(tensor.storage, tensor.data, tensor.shape)
    numbers = float_to_bf16(floats) if otherwise == "BF16" else floats
    return otherwise, numbers.reshape(-1).view(np.uint8)


def _row_order(tensor: HostTensor) -> npt.NDArray[np.int32]:
    """Which of the file's rows comes first, second, ...: halves first where they are stored by rotary pairs."""
    if not tensor.interleaved_heads:
        return _OWN_ORDER
    rows = np.arange(tensor.shape[0], dtype=np.int32).reshape(tensor.interleaved_heads, -1, 2)
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)


def _bias(tensor: HostTensor) -> Floats:
    bias = dequantize(tensor.storage, tensor.data, tensor.shape)
    return bias[_row_order(tensor)] if tensor.interleaved_heads else bias


def float_to_bf16(x: Floats) -> npt.NDArray[np.uint16]:
    """To nearest, ties to even; what is not a number stays so."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint32(0x7FC0), rounded).astype(np.uint16)


class Embedding:
    """A table whose rows are taken from the file when they are asked for."""

    def __init__(self, table: HostTensor) -> None:
        self._storage = table.storage
        self.hidden_size = table.shape[-1]
        data = np.frombuffer(table.data, np.uint8)
        self._rows = data.reshape(-1, row_bytes(table.storage, self.hidden_size))
        self.kernel: _kernels.EmbeddingTable | None = None
        """Reads the same rows; None where no kernel knows the format."""
        if _kernels.EmbeddingTable.knows(table.storage):
            self.kernel = _kernels.EmbeddingTable(table.storage, data, self.hidden_size)

    def rows(self, ids: npt.NDArray[np.int64], multiplier: np.float32) -> Floats:
        taken = self._rows[ids]
        rows = dequantize(self._storage, memoryview(taken.tobytes()), (len(ids), self.hidden_size))
        return rows if multiplier == 1 else rows * multiplier

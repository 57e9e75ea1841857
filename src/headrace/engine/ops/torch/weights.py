"""Weights on the device: dequantised, reordered, stacked, and packed for the matrix product.

Knows HostTensor and torch's linear kernels. Does not know models.

On the CPU a projection is packed once by oneDNN (`_reorder_linear_weight`) and used by `_linear_pointwise`: two to four
times faster on few rows than `F.linear`, which reorders or walks the plain layout on every call, and a row's bits do not
depend on how many rows it is computed with. One exception was measured: a single float32 row takes another kernel, so it
is computed as two.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from headrace.engine.ops.dequantize import dequantize
from headrace.engine.ops.host_tensor import HostTensor

_PACKING_ROWS_HINT = 16
"""The number of rows that oneDNN chooses its packed layout for: small batches are where packing matters most."""


@dataclass(slots=True)
class LinearWeight:
    """One projection, or several of the same input stacked by rows."""

    packed: torch.Tensor
    """oneDNN's own layout on the CPU; [num_out, num_in] elsewhere."""
    bias: torch.Tensor | None
    is_packed: bool


def load_rows(tensor: HostTensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor as numbers, rotary pairs of its heads brought to halves."""
    array = dequantize(tensor.storage, tensor.data, tensor.shape)
    if tensor.interleaved_heads:
        array = interleaved_to_halves(array, tensor.interleaved_heads)
    return torch.from_numpy(np.ascontiguousarray(array)).to(dtype)


def interleaved_to_halves(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows x0 y0 x1 y1 ... of each head -> x0 x1 ... y0 y1 ..."""
    rest = rows.shape[1:]
    pairs = rows.reshape(num_heads, -1, 2, *rest)  # [num_heads, head_dim / 2, 2, ...]
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def load_linear(
    weights: Sequence[HostTensor], biases: Sequence[HostTensor], dtype: torch.dtype, device: torch.device
) -> LinearWeight:
    assert len(biases) in (0, len(weights)), "biases: none, or one per weight"
    stacked = torch.cat([load_rows(w, dtype) for w in weights])  # [num_out, num_in]
    bias = torch.cat([load_rows(b, dtype) for b in biases]).to(device) if biases else None
    if device.type == "cpu" and torch.backends.mkldnn.is_available():
        packed = torch.ops.mkldnn._reorder_linear_weight(stacked, _PACKING_ROWS_HINT)
        return LinearWeight(packed, bias, is_packed=True)
    return LinearWeight(stacked.to(device), bias, is_packed=False)


def linear(x: torch.Tensor, weight: LinearWeight, add_to: torch.Tensor | None) -> torch.Tensor:
    """x @ weight^T + bias (+ add_to): [num_rows, num_out]."""
    if not weight.is_packed:
        y = F.linear(x, weight.packed, weight.bias)
        return y if add_to is None else y.add_(add_to)
    if x.shape[0] == 1 and x.dtype == torch.float32:
        twice = _packed_linear(x.expand(2, -1), weight, None if add_to is None else add_to.expand(2, -1))
        return twice[:1]
    return _packed_linear(x, weight, add_to)


def _packed_linear(x: torch.Tensor, weight: LinearWeight, add_to: torch.Tensor | None) -> torch.Tensor:
    result: torch.Tensor
    if add_to is None:
        result = torch.ops.mkldnn._linear_pointwise(x, weight.packed, weight.bias, "none", [], "")
    else:
        result = torch.ops.mkldnn._linear_pointwise.binary(x, add_to, weight.packed, weight.bias, "add")
    return result

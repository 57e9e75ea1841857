"""Weights on the device: dequantised, reordered, stacked, packed, and multiplied with.

Knows HostTensor and torch's linear kernels. Does not know models.

On the CPU a projection is packed once by oneDNN (`_reorder_linear_weight`) and used by `_linear_pointwise`: on few rows two
to four times faster than `F.linear`, which walks the plain layout, and a row's bits do not depend on how many rows it is
computed with. Two exceptions were measured. A single row takes another kernel, so it is computed as two. Where the processor
multiplies matrices of bfloat16 (AMX), sums are cut differently from 33 rows on, so rows are computed 32 at a time: faster
than oneDNN without AMX all the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from headrace.engine.ops.dequantize import dequantize
from headrace.engine.ops.host_tensor import HostTensor
from headrace.specs.model import Activation

_PACKING_ROWS_HINT = 16
"""The number of rows that oneDNN chooses its packed layout for: small batches are where packing matters most."""

_AMX_ROWS = 32
"""As many rows as oneDNN's AMX kernels form the same sums for, whatever their number."""

_ONEDNN_ACTIVATIONS = {
    Activation.SILU: ("swish", ""),
    Activation.GELU: ("gelu", "none"),
    Activation.GELU_TANH: ("gelu", "tanh"),
}
"""(name, algorithm) in `_linear_pointwise`'s spelling."""


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """One projection, or several of the same input stacked by rows."""

    matrix: torch.Tensor
    """[num_out, num_in], or oneDNN's own layout of it."""
    bias: torch.Tensor | None
    is_packed: bool


def load_rows(tensor: HostTensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor as numbers, rotary pairs of its heads brought to halves."""
    array = dequantize(tensor.storage, tensor.data, tensor.shape)
    if tensor.interleaved_heads:
        array = interleaved_to_halves(array, tensor.interleaved_heads)
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(dtype)


def interleaved_to_halves(rows: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Rows x0 y0 x1 y1 ... of each head -> x0 x1 ... y0 y1 ..."""
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])  # [num_heads, head_dim / 2, 2, ...]
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def load_linear(
    weights: Sequence[HostTensor], biases: Sequence[HostTensor], dtype: torch.dtype, device: torch.device
) -> LinearWeight:
    assert len(biases) in (0, len(weights)), "biases: none, or one per weight"
    stacked = torch.cat([load_rows(weight, dtype) for weight in weights])  # [num_out, num_in]
    bias = torch.cat([load_rows(bias, dtype) for bias in biases]).to(device) if biases else None
    if _can_pack(dtype, device):
        packed = torch.ops.mkldnn._reorder_linear_weight(stacked, _PACKING_ROWS_HINT)
        return LinearWeight(packed, bias, is_packed=True)
    return LinearWeight(stacked.to(device), bias, is_packed=False)


def _can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Not on GPUs, not in builds of torch without oneDNN, and bfloat16 only where the processor has the instructions."""
    has_onednn: bool = torch._C._has_mkldnn
    if device.type != "cpu" or not has_onednn:
        return False
    return dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def linear(x: torch.Tensor, weight: LinearWeight, add_to: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight^T + bias (+ add_to): [num_rows, num_out]."""
    if not weight.is_packed:
        y = F.linear(x, weight.matrix, weight.bias)
        return y if add_to is None else y.add_(add_to)
    if add_to is None:
        return _by_rows(lambda x: torch.ops.mkldnn._linear_pointwise(x, weight.matrix, weight.bias, "none", [], ""), x)
    return _by_rows(lambda x, other: _packed_binary(x, other, weight, "add"), x, add_to)


def gated_linear(x: torch.Tensor, gate: LinearWeight, up: LinearWeight, activation: Activation) -> torch.Tensor:
    """activation(x @ gate^T + bias) * (x @ up^T + bias): [num_rows, num_out].

    Packed, the activation is part of the first product: torch's own would compute the last few numbers of each thread's
    share by another formula than the rest, and where the shares end depends on the number of rows.
    """
    if not gate.is_packed:
        return _activate(F.linear(x, gate.matrix, gate.bias), activation).mul_(F.linear(x, up.matrix, up.bias))
    name, algorithm = _ONEDNN_ACTIVATIONS[activation]

    def product(x: torch.Tensor) -> torch.Tensor:
        activated = torch.ops.mkldnn._linear_pointwise(x, gate.matrix, gate.bias, name, [], algorithm)
        return _packed_binary(x, activated, up, "mul")

    return _by_rows(product, x)


def _packed_binary(x: torch.Tensor, other: torch.Tensor, weight: LinearWeight, operation: str) -> torch.Tensor:
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, weight.matrix, weight.bias, operation)
    return result


def _by_rows(product: Callable[..., torch.Tensor], *operands: torch.Tensor) -> torch.Tensor:
    """The product of operands of as many rows each, cut so that a row's bits do not depend on how many there are."""
    num_rows = operands[0].shape[0]
    if num_rows == 1:
        return product(*(torch.cat((rows, rows)) for rows in operands))[:1]
    if num_rows <= _AMX_ROWS or operands[0].dtype != torch.bfloat16 or not torch.cpu._is_amx_tile_supported():
        return product(*operands)
    pieces = [slice(first, first + _AMX_ROWS) for first in range(0, num_rows, _AMX_ROWS)]
    return torch.cat([_by_rows(product, *(rows[piece] for rows in operands)) for piece in pieces])


def _activate(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    match activation:
        case Activation.SILU:
            return F.silu(x)
        case Activation.GELU:
            return F.gelu(x)
        case Activation.GELU_TANH:
            return F.gelu(x, approximate="tanh")

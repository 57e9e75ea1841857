"""Weights on the device: dequantised, reordered, stacked, packed, and multiplied with.

Knows HostTensor and torch's linear kernels. Does not know models.

On the CPU a projection is packed once by oneDNN (`_reorder_linear_weight`) and used by `_linear_pointwise`: on few rows two
to four times faster than `F.linear`, which walks the plain layout, and a row's bits do not depend on how many rows it is
computed with. One exception was measured: a single row takes another kernel, so it is computed as two.
"""

from collections.abc import Sequence
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
    if x.shape[0] == 1:
        return _packed_linear(_twice(x), weight, None if add_to is None else _twice(add_to))[:1]
    return _packed_linear(x, weight, add_to)


def gated_linear(x: torch.Tensor, gate: LinearWeight, up: LinearWeight, activation: Activation) -> torch.Tensor:
    """activation(x @ gate^T + bias) * (x @ up^T + bias): [num_rows, num_out].

    Packed, the activation is part of the first product: torch's own would compute the last few numbers of each thread's
    share by another formula than the rest, and where the shares end depends on the number of rows.
    """
    if not gate.is_packed:
        return _activate(F.linear(x, gate.matrix, gate.bias), activation).mul_(F.linear(x, up.matrix, up.bias))
    if x.shape[0] == 1:
        return _packed_gated_linear(_twice(x), gate, up, activation)[:1]
    return _packed_gated_linear(x, gate, up, activation)


def _twice(x: torch.Tensor) -> torch.Tensor:
    return torch.cat((x, x))


def _packed_linear(x: torch.Tensor, weight: LinearWeight, add_to: torch.Tensor | None) -> torch.Tensor:
    result: torch.Tensor
    if add_to is None:
        result = torch.ops.mkldnn._linear_pointwise(x, weight.matrix, weight.bias, "none", [], "")
    else:
        result = torch.ops.mkldnn._linear_pointwise.binary(x, add_to, weight.matrix, weight.bias, "add")
    return result


def _packed_gated_linear(x: torch.Tensor, gate: LinearWeight, up: LinearWeight, activation: Activation) -> torch.Tensor:
    name, algorithm = _ONEDNN_ACTIVATIONS[activation]
    activated = torch.ops.mkldnn._linear_pointwise(x, gate.matrix, gate.bias, name, [], algorithm)
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, activated, up.matrix, up.bias, "mul")
    return result


def _activate(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    match activation:
        case Activation.SILU:
            return F.silu(x)
        case Activation.GELU:
            return F.gelu(x)
        case Activation.GELU_TANH:
            return F.gelu(x, approximate="tanh")

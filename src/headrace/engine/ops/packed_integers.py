"""Integers as AWQ, GPTQ and compressed-tensors pack them into words, brought into rows of INT4 groups or INT8 channels.

Knows which bits of which word are whose. Does not know files, configurations or names: `models/hf_quantization.py` does. No
number changes: a row's group holds the same integers, the same zero point and the same scale, in another order of bits.

Below, N is `num_out`, K `num_in`, G the number of groups along K; a word is 32 bits, little endian, its nibble 0 the lowest.

- AWQ ("gemm"): qweight [K, N / 8], qzeros [G, N / 8], scales [G, N]. Nibble i of a word is column 0, 2, 4, 6, 1, 3, 5, 7 of
  its eight. (q - z) * s.
- GPTQ: qweight [K / 8, N], nibble i being input i of eight; qzeros [G, N / 8] in order; scales [G, N]; g_idx [K], the group
  of each input. The first format stores z - 1 modulo 16, the second ("gptq_v2") z. (q - z) * s.
- compressed-tensors, pack-quantized: weight_packed [N, K / 8]; weight_scale [N, G]; if asymmetric weight_zero_point
  [N / 8, G], packed along N; all plus 8. Perhaps weight_g_idx [K].
- compressed-tensors, int-quantized: weight [N, K] in int8, weight_scale [N, 1].
"""

from collections.abc import Mapping
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from headrace.engine.ops.dequantize import Floats, dequantize
from headrace.engine.ops.host_tensor import HostTensor

Bytes = npt.NDArray[np.uint8]

_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
_BLOCK_SIZES = (128, 64, 32)


class Packing(StrEnum):
    AWQ = "awq"
    GPTQ = "gptq"
    GPTQ_V2 = "gptq_v2"
    COMPRESSED_INT4 = "pack-quantized"
    COMPRESSED_INT8 = "int-quantized"


def storage_of_rows(packing: Packing, *, num_in: int, group_size: int, group_of_input: HostTensor | None) -> str | None:
    """The storage format of what `integer_rows` gives; None where groups cannot be cut into whole blocks.

    `group_size` -1: one group for a whole row. Inputs that are not in the order of their groups become F32.
    """
    if packing is Packing.COMPRESSED_INT8:
        return "INT8_CHANNEL"
    size = num_in if group_size == -1 else group_size
    if num_in % size:
        return None
    if group_of_input is not None and not _is_in_order(group_of_input, size):
        return "F32"
    return next((f"INT4_G{block}" for block in _BLOCK_SIZES if size % block == 0), None)


def _is_in_order(group_of_input: HostTensor, group_size: int) -> bool:
    groups = _integers(group_of_input)
    return bool((groups == np.arange(len(groups)) // group_size).all())


def integer_rows(packing: Packing, storage: str, tensors: Mapping[str, HostTensor], shape: tuple[int, int]) -> memoryview:
    """One projection's rows in `storage`, as `storage_of_rows` told; `tensors` by their names within the module.

    `shape`: [N, K].
    """
    if packing is Packing.COMPRESSED_INT8:
        return _int8_channels(tensors["weight"], tensors["weight_scale"])
    integers, zeros, scales, groups = _UNPACK[packing](tensors, *shape)
    if storage == "F32":
        floats = (integers.astype(np.float32) - zeros[:, groups]) * scales[:, groups]
        return np.ascontiguousarray(floats, np.float32).reshape(-1).view(np.uint8).data
    return _int4_groups(integers, zeros, scales, block_size=int(storage.removeprefix("INT4_G")))


def _int4_groups(integers: Bytes, zeros: Bytes, scales: Floats, *, block_size: int) -> memoryview:
    """integers: [N, K]; zeros, scales: [N, G]."""
    num_out, num_in = integers.shape
    num_blocks = num_in // block_size
    repeats = num_blocks // scales.shape[1]  # groups longer than a block are several blocks of one scale
    rows = np.empty((num_out, num_blocks, 5 + block_size // 2), np.uint8)
    per_block = np.repeat(scales.astype("<f4"), repeats, axis=1)
    rows[:, :, :4] = per_block.view(np.uint8).reshape(num_out, num_blocks, 4)
    rows[:, :, 4] = np.repeat(zeros, repeats, axis=1)
    halves = integers.reshape(num_out, num_blocks, block_size // 32, 2, 16)
    rows[:, :, 5:] = (halves[:, :, :, 0] | halves[:, :, :, 1] << np.uint8(4)).reshape(num_out, num_blocks, -1)
    return rows.reshape(-1).data


def _int8_channels(weight: HostTensor, scale: HostTensor) -> memoryview:
    num_out, num_in = weight.shape
    rows = np.empty((num_out, 4 + num_in), np.uint8)
    rows[:, :4] = _floats(scale).reshape(num_out, 1).astype("<f4").view(np.uint8)
    rows[:, 4:] = np.frombuffer(weight.data, np.uint8).reshape(num_out, num_in)
    return rows.reshape(-1).data


# Unpacking: integers [N, K], zeros [N, G], scales [N, G], and each input's group [K]

_Unpacked = tuple[Bytes, Bytes, Floats, npt.NDArray[np.int64]]


def _unpack_awq(tensors: Mapping[str, HostTensor], num_out: int, num_in: int) -> _Unpacked:
    order = np.argsort(_AWQ_COLUMNS)

    def columns(tensor: HostTensor) -> Bytes:
        """[rows, N / 8] words -> [N, rows]"""
        nibbles = _nibbles(tensor).reshape(-1, num_out // 8, 8)
        return np.ascontiguousarray(nibbles[:, :, order].reshape(-1, num_out).T)

    scales = np.ascontiguousarray(_floats(tensors["scales"]).T)
    return columns(tensors["qweight"]), columns(tensors["qzeros"]), scales, _in_order(num_in, scales.shape[1])


def _unpack_gptq(tensors: Mapping[str, HostTensor], num_out: int, num_in: int) -> _Unpacked:
    scales = np.ascontiguousarray(_floats(tensors["scales"]).T)
    words = np.frombuffer(tensors["qweight"].data, "<u4").reshape(num_in // 8, num_out)
    integers = _nibbles_of(np.ascontiguousarray(words.T)).reshape(num_out, num_in)
    zeros = np.ascontiguousarray(_nibbles(tensors["qzeros"]).reshape(-1, num_out).T)
    index = tensors.get("g_idx")
    groups = _in_order(num_in, scales.shape[1]) if index is None else _integers(index)
    return integers, zeros, scales, groups


def _unpack_first_gptq(tensors: Mapping[str, HostTensor], num_out: int, num_in: int) -> _Unpacked:
    integers, stored, scales, groups = _unpack_gptq(tensors, num_out, num_in)
    return integers, stored + np.uint8(1) & np.uint8(15), scales, groups


def _unpack_compressed(tensors: Mapping[str, HostTensor], num_out: int, num_in: int) -> _Unpacked:
    scales = _floats(tensors["weight_scale"])
    num_groups = scales.shape[1]
    integers = _nibbles(tensors["weight_packed"]).reshape(num_out, -1)[:, :num_in]
    zeros = np.full((num_out, num_groups), 8, np.uint8)
    packed = tensors.get("weight_zero_point")
    if packed is not None:
        words = np.frombuffer(packed.data, "<u4").reshape(-1, num_groups)
        zeros = _nibbles_of(np.ascontiguousarray(words.T)).reshape(num_groups, -1).T[:num_out]
    index = tensors.get("weight_g_idx")
    groups = _in_order(num_in, num_groups) if index is None else _integers(index)
    return np.ascontiguousarray(integers), np.ascontiguousarray(zeros), scales, groups


_UNPACK = {
    Packing.AWQ: _unpack_awq,
    Packing.GPTQ: _unpack_first_gptq,
    Packing.GPTQ_V2: _unpack_gptq,
    Packing.COMPRESSED_INT4: _unpack_compressed,
}


def _in_order(num_in: int, num_groups: int) -> npt.NDArray[np.int64]:
    return np.arange(num_in) // (num_in // num_groups)


def _nibbles(words: HostTensor) -> Bytes:
    """Nibble by nibble, lowest first: eight times as many as there are words."""
    return _nibbles_of(np.frombuffer(words.data, "<u4"))


def _nibbles_of(words: npt.NDArray[np.uint32]) -> Bytes:
    packed = words.view(np.uint8).reshape(-1)
    nibbles = np.empty((len(packed), 2), np.uint8)
    np.bitwise_and(packed, 15, out=nibbles[:, 0])
    np.right_shift(packed, 4, out=nibbles[:, 1])
    return nibbles.reshape(-1)


def _floats(tensor: HostTensor) -> Floats:
    return dequantize(tensor.storage, tensor.data, tensor.shape)


def _integers(tensor: HostTensor) -> npt.NDArray[np.int64]:
    return np.frombuffer(tensor.data, "<i8" if tensor.storage == "I64" else "<i4").astype(np.int64)

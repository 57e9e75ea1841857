"""From stored bytes to float32: every format that llama.cpp writes, plain numbers, and groups of integers.

Knows what the bytes of a block mean: each function states its layout, and `[n, ...]` stands for n blocks. Does not know
files, names or models. Agrees bit for bit with ggml's reference code, which multiplies and adds in float32 in a certain
order.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from headrace.engine.ops.iq_grids import grid
from headrace.engine.ops.storage import STORAGE_BLOCKS, storage_bytes

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int8]

_ELEMENTS_PER_CHUNK = 1 << 18
"""Temporaries stay within a core's cache, and within a few megabytes however large the tensor is."""


def dequantize(storage: str, data: memoryview, shape: tuple[int, ...]) -> Floats:
    """A new float32 array of `shape` from the bytes of one tensor; `storage` is a key of `STORAGE_BLOCKS`."""
    assert data.nbytes == storage_bytes(storage, shape), f"{data.nbytes} bytes are no {storage} tensor of shape {shape}"
    out = np.empty(shape, np.float32)
    with np.errstate(all="ignore"):  # damaged weights may overflow or be NaN; they then simply are
        if storage in _PLAIN:
            out.reshape(-1)[:] = _PLAIN[storage](np.frombuffer(data, np.uint8))
        elif storage == "INT8_CHANNEL":
            _int8_channel(np.frombuffer(data, np.uint8).reshape(-1, 4 + shape[-1]), out.reshape(-1, shape[-1]))
        else:
            _dequantize_blocks(storage, np.frombuffer(data, np.uint8), out.reshape(-1))
    return out


def _dequantize_blocks(storage: str, data: Bytes, out: Floats) -> None:
    block = STORAGE_BLOCKS[storage]
    blocks = data.reshape(-1, block.num_bytes)
    values = out.reshape(-1, block.num_elements)
    chunk = max(1, _ELEMENTS_PER_CHUNK // block.num_elements)
    for start in range(0, len(blocks), chunk):
        _BLOCKED[storage](blocks[start : start + chunk], values[start : start + chunk])


# Pieces that the formats share


def _half(blocks: Bytes, at: int) -> Floats:
    """A float16 of each block: [n, 1]."""
    return _view(blocks, at, 2, "<f2").astype(np.float32)


def _view(blocks: Bytes, at: int, num_bytes: int, dtype: str) -> npt.NDArray[np.generic]:
    """Some bytes of each block as numbers of another type: [n, num_bytes / itemsize]."""
    return np.ascontiguousarray(blocks[:, at : at + num_bytes]).view(dtype)


def _planes(packed: Bytes, bits: int, group: int) -> Bytes:
    """Fields of `bits` bits, which every `group` bytes hold plane by plane: all lowest fields first, then the next.

    [n, m] -> [n, m * 8 / bits]
    """
    groups = packed.reshape(len(packed), -1, 1, group)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = groups >> shifts
    fields &= np.uint8((1 << bits) - 1)
    return fields.reshape(len(packed), -1)


def _bits(packed: Bytes) -> Bytes:
    """Single bits, lowest first: [n, m] -> [n, m * 8]."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def _scaled(out: Floats, scales: Floats, integers: npt.NDArray[np.generic]) -> None:
    """out = scales * integers, each scale ([n, s]) covering an equal share of a block's integers ([n, elements])."""
    n, num_scales = scales.shape
    share = (n, num_scales, -1)
    np.multiply(integers.reshape(share), scales[:, :, None], out=out.reshape(share))


# One scale per small block


def _q1_0(blocks: Bytes, out: Floats) -> None:
    """d: half, signs: 128 bits; a set bit is +d, a clear one -d."""
    _scaled(out, _half(blocks, 0), _bits(blocks[:, 2:]).astype(np.int8) * np.int8(2) - np.int8(1))


def _q2_0(blocks: Bytes, out: Floats) -> None:
    """d: half, q: 64 fields of two bits in reading order; (q - 1) * d."""
    _scaled(out, _half(blocks, 0), _planes(blocks[:, 2:], 2, 1).view(np.int8) - np.int8(1))


def _q4_0(blocks: Bytes, out: Floats) -> None:
    """d: half, q: 32 nibbles; (q - 8) * d."""
    _scaled(out, _half(blocks, 0), _planes(blocks[:, 2:], 4, 16).view(np.int8) - np.int8(8))


def _q4_1(blocks: Bytes, out: Floats) -> None:
    """d, m: half, q: 32 nibbles; q * d + m."""
    _scaled(out, _half(blocks, 0), _planes(blocks[:, 4:], 4, 16))
    out += _half(blocks, 2)


def _five_bits(high: Bytes, low: Bytes) -> Bytes:
    """32 fifth bits in reading order, and 32 nibbles in two planes."""
    return _planes(low, 4, 16) | _bits(high) << np.uint8(4)


def _q5_0(blocks: Bytes, out: Floats) -> None:
    """d: half, 32 fifth bits, 32 nibbles; (q - 16) * d."""
    _scaled(out, _half(blocks, 0), _five_bits(blocks[:, 2:6], blocks[:, 6:]).view(np.int8) - np.int8(16))


def _q5_1(blocks: Bytes, out: Floats) -> None:
    """d, m: half, 32 fifth bits, 32 nibbles; q * d + m."""
    _scaled(out, _half(blocks, 0), _five_bits(blocks[:, 4:8], blocks[:, 8:]))
    out += _half(blocks, 2)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    """d: half, q: 32 int8; q * d."""
    _scaled(out, _half(blocks, 0), blocks[:, 2:].view(np.int8))


# Integers of Hugging Face's quantised checkpoints


def _int4_group(blocks: Bytes, out: Floats) -> None:
    """scale: float, zero: byte, nibbles, every 16 bytes of which hold 32 as Q4_0's do; (q - zero) * scale."""
    zeros = blocks[:, 4:5].astype(np.int16)
    _scaled(out, _view(blocks, 0, 4, "<f4").astype(np.float32), _planes(blocks[:, 5:], 4, 16).astype(np.int16) - zeros)


def _int8_channel(rows: Bytes, out: Floats) -> None:
    """Not blocks but whole rows: scale: float, int8; q * scale."""
    np.multiply(rows[:, 4:].view(np.int8), _view(rows, 0, 4, "<f4").astype(np.float32), out=out)


# Super-blocks of 256


def _q2_k(blocks: Bytes, out: Floats) -> None:
    """16 bytes of (scale, min) nibbles, 256 fields of two bits, d, dmin: half; d * scale * q - dmin * min."""
    nibbles = blocks[:, :16]
    scales = _half(blocks, 80) * (nibbles & np.uint8(15)).astype(np.float32)
    mins = _half(blocks, 82) * (nibbles >> np.uint8(4)).astype(np.float32)
    _scaled(out, scales, _planes(blocks[:, 16:80], 2, 32))
    by_scale = out.reshape(len(blocks), 16, 16)
    by_scale -= mins[:, :, None]


def _q3_k(blocks: Bytes, out: Floats) -> None:
    """256 high bits, 256 fields of two bits, 16 six-bit scales in 12 bytes, d: half.

    A *clear* high bit subtracts 4. The scales' low nibbles come first, in two planes; their high pairs follow in four.
    """
    packed = blocks[:, 96:108]
    six_bits = _planes(packed[:, :8], 4, 8) | _planes(packed[:, 8:], 2, 4) << np.uint8(4)
    scales = _half(blocks, 108) * (six_bits.view(np.int8) - np.int8(32)).astype(np.float32)
    low = _planes(blocks[:, 32:96], 2, 32)
    high = _planes(blocks[:, :32], 1, 32) << np.uint8(2)
    _scaled(out, scales, (low | high).view(np.int8) - np.int8(4))


def _six_bit_scales_and_mins(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight scales and eight mins of six bits in 12 bytes, as Q4_K and Q5_K have them: each [n, 8].

    Bytes 0..3 and 4..7 hold the first four of each in their low six bits, and the top pairs of the last four above them;
    bytes 8..11 hold the low nibbles of the last four: scales below, mins above.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    low_six, top_pair = np.uint8(0x3F), np.uint8(0x30)
    scales = [first & low_six, third & np.uint8(0x0F) | first >> np.uint8(2) & top_pair]
    mins = [second & low_six, third >> np.uint8(4) | second >> np.uint8(2) & top_pair]
    return np.concatenate(scales, axis=1).astype(np.float32), np.concatenate(mins, axis=1).astype(np.float32)


def _scale_and_shift(blocks: Bytes, out: Floats, integers: Bytes) -> None:
    """d, dmin: half, then eight scales and mins in 12 bytes; d * scale * q - dmin * min."""
    scales, mins = _six_bit_scales_and_mins(blocks[:, 4:16])
    _scaled(out, _half(blocks, 0) * scales, integers)
    by_scale = out.reshape(len(blocks), 8, 32)
    by_scale -= (_half(blocks, 2) * mins)[:, :, None]


def _q4_k(blocks: Bytes, out: Floats) -> None:
    """The head of `_scale_and_shift`, 256 nibbles."""
    _scale_and_shift(blocks, out, _planes(blocks[:, 16:], 4, 32))


def _q5_k(blocks: Bytes, out: Floats) -> None:
    """The head of `_scale_and_shift`, 256 fifth bits in eight planes, 256 nibbles."""
    high = _planes(blocks[:, 16:48], 1, 32) << np.uint8(4)
    _scale_and_shift(blocks, out, _planes(blocks[:, 48:], 4, 32) | high)


def _q6_k(blocks: Bytes, out: Floats) -> None:
    """256 nibbles, 256 high pairs, 16 int8 scales, d: half; (q - 32) * d * scale."""
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    integers = _planes(blocks[:, :128], 4, 64) | _planes(blocks[:, 128:192], 2, 32) << np.uint8(4)
    _scaled(out, scales, integers.view(np.int8) - np.int8(32))


def _q8_k(blocks: Bytes, out: Floats) -> None:
    """d: float, q: 256 int8, then sums that only products use; q * d."""
    _scaled(out, _view(blocks, 0, 4, "<f4").astype(np.float32), blocks[:, 4:260].view(np.int8))


# Ternary


def _tq1_0(blocks: Bytes, out: Floats) -> None:
    """Five ternary digits a byte (48 bytes), four a byte (4 bytes), d: half; (digit - 1) * d.

    A byte is a fraction of 256: times a power of three, modulo 256, its next digit is what three times it carries.
    """
    digits = np.concatenate(
        [_ternary(blocks[:, 0:32], 5), _ternary(blocks[:, 32:48], 5), _ternary(blocks[:, 48:52], 4)], axis=1
    )
    _scaled(out, _half(blocks, 52), digits)


def _ternary(packed: Bytes, num_digits: int) -> Ints:
    powers = (3 ** np.arange(num_digits)).astype(np.uint8)[:, None]
    fractions = packed[:, None, :] * powers  # [n, num_digits, m], modulo 256
    carried = fractions.astype(np.uint16) * np.uint16(3) >> np.uint16(8)
    return carried.astype(np.int8).reshape(len(packed), -1) - np.int8(1)


def _tq2_0(blocks: Bytes, out: Floats) -> None:
    """256 fields of two bits, d: half; (q - 1) * d."""
    _scaled(out, _half(blocks, 64), _planes(blocks[:, :64], 2, 32).view(np.int8) - np.int8(1))


# Tables of single values

_NONLINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
_E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""The sixteen four-bit floats (1 sign, 2 exponent, 1 mantissa bit), doubled to be integers; scales are halved for it."""


def _iq4_nl(blocks: Bytes, out: Floats) -> None:
    """d: half, 32 nibbles that choose from a table."""
    _scaled(out, _half(blocks, 0), _NONLINEAR[_planes(blocks[:, 2:], 4, 16)])


def _iq4_xs(blocks: Bytes, out: Floats) -> None:
    """d: half, eight high pairs of scales (2 bytes), eight low nibbles, 256 nibbles that choose from a table."""
    high = _planes(blocks[:, 2:4], 2, 1)
    six_bits = _planes(blocks[:, 4:8], 4, 1) | high << np.uint8(4)
    scales = _half(blocks, 0) * (six_bits.view(np.int8) - np.int8(32)).astype(np.float32)
    _scaled(out, scales, _NONLINEAR[_planes(blocks[:, 8:], 4, 16)])


def _mxfp4(blocks: Bytes, out: Floats) -> None:
    """e: exponent byte (the scale is 2 ** (e - 127)), 32 four-bit floats."""
    _scaled(out, _halved_powers_of_two()[blocks[:, :1]], _E2M1_DOUBLED[_planes(blocks[:, 1:], 4, 16)])


def _nvfp4(blocks: Bytes, out: Floats) -> None:
    """Four eight-bit float scales, 64 four-bit floats in four groups of 16."""
    _scaled(out, _halved_ue4m3()[blocks[:, :4]], _E2M1_DOUBLED[_planes(blocks[:, 4:], 4, 8)])


@cache
def _halved_powers_of_two() -> Floats:
    """2 ** (e - 128) for every exponent byte e; the first two are subnormal."""
    powers: Floats = np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)
    return powers


@cache
def _halved_ue4m3() -> Floats:
    """Half of every unsigned float with 4 exponent bits (bias 7) and 3 mantissa bits; 0x7F, its NaN, counts as 0."""
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    value = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(1 + mantissa / 8, exponent - 7))
    value[0x7F] = 0
    halved: Floats = (value / 2).astype(np.float32)
    return halved


# Tables of points: a group of eight (or four) weights is one point, and a sign for each


def _points(table: str, indices: npt.NDArray[np.generic], signs: Bytes) -> Ints:
    """Points by index ([n, k]), each value negated where its bit in `signs` ([n, elements / 8]) is set."""
    values = grid(table)[indices].reshape(len(indices), -1)
    negative = _bits(signs).view(np.int8)
    signed: Ints = (values ^ -negative) + negative  # two's complement
    return signed


@cache
def _even_signs() -> Bytes:
    """Seven stored signs and the eighth that makes the number of minuses even."""
    seven = np.arange(128, dtype=np.uint8)
    parity = _bits(seven[:, None]).sum(axis=1, dtype=np.uint8) & np.uint8(1)
    eight: Bytes = seven | parity << np.uint8(7)
    return eight


def _unpack_signs_and_scale(words: npt.NDArray[np.uint32]) -> tuple[Bytes, Floats]:
    """Words of four seven-bit sign groups below a four-bit scale: [n, k] -> [n, 4k], [n, k]."""
    groups = words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32) & np.uint32(127)
    return _even_signs()[groups].reshape(len(words), -1), (words >> np.uint32(28)).astype(np.float32)


def _iq2_xxs(blocks: Bytes, out: Floats) -> None:
    """d: half, eight pairs of words: four indices, then signs and scale; d * (scale + 1/2) / 4."""
    words = _view(blocks, 2, 64, "<u4").reshape(len(blocks), 8, 2)
    signs, scales = _unpack_signs_and_scale(words[:, :, 1].astype(np.uint32))
    indices = np.ascontiguousarray(words[:, :, 0]).view(np.uint8)
    scales = _half(blocks, 0) * (np.float32(0.5) + scales) * np.float32(0.25)
    _scaled(out, scales, _points("IQ2_XXS", indices, signs))


def _iq2_xs(blocks: Bytes, out: Floats) -> None:
    """d: half, 32 words of nine index and seven sign bits, 16 scale nibbles; d * (scale + 1/2) / 4."""
    words = _view(blocks, 2, 64, "<u2").astype(np.uint16)
    signs = _even_signs()[words >> np.uint16(9)]
    _scaled(out, _quarter_scales(blocks, 66), _points("IQ2_XS", words & np.uint16(511), signs))


def _iq2_s(blocks: Bytes, out: Floats) -> None:
    """d: half, 32 low index bytes, 32 sign bytes, 32 high index pairs, 16 scale nibbles; d * (scale + 1/2) / 4."""
    indices = blocks[:, 2:34] | _planes(blocks[:, 66:74], 2, 1).astype(np.uint16) << np.uint16(8)
    _scaled(out, _quarter_scales(blocks, 74), _points("IQ2_S", indices, blocks[:, 34:66]))


def _quarter_scales(blocks: Bytes, at: int) -> Floats:
    """16 nibbles: [n, 16]."""
    nibbles = _planes(blocks[:, at : at + 8], 4, 1).astype(np.float32)
    return _half(blocks, 0) * (np.float32(0.5) + nibbles) * np.float32(0.25)


def _iq3_xxs(blocks: Bytes, out: Floats) -> None:
    """d: half, 64 index bytes, eight words of signs and scale; d * (scale + 1/2) / 2."""
    signs, scales = _unpack_signs_and_scale(_view(blocks, 66, 32, "<u4").astype(np.uint32))
    scales = _half(blocks, 0) * (np.float32(0.5) + scales) * np.float32(0.5)
    _scaled(out, scales, _points("IQ3_XXS", blocks[:, 2:66], signs))


def _iq3_s(blocks: Bytes, out: Floats) -> None:
    """d: half, 64 low index bytes, 64 ninth bits, 32 sign bytes, eight scale nibbles; d * (1 + 2 * scale)."""
    indices = blocks[:, 2:66] | _bits(blocks[:, 66:74]).astype(np.uint16) << np.uint16(8)
    nibbles = _planes(blocks[:, 106:110], 4, 1)
    scales = _half(blocks, 0) * (np.uint8(1) + np.uint8(2) * nibbles).astype(np.float32)
    _scaled(out, scales, _points("IQ3_S", indices, blocks[:, 74:106]))


_IQ1_SHIFT = np.float32(0.125)
"""IQ1 moves every point by an eighth, up or down, per group."""


def _iq1_s(blocks: Bytes, out: Floats) -> None:
    """d: half, 32 low index bytes, eight words: four high index triples, a scale (3 bits), the shift's sign."""
    words = _view(blocks, 34, 16, "<u2").astype(np.uint16)
    triples = words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & np.uint16(7)
    indices = blocks[:, 2:34] | triples.reshape(len(blocks), -1) << np.uint16(8)
    odd = (words >> np.uint16(12) & np.uint16(7)) * np.uint16(2) + np.uint16(1)
    scales = _half(blocks, 0) * odd.astype(np.float32)
    _shifted_points(out, scales, indices, words & np.uint16(0x8000))


def _iq1_m(blocks: Bytes, out: Floats) -> None:
    """32 low index bytes, 32 nibbles (three high index bits, the shift's sign), four words of scales.

    Each word holds four scales of three bits; the four top nibbles together are d, a half.
    """
    words = _view(blocks, 48, 8, "<u2").astype(np.uint16)
    nibbles_of_d = words >> np.uint16(12) << np.array([0, 4, 8, 12], np.uint16)
    d: Floats = np.bitwise_or.reduce(nibbles_of_d, axis=1, keepdims=True).view(np.float16).astype(np.float32)
    threes = words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & np.uint16(7)
    scales = d * (threes.reshape(len(blocks), -1) * np.uint16(2) + np.uint16(1)).astype(np.float32)  # [n, 16]
    nibbles = _planes(blocks[:, 32:48], 4, 1)
    indices = blocks[:, :32] | (nibbles & np.uint8(7)).astype(np.uint16) << np.uint16(8)
    _shifted_points(out, scales, indices, nibbles & np.uint8(8))


def _shifted_points(
    out: Floats, scales: Floats, indices: npt.NDArray[np.generic], downward: npt.NDArray[np.generic]
) -> None:
    """out = scale * (point + shift): [n, s] scales, [n, 32] indices, a direction for every or every fourth point."""
    shifts = np.where(downward, -_IQ1_SHIFT, _IQ1_SHIFT).astype(np.float32)
    points = grid("IQ1_S")[indices].reshape(len(out), shifts.shape[1], -1)
    _scaled(out, scales, points + shifts[:, :, None])


_BLOCKED: dict[str, Callable[[Bytes, Floats], None]] = {
    "Q1_0": _q1_0, "Q2_0": _q2_0, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0,
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "Q8_K": _q8_k,
    "TQ1_0": _tq1_0, "TQ2_0": _tq2_0,
    "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs, "MXFP4": _mxfp4, "NVFP4": _nvfp4,
    "IQ2_XXS": _iq2_xxs, "IQ2_XS": _iq2_xs, "IQ2_S": _iq2_s, "IQ3_XXS": _iq3_xxs, "IQ3_S": _iq3_s,
    "IQ1_S": _iq1_s, "IQ1_M": _iq1_m,
    "INT4_G32": _int4_group, "INT4_G64": _int4_group, "INT4_G128": _int4_group,
}  # fmt: skip


def _bf16(data: Bytes) -> Floats:
    """The upper half of a float32."""
    return (data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _numbers(dtype: str) -> Callable[[Bytes], npt.NDArray[np.generic]]:
    return lambda data: data.view(dtype)


_PLAIN: dict[str, Callable[[Bytes], npt.NDArray[np.generic]]] = {
    "F64": _numbers("<f8"), "F32": _numbers("<f4"), "F16": _numbers("<f2"), "BF16": _bf16,
    "I64": _numbers("<i8"), "I32": _numbers("<i4"), "I16": _numbers("<i2"), "I8": _numbers("i1"), "U8": _numbers("u1"),
}  # fmt: skip

assert _BLOCKED.keys() | _PLAIN.keys() | {"INT8_CHANNEL"} == STORAGE_BLOCKS.keys(), "every known format can be read"

"""Floats to GGUF's simplest block formats, as llama.cpp rounds them.

Knows each format's block. Does not know which weights ought to be quantised: `--quantization` and the registry say that.
"""

import numpy as np
import numpy.typing as npt

from headrace.base.errors import ConfigurationError
from headrace.engine.ops.dequantize import Floats

Bytes = npt.NDArray[np.uint8]

BLOCK_SIZE = 32


def quantize(storage: str, rows: Floats, *, name: str = "the tensor") -> Bytes:
    """Blocks of 32 along the last dimension, one after another. `name` is for the error where that does not go up."""
    if rows.shape[-1] % BLOCK_SIZE:
        raise ConfigurationError(
            f"quantization {storage.lower()}: rows of {name} have {rows.shape[-1]} numbers, which is no multiple of "
            f"{BLOCK_SIZE}; take --quantization auto"
        )
    blocks = np.ascontiguousarray(rows, np.float32).reshape(-1, BLOCK_SIZE)
    return np.concatenate(_PARTS[storage](blocks), axis=1).reshape(-1)


def _q8_0(blocks: Floats) -> tuple[Bytes, ...]:
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    whole = _round_half_away(blocks * _inverse(scale)).astype(np.int8)
    return _half(scale), whole.view(np.uint8)


def _q4_0(blocks: Floats) -> tuple[Bytes, ...]:
    """The number of the greatest magnitude becomes -8 exactly; the other side ends at 7."""
    greatest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    scale = greatest / np.float32(-8)
    whole = np.clip(np.trunc(blocks * _inverse(scale) + np.float32(8.5)), 0, 15).astype(np.uint8)
    return _half(scale), _nibbles(whole)


def _q4_1(blocks: Floats) -> tuple[Bytes, ...]:
    least, greatest = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    scale = (greatest - least) / np.float32(15)
    whole = np.clip(np.trunc((blocks - least) * _inverse(scale) + np.float32(0.5)), 0, 15).astype(np.uint8)
    return _half(scale), _half(least), _nibbles(whole)


_PARTS = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1}


def _inverse(scale: Floats) -> Floats:
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)


def _round_half_away(x: Floats) -> Floats:
    """To nearest; halves away from zero, as C's roundf."""
    whole = np.trunc(x)
    return whole + np.trunc(2 * (x - whole))


def _half(x: Floats) -> Bytes:
    return x.astype(np.float16).view(np.uint8)


def _nibbles(whole: Bytes) -> Bytes:
    """Byte k holds number k below and number k + 16 above."""
    return whole[:, : BLOCK_SIZE // 2] | whole[:, BLOCK_SIZE // 2 :] << np.uint8(4)

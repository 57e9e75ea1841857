"""Storage formats: how many bytes so many numbers take in a file.

Knows each format's block: how many elements are packed together, and into how many bytes. Does not know what the bytes mean
(`dequantize.py` does) nor where they lie (`models/gguf.py`, `models/safetensors.py` do).
"""

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Block:
    """The unit of a format: this many neighbours along the last dimension share this many bytes."""

    num_elements: int
    num_bytes: int
    num_head_bytes: int = 0
    """Bytes before the blocks of each row."""


STORAGE_BLOCKS: dict[str, Block] = {
    # Plain numbers, little endian
    "F64": Block(1, 8),
    "F32": Block(1, 4),
    "F16": Block(1, 2),
    "BF16": Block(1, 2),
    "I64": Block(1, 8),
    "I32": Block(1, 4),
    "I16": Block(1, 2),
    "I8": Block(1, 1),
    "U8": Block(1, 1),
    # One scale (and for _1 a minimum) per small block
    "Q1_0": Block(128, 2 + 16),
    "Q2_0": Block(64, 2 + 16),
    "Q4_0": Block(32, 2 + 16),
    "Q4_1": Block(32, 2 + 2 + 16),
    "Q5_0": Block(32, 2 + 4 + 16),
    "Q5_1": Block(32, 2 + 2 + 4 + 16),
    "Q8_0": Block(32, 2 + 32),
    # "K": super-blocks of 256 whose sub-blocks have scales that are quantised themselves
    "Q2_K": Block(256, 16 + 64 + 2 + 2),
    "Q3_K": Block(256, 32 + 64 + 12 + 2),
    "Q4_K": Block(256, 2 + 2 + 12 + 128),
    "Q5_K": Block(256, 2 + 2 + 12 + 32 + 128),
    "Q6_K": Block(256, 128 + 64 + 16 + 2),
    "Q8_K": Block(256, 4 + 256 + 32),
    # "IQ": groups of weights are points of a lattice, stored as indices into a table
    "IQ1_S": Block(256, 2 + 32 + 16),
    "IQ1_M": Block(256, 32 + 16 + 8),
    "IQ2_XXS": Block(256, 2 + 64),
    "IQ2_XS": Block(256, 2 + 64 + 8),
    "IQ2_S": Block(256, 2 + 32 + 32 + 8 + 8),
    "IQ3_XXS": Block(256, 2 + 64 + 32),
    "IQ3_S": Block(256, 2 + 64 + 8 + 32 + 4),
    "IQ4_NL": Block(32, 2 + 16),
    "IQ4_XS": Block(256, 2 + 2 + 4 + 128),
    # Ternary
    "TQ1_0": Block(256, 48 + 4 + 2),
    "TQ2_0": Block(256, 64 + 2),
    # Four-bit floats
    "MXFP4": Block(32, 1 + 16),
    "NVFP4": Block(64, 4 + 32),
    # What AWQ, GPTQ and compressed-tensors checkpoints hold, brought into rows by `models/hf_quantization.py`
    "INT4_G32": Block(32, 4 + 1 + 16),
    "INT4_G64": Block(64, 4 + 1 + 32),
    "INT4_G128": Block(128, 4 + 1 + 64),
    "INT8_CHANNEL": Block(1, 1, num_head_bytes=4),
}
"""Every format that `dequantize` reads, by GGUF's name for it where GGUF has it."""

QUANTIZATIONS = {"q8_0": "Q8_0", "q4_0": "Q4_0", "q4_1": "Q4_1"}
"""What people type -> the format that `quantize` writes."""


def row_bytes(storage: str, num_elements: int) -> int:
    """Bytes of one row; `num_elements` must be whole blocks."""
    block = STORAGE_BLOCKS[storage]
    assert num_elements % block.num_elements == 0, f"{num_elements} elements are no whole blocks of {storage}"
    return block.num_head_bytes + num_elements // block.num_elements * block.num_bytes


def storage_bytes(storage: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor; blocks lie along its last dimension.

    >>> storage_bytes("Q4_0", (2, 64))
    72
    """
    if not shape:
        return row_bytes(storage, 1)
    return prod(shape[:-1]) * row_bytes(storage, shape[-1])

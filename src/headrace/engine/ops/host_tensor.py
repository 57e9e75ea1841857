"""HostTensor: a weight as it lies in a file, before any implementation of the ops has touched it.

Knows bytes, their storage format and their meaning as a tensor. Does not know arrays: an ops implementation turns it
into one (or keeps the quantised bytes as they are).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostTensor:
    name: str
    """The canonical name, as Hugging Face's Llama spells it: `model.layers.0.self_attn.q_proj.weight`."""
    storage: str
    """`F32`, `F16`, `BF16`, `F64`, `I8` ... or a GGUF quantisation type such as `Q4_1`, in GGUF's spelling."""
    shape: tuple[int, ...]
    """Logical shape, outermost first (PyTorch's order); quantised formats group along the last dimension."""
    data: memoryview
    """The raw bytes, usually a view into a memory-mapped file."""
    interleaved_heads: int = 0
    """If not 0, the rows are those of so many heads whose rotary pairs are interleaved (x0 y0 x1 y1 ...), as llama.cpp
    writes the q and k projections of Llama; the loader must reorder them to halves (x0 x1 ... y0 y1 ...)."""

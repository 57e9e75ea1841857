"""The ops in torch: the reference on every device.

Knows torch. Does not know models, layers or the mind; `protocol.py` says what each operation means.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
import torch.nn.functional as F

from headrace.base.errors import ConfigurationError
from headrace.engine.ops.host_tensor import HostTensor
from headrace.engine.ops.protocol import AttentionShape, Forward, QKNorm, SequenceSpan
from headrace.engine.ops.torch import attention, placement, weights
from headrace.specs.model import Activation

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchOps:
    """Implements `Ops`. Tensors are torch tensors."""

    def __init__(self, *, dtype: str, device: str, num_threads: int | None = None) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigurationError("device cuda is not available here: torch finds no CUDA device; use device cpu")
        self.dtype = self.kv_dtype = dtype
        self._dtype = DTYPES[dtype]
        self._device = torch.device(device)
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.processor, self.device = _describe(self._device)

    def computing(self) -> AbstractContextManager[object]:
        return torch.inference_mode()

    def record(self, forward: Forward) -> Forward:
        return forward  # torch's calls are made anew each time

    # Loading

    def load_vector(self, tensor: HostTensor, *, plus: float = 0.0) -> torch.Tensor:
        return (weights.load_rows(tensor, torch.float32) + plus).to(self._device)

    def load_linear(self, parts: Sequence[HostTensor], biases: Sequence[HostTensor] = ()) -> weights.LinearWeight:
        return weights.load_linear(parts, biases, self._dtype, self._device)

    def load_embedding(self, table: HostTensor) -> torch.Tensor:
        return weights.load_rows(table, self._dtype).to(self._device)

    def rope_table(self, frequencies: Sequence[float], *, attention_factor: float, num_positions: int) -> torch.Tensor:
        """[num_positions, 2, rotary_dim / 2]: cos, sin."""
        positions = torch.arange(num_positions, dtype=torch.float32)
        angles = torch.outer(positions, torch.tensor(frequencies, dtype=torch.float32))
        return (torch.stack((angles.cos(), angles.sin()), dim=1) * attention_factor).to(self._device)

    def allocate_kv(self, shape: AttentionShape, *, num_blocks: int, block_size: int) -> torch.Tensor:
        size = (2, shape.num_kv_heads, num_blocks, block_size, shape.head_dim)
        if self._device.type != "cpu":
            return torch.zeros(size, dtype=self._dtype, device=self._device)
        return _untouched_zeros(math.prod(size) * self._dtype.itemsize).view(self._dtype).reshape(size)

    def kv_bytes_per_token(self, shape: AttentionShape) -> int:
        return 2 * shape.num_kv_heads * shape.head_dim * self._dtype.itemsize

    # The step's metadata

    def token_ids(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self._device)

    def row_ids(self, rows: Sequence[int]) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self._device)

    def place(
        self, spans: Sequence[SequenceSpan], *, block_size: int, windows: Sequence[int | None]
    ) -> placement.TorchPlacement:
        return placement.place(spans, block_size=block_size, windows=windows, dtype=self._dtype, device=self._device)

    def rotation(self, table: torch.Tensor, where: placement.TorchPlacement) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, one for each dimension and sin's first half negated: [num_tokens, 1, rotary_dim]."""
        rows = table.index_select(0, where.positions)
        cos, sin = rows[:, :1], rows[:, 1:]  # each [num_tokens, 1, rotary_dim / 2]
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

    # Computing

    def embed(self, ids: torch.Tensor, table: torch.Tensor, *, multiplier: float = 1.0) -> torch.Tensor:
        x = F.embedding(ids, table)
        return x if multiplier == 1.0 else x * torch.tensor(multiplier, dtype=self._dtype)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
        if x.dtype == torch.float32:
            return F.rms_norm(x, x.shape[-1:], weight, eps)
        return F.rms_norm(x.float(), x.shape[-1:], weight, eps).to(x.dtype)

    def linear(self, x: torch.Tensor, weight: weights.LinearWeight, *, add_to: torch.Tensor | None = None) -> torch.Tensor:
        return weights.linear(x, weight, add_to)

    def add(self, x: torch.Tensor, y: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return x + y if scale == 1.0 else x + y * scale

    def gated_linear(
        self, x: torch.Tensor, gate: weights.LinearWeight, up: weights.LinearWeight, activation: Activation
    ) -> torch.Tensor:
        return weights.gated_linear(x, gate, up, activation)

    def rope_and_cache(
        self,
        qkv: torch.Tensor,
        kv: torch.Tensor,
        where: placement.TorchPlacement,
        shape: AttentionShape,
        *,
        rotation: tuple[torch.Tensor, torch.Tensor] | None,
        norm: QKNorm | None,
    ) -> torch.Tensor:
        return attention.rope_and_cache(qkv, kv, where, shape, rotation, norm)

    def attention(
        self, q: torch.Tensor, kv: torch.Tensor, where: placement.TorchPlacement, shape: AttentionShape
    ) -> torch.Tensor:
        return attention.attention(q, kv, where, shape)

    def select_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, rows)

    def logits(
        self,
        x: torch.Tensor,
        weight: weights.LinearWeight,
        *,
        multiplier: float = 1.0,
        softcap: float | None = None,
    ) -> torch.Tensor:
        logits = weights.linear(x, weight, None).float()
        if multiplier != 1.0:
            logits = logits * multiplier
        if softcap is not None:
            logits = attention.soft_cap(logits, softcap)
        return logits

    def copy_blocks(self, kv: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            kv[:, :, target] = kv[:, :, source]

    def make_finite(self, kv: torch.Tensor, block_ids: Sequence[int]) -> None:
        for block in block_ids:
            kv[:, :, block].nan_to_num_()


def _untouched_zeros(num_bytes: int) -> torch.Tensor:
    """Zeros that take memory only where they are written to: a large cache costs nothing before it is used.

    torch.zeros writes them all. NumPy leaves that to the system, but aligns less than vector instructions like.
    """
    alignment = 64
    raw = np.zeros(num_bytes + alignment, dtype=np.uint8)
    start = -raw.ctypes.data % alignment
    return torch.from_numpy(raw[start : start + num_bytes])


def _describe(device: torch.device) -> tuple[str, str]:
    """(processor, device) as `Ops` defines them."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        return f"torch-{torch.__version__}-cuda-{name}", f"torch on {name}"
    capability = torch.backends.cpu.get_cpu_capability().lower()
    return f"torch-{torch.__version__}-cpu-{capability}", f"torch on CPU, {torch.get_num_threads()} threads"


def best_dtype(device: str) -> str:
    """bfloat16 where the processor multiplies it natively, else float32: emulated, it is several times slower."""
    if device == "cuda":
        return "bfloat16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float32"
    has_native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if has_native else "float32"

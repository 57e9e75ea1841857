"""Quantised Hugging Face folders with random weights, packed word by word as AWQ, GPTQ and compressed-tensors pack them.

Knows the layouts from their definitions, one integer at a time. Does not know the code under test.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.checkpoint_files import LLAMA_CONFIG, raw_safetensors

Array = npt.NDArray[Any]

CONFIG: dict[str, object] = {
    **LLAMA_CONFIG,
    "hidden_size": 128,
    "intermediate_size": 256,
    "vocab_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}

PROJECTIONS = {
    "self_attn.q_proj": (128, 128),
    "self_attn.k_proj": (64, 128),
    "self_attn.v_proj": (64, 128),
    "self_attn.o_proj": (128, 128),
    "mlp.gate_proj": (256, 128),
    "mlp.up_proj": (256, 128),
    "mlp.down_proj": (128, 256),
}

AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble i of a word holds this one of its eight columns."""


@dataclass
class Folder:
    """What was written, and what its numbers are."""

    path: Path
    expected: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    """Every tensor by its canonical name."""


@dataclass
class Module:
    """A projection's integers, [N, K], and what they stand for."""

    tensors: dict[str, Array]
    numbers: npt.NDArray[np.float64]


def pack_words(nibbles: Array) -> npt.NDArray[np.int32]:
    """[..., 8] integers of four bits, the first lowest -> [...] words."""
    words = np.zeros(nibbles.shape[:-1], np.uint64)
    for i in range(8):
        words |= nibbles[..., i].astype(np.uint64) << np.uint64(4 * i)
    return words.astype(np.uint32).view(np.int32)


def _scales(rng: np.random.Generator, num_groups: int, num_out: int) -> npt.NDArray[np.float16]:
    return rng.uniform(0.002, 0.02, (num_groups, num_out)).astype(np.float16)


def _numbers(integers: Array, zeros: Array, scales: Array, groups: Array) -> npt.NDArray[np.float64]:
    """integers [K, N], zeros and scales [G, N] -> [N, K]"""
    exact = (integers.astype(np.float64) - zeros[groups]) * scales.astype(np.float64)[groups]
    return np.ascontiguousarray(exact.T)


def awq(rng: np.random.Generator, num_out: int, num_in: int, group_size: int) -> Module:
    groups = np.arange(num_in) // group_size
    integers, zeros = (rng.integers(0, 16, (rows, num_out)) for rows in (num_in, groups[-1] + 1))
    scales = _scales(rng, len(zeros), num_out)

    def packed(matrix: Array) -> npt.NDArray[np.int32]:
        return pack_words(matrix.reshape(len(matrix), -1, 8)[:, :, list(AWQ_COLUMNS)])

    tensors: dict[str, Array] = {"qweight": packed(integers), "qzeros": packed(zeros), "scales": scales}
    return Module(tensors, _numbers(integers, zeros, scales, groups))


def gptq(
    rng: np.random.Generator,
    num_out: int,
    num_in: int,
    group_size: int,
    *,
    first_format: bool = True,
    act_order: bool = False,
    has_index: bool = True,
) -> Module:
    groups = np.arange(num_in) // (num_in if group_size == -1 else group_size)
    if act_order:
        groups = rng.permutation(groups)
    integers = rng.integers(0, 16, (num_in, num_out))
    zeros = rng.integers(1, 16, (groups.max() + 1, num_out))
    scales = _scales(rng, len(zeros), num_out)
    stored = zeros - 1 if first_format else zeros
    tensors: dict[str, Array] = {
        "qweight": pack_words(integers.reshape(-1, 8, num_out).swapaxes(1, 2)),
        "qzeros": pack_words(stored.reshape(len(stored), -1, 8)),
        "scales": scales,
    }
    if has_index:
        tensors["g_idx"] = groups.astype(np.int32)
    return Module(tensors, _numbers(integers, zeros, scales, groups))


def compressed_int4(
    rng: np.random.Generator,
    num_out: int,
    num_in: int,
    group_size: int,
    *,
    symmetric: bool = True,
    act_order: bool = False,
) -> Module:
    groups = np.arange(num_in) // (num_in if group_size == -1 else group_size)
    if act_order:
        groups = rng.permutation(groups)
    integers = rng.integers(-8, 8, (num_in, num_out))
    num_groups = groups.max() + 1
    zeros = np.zeros((num_groups, num_out), np.int64) if symmetric else rng.integers(-8, 8, (num_groups, num_out))
    scales = _scales(rng, num_groups, num_out).astype(np.float32).view(np.uint32) & 0xFFFF0000  # BF16 holds them
    floats = scales.astype(np.uint32).view(np.float32)
    tensors: dict[str, Array] = {
        "weight_packed": pack_words((integers.T + 8).reshape(num_out, -1, 8)),
        "weight_scale": (scales >> 16).astype(np.uint16).T,  # written as BF16
        "weight_shape": np.array([num_out, num_in], np.int64),
    }
    if not symmetric:
        tensors["weight_zero_point"] = pack_words((zeros.T + 8).reshape(-1, 8, num_groups).swapaxes(1, 2))
    if act_order:
        tensors["weight_g_idx"] = groups.astype(np.int32)
    return Module(tensors, _numbers(integers, zeros, floats, groups))


def compressed_int8(rng: np.random.Generator, num_out: int, num_in: int) -> Module:
    integers = rng.integers(-127, 128, (num_out, num_in)).astype(np.int8)
    scales = rng.uniform(0.0002, 0.002, (num_out, 1)).astype(np.float32)
    return Module({"weight": integers, "weight_scale": scales}, integers.astype(np.float64) * scales)


_TYPES = {"float16": "F16", "float32": "F32", "int32": "I32", "int64": "I64", "int8": "I8", "uint16": "BF16"}


def safetensors_of(tensors: dict[str, Array]) -> bytes:
    """A safetensors file; uint16 stands for BF16."""
    header: dict[str, object] = {}
    body = b""
    for name, array in tensors.items():
        data = np.ascontiguousarray(array).tobytes()
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": _TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        body += data
    return raw_safetensors(header, body)


def write_quantized_llama(
    path: Path, section: dict[str, object], make: Callable[[np.random.Generator, int, int], Module], *, seed: int = 0
) -> Folder:
    """Two layers whose projections `make` makes, from (rng, N, K); norms, embeddings and the head stay float16."""
    rng = np.random.default_rng(seed)
    folder = Folder(path)
    stored: dict[str, Array] = {}

    def plain(name: str, shape: tuple[int, ...], *, around: float = 0.0) -> None:
        stored[name] = (around + rng.normal(scale=0.1, size=shape)).astype(np.float16)
        folder.expected[name] = stored[name].astype(np.float64)

    plain("model.embed_tokens.weight", (96, 128))
    for layer in range(2):
        for name, (num_out, num_in) in PROJECTIONS.items():
            module = make(rng, num_out, num_in)
            prefix = f"model.layers.{layer}.{name}"
            stored.update({f"{prefix}.{member}": array for member, array in module.tensors.items()})
            folder.expected[f"{prefix}.weight"] = module.numbers
        plain(f"model.layers.{layer}.input_layernorm.weight", (128,), around=1.0)
        plain(f"model.layers.{layer}.post_attention_layernorm.weight", (128,), around=1.0)
    plain("model.norm.weight", (128,), around=1.0)
    plain("lm_head.weight", (96, 128))
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": section}))
    (path / "model.safetensors").write_bytes(safetensors_of(stored))
    return folder


def int4_group(group_size: int = 128, **weights: object) -> dict[str, object]:
    """compressed-tensors' section for packed weights."""
    described = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": group_size, **weights}
    return _compressed("pack-quantized", described, None)


def int8_channel(**inputs: object) -> dict[str, object]:
    """compressed-tensors' section for W8A8."""
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "group_size": None}
    described = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True, **inputs}
    return _compressed("int-quantized", weights, described)


def _compressed(name: str, weights: dict[str, object], inputs: dict[str, object] | None) -> dict[str, object]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": name,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
    }

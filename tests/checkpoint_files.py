"""Small checkpoint files made in memory, whole or damaged on purpose, without the libraries that usually write them.

Knows the containers byte by byte, and a tiny model of each naming. Does not know the code under test.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

GGUF_TYPES = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8, "array": 9,
              "u64": 10, "i64": 11, "f64": 12}  # fmt: skip
_CODES = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "bool": "?", "u64": "Q",
          "i64": "q", "f64": "d"}  # fmt: skip


@dataclass(frozen=True)
class Typed:
    """A metadata value with its type, `u32` or, for arrays, `[u32]`."""

    kind: str
    value: object


@dataclass(frozen=True)
class RawTensor:
    """A tensor as GGUF describes it; `shape` is outermost first."""

    shape: Sequence[int]
    type_id: int
    data: bytes


def f32(array: Array) -> RawTensor:
    return RawTensor(array.shape, 0, array.astype("<f4").tobytes())


def _string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def _value(kind: str, value: object) -> bytes:
    if kind.startswith("["):
        assert isinstance(value, Sequence)
        inner = kind[1:-1]
        type_id = GGUF_TYPES["array" if inner.startswith("[") else inner]
        items = [_value(inner, item) for item in value]
        return struct.pack("<IQ", type_id, len(value)) + b"".join(items)
    if kind == "str":
        assert isinstance(value, (str, bytes))
        return _string(value)
    return struct.pack(f"<{_CODES[kind]}", value)


def _typed(value: object) -> Typed:
    match value:
        case Typed():
            return value
        case bool():
            return Typed("bool", value)
        case int():
            return Typed("u32", value)
        case float():
            return Typed("f32", value)
        case str() | bytes():
            return Typed("str", value)
    raise AssertionError(f"say the type of {value!r}")


def gguf_bytes(
    metadata: Mapping[str, object],
    tensors: Mapping[str, RawTensor] | None = None,
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A GGUF file. Plain Python values are written as u32, f32, bool and string."""
    tensors = tensors or {}
    head = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    for key, value in metadata.items():
        typed = _typed(value)
        type_id = GGUF_TYPES["array" if typed.kind.startswith("[") else typed.kind]
        head.append(_string(key) + struct.pack("<I", type_id) + _value(typed.kind, typed.value))
    body = b""
    for name, tensor in tensors.items():
        body += bytes(-len(body) % alignment)
        shape = struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        head.append(_string(name) + struct.pack("<I", len(tensor.shape)) + shape)
        head.append(struct.pack("<IQ", tensor.type_id, len(body)))
        body += tensor.data
    whole = b"".join(head)
    return whole + bytes(-len(whole) % alignment) + body


def safetensors_bytes(tensors: Mapping[str, Array], *, metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file of float32 tensors."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    body = b""
    for name, array in tensors.items():
        data = array.astype("<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    return raw_safetensors(header, body)


def raw_safetensors(header: object, body: bytes) -> bytes:
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + body


# A tiny Llama: 2 layers, 4 query heads and 2 KV heads of 8, hidden 32, inner 48, vocabulary 40

LLAMA_CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

LLAMA_METADATA: dict[str, object] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 48,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 8,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}

_LAYER_SHAPES = {
    # Hugging Face's name, GGUF's, the shape
    "input_layernorm": ("attn_norm", (32,)),
    "self_attn.q_proj": ("attn_q", (32, 32)),
    "self_attn.k_proj": ("attn_k", (16, 32)),
    "self_attn.v_proj": ("attn_v", (16, 32)),
    "self_attn.o_proj": ("attn_output", (32, 32)),
    "post_attention_layernorm": ("ffn_norm", (32,)),
    "mlp.gate_proj": ("ffn_gate", (48, 32)),
    "mlp.up_proj": ("ffn_up", (48, 32)),
    "mlp.down_proj": ("ffn_down", (32, 48)),
}


def _random(name: str, shape: tuple[int, ...]) -> Array:
    """The same numbers for the same name, whichever container they end up in."""
    seed = int.from_bytes(name.encode(), "little") % (1 << 63)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tiny_llama() -> dict[str, Array]:
    """Hugging Face names and numbers."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (40, 32)}
    for layer in range(2):
        for name, (_, shape) in _LAYER_SHAPES.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    shapes |= {"model.norm.weight": (32,), "lm_head.weight": (40, 32)}
    return {name: _random(name, shape) for name, shape in shapes.items()}


def tiny_llama_gguf() -> dict[str, RawTensor]:
    """The same numbers under GGUF's names, rows of q and k not interleaved: order does not matter to who only reads."""
    tensors = tiny_llama()
    renamed = {
        "token_embd.weight": tensors["model.embed_tokens.weight"],
        "output_norm.weight": tensors["model.norm.weight"],
        "output.weight": tensors["lm_head.weight"],
    }
    for layer in range(2):
        for name, (gguf_name, _) in _LAYER_SHAPES.items():
            renamed[f"blk.{layer}.{gguf_name}.weight"] = tensors[f"model.layers.{layer}.{name}.weight"]
    return {name: f32(array) for name, array in renamed.items()}


def write_folder(
    folder: Path,
    config: Mapping[str, object],
    tensors: Mapping[str, Array],
    generation: Mapping[str, object] | None = None,
) -> Path:
    """A Hugging Face folder with one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(dict(generation)))
    return folder

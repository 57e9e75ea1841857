"""GGUF files as llama.cpp's converter would write them, for every architecture, against the checkpoint they came from.

The conversions below are the converter's, stated once: it interleaves heads, adds Gemma's 1, keeps Phi-3's fused tensors,
and turns Llama 3's rotary scaling into factors.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.checkpoint_files import RawTensor, f32, gguf_bytes

from headrace.engine.layers.rotary import rotary_frequencies
from headrace.engine.models.registry import GGUF
from headrace.engine.models.weights import open_checkpoint
from headrace.engine.ops.torch.weights import load_rows
from headrace.specs.model import RopeSpec

SIZES: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SHORT, LONG = [1.0, 1.25, 1.5], [1.0, 2.0, 4.0]

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # GGUF's name: the library's class, its settings, and the metadata that the converter writes for them
    "llama": (
        "LlamaForCausalLM",
        {"attention_bias": True, "rope_parameters": LLAMA3 | {"original_max_position_embeddings": 32}},
        {"rope.freq_base": 5e5},
    ),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}, {}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 16}, {}),
    "gemma": ("GemmaForCausalLM", {"head_dim": 16}, {}),
    "gemma2": (
        "Gemma2ForCausalLM",
        {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8},
        {"attention.sliding_window": 8, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8},
        {"attention.sliding_window": 8, "rope.freq_base": 1e6},
    ),
    "phi3": (
        "Phi3ForCausalLM",
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.75,
                "short_factor": SHORT,
                "long_factor": LONG,
            },
        },
        {
            "rope.dimension_count": 6,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.attn_factor": float(np.sqrt(1 + np.log(4) / np.log(64))),
            "attention.sliding_window": 0,
        },
    ),
    "granite": (
        "GraniteForCausalLM",
        {"attention_multiplier": 0.25, "embedding_multiplier": 12.0, "residual_multiplier": 0.5, "logits_scaling": 8.0},
        {"attention.scale": 0.25, "embedding_scale": 12.0, "residual_scale": 0.5, "logit_scale": 8.0},
    ),
    "smollm3": ("SmolLM3ForCausalLM", {"tie_word_embeddings": True}, {"rope.freq_base": 2e6}),
}

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str, *, post_norms: bool) -> str:
    tops = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, kind = name.rsplit(".", 1)
    if stem in tops:
        return f"{tops[stem]}.{kind}"
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", stem)
    assert match is not None
    names = _NAMES | {"post_attention_layernorm": "post_attention_norm" if post_norms else "ffn_norm"}
    return f"blk.{match[1]}.{names[match[2]]}.{kind}"


def _interleaved(rows: Any, num_heads: int) -> Any:
    """Halves x0 x1 ... y0 y1 ... of every head -> pairs x0 y0 x1 y1 ..."""
    return rows.reshape(num_heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _tensors(model: Any, architecture: str) -> dict[str, RawTensor]:
    config = model.config
    post_norms = hasattr(model.model.layers[0], "post_feedforward_layernorm")
    tensors: dict[str, RawTensor] = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        numbers = parameter
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            numbers = numbers + 1
        if architecture in ("llama", "granite", "smollm3"):
            if ".q_proj." in name:
                numbers = _interleaved(numbers, config.num_attention_heads)
            if ".k_proj." in name:
                numbers = _interleaved(numbers, config.num_key_value_heads)
        tensors[_gguf_name(name, post_norms=post_norms)] = f32(numbers.numpy())
    if architecture == "llama":
        plain = 5e5 ** (-np.arange(0, 8, 2) / 8)
        tensors["rope_freqs.weight"] = f32((plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32))
    if architecture == "phi3":
        tensors["rope_factors_short.weight"] = f32(np.array(SHORT, np.float32))
        tensors["rope_factors_long.weight"] = f32(np.array(LONG, np.float32))
    return tensors


def _metadata(model: Any, architecture: str, settings: dict[str, Any]) -> dict[str, Any]:
    config = model.config
    head_dim = model.model.layers[0].self_attn.head_dim
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
    } | settings
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": value for key, value in keys.items()},
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


@pytest.mark.parametrize("architecture", CASES)
def test_the_converted_file_is_the_same_model(architecture: str, tmp_path: Path) -> None:
    class_name, settings, metadata = CASES[architecture]
    torch.manual_seed(1)
    model_class: Any = getattr(transformers, class_name)
    model = model_class(model_class.config_class(**(SIZES | settings)))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(_metadata(model, architecture, metadata), _tensors(model, architecture)))
    original, converted = open_checkpoint(tmp_path), open_checkpoint(path)

    for ours, theirs in zip(converted.spec.ropes, original.spec.ropes, strict=True):
        _rotates_alike(ours, theirs)
    assert converted.spec.ropes == original.spec.ropes or architecture in ("llama", "phi3"), "these keep factors instead"
    same_names = replace(
        converted.spec,
        architecture=class_name,
        ropes=original.spec.ropes,
        norm_plus_one=original.spec.norm_plus_one,
        attention_scale=original.spec.attention_scale,
    )
    assert same_names == original.spec
    head_dim = converted.spec.head_dim
    scales = [head_dim**-0.5 if s.attention_scale is None else s.attention_scale for s in (converted.spec, original.spec)]
    assert scales[0] == scales[1]

    assert converted.names() == original.names()
    plus = 1.0 if original.spec.norm_plus_one else 0.0
    for name in original.names():
        expected = load_rows(original.tensor(name), torch.float32)
        expected = expected + plus if name.endswith("norm.weight") else expected
        assert torch.equal(load_rows(converted.tensor(name), torch.float32), expected), name


def _rotates_alike(ours: RopeSpec, theirs: RopeSpec) -> None:
    for max_model_len in (32, 256):
        one, other = (rotary_frequencies(rope, max_model_len=max_model_len) for rope in (ours, theirs))
        np.testing.assert_allclose(one.inverse_frequencies, other.inverse_frequencies, rtol=1e-6)
        assert one.attention_factor == pytest.approx(other.attention_factor, rel=1e-6)


def test_every_architecture_of_the_registry_is_tried() -> None:
    assert set(CASES) == set(GGUF)

"""GGUF metadata to ModelSpec: llama.cpp's keys, its silent assumptions, and what is refused."""

from typing import Any

import pytest
from tests.checkpoint_files import LLAMA_METADATA

from headrace.base.errors import CheckpointError
from headrace.engine.models.gguf_config import GgufModel, gguf_fields
from headrace.engine.models.registry import GGUF, find_gguf, spec_from_gguf
from headrace.specs.model import Activation, ModelSpec, RopeScaling

SHAPES = {"token_embd.weight": (40, 32), "output.weight": (40, 32)}


def _spec(
    architecture: str = "llama",
    changes: dict[str, Any] | None = None,
    shapes: dict[str, tuple[int, ...]] | None = None,
    factors: dict[str, tuple[float, ...]] | None = None,
) -> ModelSpec:
    """`changes` are keys without the architecture, or, with a dot in front, whole keys."""
    metadata = {key.replace("llama.", f"{architecture}."): value for key, value in LLAMA_METADATA.items()}
    metadata["general.architecture"] = architecture
    for key, value in (changes or {}).items():
        metadata[key[1:] if key.startswith(".") else f"{architecture}.{key}"] = value
    fields = gguf_fields("m.gguf", metadata)
    prefix, _ = find_gguf(fields)
    return spec_from_gguf(GgufModel(fields, prefix, shapes or SHAPES, factors or {}))


def test_a_float32_stands_for_the_decimal_it_was_written_as() -> None:
    fields = gguf_fields("m.gguf", {"a": 9.999999747378752e-06, "b": 0.1, "c": 1e300, "d": 500000.0, "e": 7})
    assert fields.values == {"a": 1e-05, "b": 0.1, "c": 1e300, "d": 500000.0, "e": 7}


def test_llama() -> None:
    spec = _spec()
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (2, 4, 2, 8)
    assert (spec.hidden_size, spec.intermediate_size, spec.vocab_size, spec.max_position_embeddings) == (32, 48, 40, 64)
    assert spec.norm_eps == 1e-5
    assert (spec.bos_token_id, spec.eos_token_ids) == (1, (2,))
    assert not spec.tie_word_embeddings
    assert not (spec.qkv_bias or spec.output_bias or spec.mlp_bias)


def test_heads_wider_than_their_share_are_told_by_the_key_length() -> None:
    changes = {"attention.key_length": 16, "attention.value_length": 16, "rope.dimension_count": 16}
    spec = _spec(changes=changes)
    assert spec.head_dim == spec.ropes[0].rotary_dim == 16


def test_biases_and_ties_are_told_by_the_tensors() -> None:
    shapes = {"token_embd.weight": (40, 32), "blk.0.attn_q.bias": (32,), "blk.0.attn_output.bias": (32,),
              "blk.0.ffn_down.bias": (32,)}  # fmt: skip
    spec = _spec(shapes=shapes)
    assert spec.qkv_bias
    assert spec.output_bias
    assert spec.mlp_bias
    assert spec.tie_word_embeddings


def test_llama_3_keeps_its_scaling_as_factors() -> None:
    spec = _spec(factors={"rope_freqs": (1.0, 1.0, 2.5, 8.0)})
    (rope,) = spec.ropes
    assert rope.scaling is RopeScaling.LONGROPE
    assert rope.short_factors == rope.long_factors == (1.0, 1.0, 2.5, 8.0)
    assert rope.attention_factor == 1.0


def test_linear_scaling_under_its_two_names() -> None:
    for changes in (
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {"rope.scaling.factor": 4.0},
        {"rope.scale_linear": 4.0},
    ):
        (rope,) = _spec(changes=changes).ropes
        assert (rope.scaling, rope.factor) == (RopeScaling.LINEAR, 4.0)
    for changes in ({"rope.scaling.factor": 0.0}, {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}):
        (rope,) = _spec(changes=changes).ropes
        assert (rope.scaling, rope.factor) == (RopeScaling.NONE, 1.0)


def test_yarn() -> None:
    changes = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
    (rope,) = _spec("qwen2", changes).ropes
    assert (rope.scaling, rope.factor, rope.original_max_position) == (RopeScaling.YARN, 4.0, 16)
    assert rope.attention_factor is None
    (rope,) = _spec("qwen2", changes | {"rope.scaling.attn_factor": 2.0}).ropes
    assert rope.attention_factor == pytest.approx(2 * (0.1 * 1.3862943611198906 + 1))


def test_qwen_3_has_norms_on_heads() -> None:
    assert _spec("qwen3").qk_norm


def test_gemma_scales_embeddings_and_has_its_norms_shifted_already() -> None:
    spec = _spec("gemma", {"attention.key_length": 8})
    assert spec.embedding_multiplier == 32**0.5
    assert spec.activation is Activation.GELU_TANH
    assert not spec.norm_plus_one


def test_gemma_2_windows_every_other_layer_and_caps() -> None:
    spec = _spec("gemma2", {"block_count": 4, "attention.sliding_window": 16})
    assert [layer.window for layer in spec.layers] == [16, None, 16, None]
    assert (spec.attention_softcap, spec.final_softcap) == (50.0, 30.0), "llama.cpp's own when the file is silent"
    spec = _spec("gemma2", {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0})
    assert (spec.attention_softcap, spec.final_softcap) == (20.0, 10.0)
    assert spec.layers[0].window == 4096
    assert spec.post_norms


def test_the_27b_gemmas_scale_queries_by_their_hidden_size() -> None:
    wide = {"attention.key_length": 16, "attention.value_length": 16, "rope.dimension_count": 16}
    for architecture, num_layers in (("gemma2", 46), ("gemma3", 62)):
        assert _spec(architecture, wide | {"block_count": num_layers}).attention_scale == 8**-0.5
        assert _spec(architecture, wide | {"block_count": num_layers - 1}).attention_scale == 16**-0.5


def test_gemma_3_rotates_its_windowed_layers_apart() -> None:
    changes = {"block_count": 7, "attention.sliding_window": 16, "rope.freq_base": 1e6, "rope.scaling.factor": 8.0,
               "rope.scaling.type": "linear"}  # fmt: skip
    spec = _spec("gemma3", changes)
    assert [layer.window for layer in spec.layers] == [16] * 5 + [None] + [16]
    assert [layer.rope for layer in spec.layers] == [1] * 5 + [0] + [1]
    full, local = spec.ropes
    assert (full.theta, full.scaling, full.factor) == (1e6, RopeScaling.LINEAR, 8.0)
    assert (local.theta, local.scaling, local.max_position) == (1e4, RopeScaling.NONE, 64)
    assert spec.qk_norm
    assert spec.post_norms


def test_a_pattern_of_windows_may_be_a_period_or_a_list() -> None:
    base = {"block_count": 4, "attention.sliding_window": 16}
    spec = _spec("gemma3", base | {"attention.sliding_window_pattern": 3})
    assert [layer.window for layer in spec.layers] == [16, 16, None, 16]
    spec = _spec("gemma3", base | {"attention.sliding_window_pattern": [True, False, False, True]})
    assert [layer.window for layer in spec.layers] == [16, None, None, 16]


def test_phi_3_has_longrope_by_its_tensors_and_rotates_in_part() -> None:
    changes = {"rope.dimension_count": 6, "rope.scaling.original_context_length": 16, "rope.scaling.attn_factor": 1.19,
               "attention.sliding_window": 0}  # fmt: skip
    factors: dict[str, tuple[float, ...]] = {"rope_factors_short": (1.0, 1.1, 1.2), "rope_factors_long": (1.0, 2.0, 4.0)}
    spec = _spec("phi3", changes, factors=factors)
    (rope,) = spec.ropes
    assert (rope.scaling, rope.rotary_dim, rope.original_max_position) == (RopeScaling.LONGROPE, 6, 16)
    assert (rope.short_factors, rope.long_factors) == (factors["rope_factors_short"], factors["rope_factors_long"])
    assert rope.attention_factor == 1.19
    assert all(layer.window is None for layer in spec.layers), "a window of 0 is none"
    assert _spec("phi3", {"attention.sliding_window": 24}).layers[1].window == 24


def test_granite_multiplies() -> None:
    changes = {"attention.scale": 0.015625, "embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 8.0}
    spec = _spec("granite", changes)
    assert (spec.attention_scale, spec.embedding_multiplier) == (0.015625, 12.0)
    assert (spec.residual_multiplier, spec.logits_multiplier) == (0.22, 0.125)
    plain = _spec("granite", {"logit_scale": 0.0})
    assert (plain.embedding_multiplier, plain.residual_multiplier, plain.logits_multiplier) == (1.0, 1.0, 1.0)
    without_positions = _spec("granite", {"rope.scaling.finetuned": False})
    assert [layer.rope for layer in without_positions.layers] == [None, None]


def test_smollm3_leaves_every_fourth_layer_without_positions() -> None:
    assert [layer.rope for layer in _spec("smollm3", {"block_count": 5}).layers] == [0, 0, 0, None, 0]


def test_end_of_turn_tokens_end_an_answer_though_no_key_says_so() -> None:
    tokens = {".tokenizer.ggml.tokens": ["<s>", "<end_of_turn>", "</s>", "<|im_end|>", "<|eot_id|>"],
              ".tokenizer.ggml.token_type": [3, 3, 3, 1, 4]}  # fmt: skip
    assert _spec(changes=tokens).eos_token_ids == (2, 4, 1), "ordinary text of that spelling does not"
    named = {".tokenizer.ggml.eot_token_id": 7, ".tokenizer.ggml.eom_token_id": 8}
    assert _spec(changes=named).eos_token_ids == (2, 7, 8)


ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("mamba", {}, "architecture 'mamba' is not supported; supported are gemma, gemma2, gemma3, granite, llama, phi3, qwen2"),
    ("qwen3moe", {}, "architecture 'qwen3moe' is not supported"),
    ("llama", {"expert_count": 8}, "llama.expert_count is 8; mixtures of experts are not supported"),
    ("llama", {"block_count": "two"}, "llama.block_count is 'two'; a whole number is needed"),
    ("llama", {"block_count": 4_000_000_000}, "llama.block_count is 4000000000; the limit is 10000"),
    ("llama", {"attention.head_count": [4, 2]}, "llama.attention.head_count differs between layers"),
    ("llama", {"attention.head_count_kv": 3}, r"head_count_kv is 3; it must divide head_count \(4\)"),
    ("llama", {"attention.head_count": 5, "attention.head_count_kv": 5}, r"it must divide embedding_length \(32\)"),
    ("llama", {"attention.value_length": 4}, r"value_length is 4; it must equal the keys' length \(8\)"),
    ("llama", {"attention.max_alibi_bias": 8.0}, "max_alibi_bias is 8.0; it is not supported"),
    ("llama", {"attention.layer_norm_rms_epsilon": 0.0}, "epsilon is 0.0; a number above 0 is needed"),
    ("llama", {"rope.dimension_count": 12}, "rope.dimension_count is 12; it must be even and at most the head's 8"),
    ("llama", {"rope.scaling.type": "ntk"}, "rope.scaling.type is 'ntk'; supported are none, linear, yarn and longrope"),
    ("llama", {"rope.scaling.type": "longrope"}, r"its rope scaling is longrope, but tensor rope_factors_short.weight is"),
    ("qwen2", {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.yarn_log_multiplier": 0.1},
     "yarn_log_multiplier is 0.1; only 0.0 is supported"),
    ("gemma3", {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True]}, "has 1 entries for 2 layers"),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "changes", "message"), ERRORS)
def test_what_cannot_be_served_is_refused_by_name(architecture: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        _spec(architecture, changes)
    assert str(caught.value).startswith("m.gguf: ")


def test_a_file_without_a_model_says_so() -> None:
    with pytest.raises(CheckpointError, match="it holds a vocabulary, or a part of a model, but no model"):
        _spec(shapes={"output.weight": (40, 32)})


def test_a_file_that_names_no_architecture_says_so() -> None:
    with pytest.raises(CheckpointError, match=r"general\.architecture is missing"):
        find_gguf(gguf_fields("m.gguf", {}))


def test_every_entry_says_why_it_is_as_it_is() -> None:
    assert all(entry.why for entry in GGUF.values())
    assert {name for name, entry in GGUF.items() if entry.interleaved} == {"llama", "granite", "smollm3"}

"""config.json to ModelSpec: what is refused, and what released configs say. Agreement with the library is tested in cpu/."""

from typing import Any

import pytest
from tests.checkpoint_files import LLAMA_CONFIG

from headrace.base.errors import CheckpointError
from headrace.engine.models.fields import Fields
from headrace.engine.models.registry import spec_from_config
from headrace.specs.model import Activation, ModelSpec, RopeScaling


def _spec(config: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelSpec:
    return spec_from_config(Fields("config.json", config), Fields("generation_config.json", generation or {}))


def test_llama_3_2_as_released() -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 128256,
    }  # fmt: skip
    spec = _spec(config)
    (rope,) = spec.ropes
    assert (rope.scaling, rope.theta, rope.factor, rope.rotary_dim) == (RopeScaling.LLAMA3, 500000.0, 32.0, 64)
    assert (rope.low_freq_factor, rope.high_freq_factor, rope.original_max_position) == (1.0, 4.0, 8192)
    assert spec.eos_token_ids == (128001, 128008, 128009)
    assert spec.tie_word_embeddings


def test_gemma_3_as_released_before_transformers_5() -> None:
    config = {
        "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attn_logit_softcapping": None, "bos_token_id": 2,
        "cache_implementation": "hybrid", "eos_token_id": [1, 106], "final_logit_softcapping": None, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
        "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26,
        "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
        "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
        "torch_dtype": "bfloat16", "vocab_size": 262144,
    }  # fmt: skip
    spec = _spec(config)
    assert [i for i, layer in enumerate(spec.layers) if layer.window is None] == [5, 11, 17, 23]
    assert [spec.ropes[spec.layers[i].rope or 0].theta for i in (4, 5)] == [10000.0, 1000000.0]
    assert spec.attention_scale == 1 / 16
    assert spec.tie_word_embeddings, "the library's default"
    assert spec.activation is Activation.GELU_TANH


def test_gemma_3_4b_leaves_its_sizes_to_the_library() -> None:
    text = {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    }  # fmt: skip
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "text_config": text}
    spec = _spec(config)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size) == (8, 4, 256, 262208)
    full, local = spec.ropes
    assert (full.scaling, full.factor, full.theta) == (RopeScaling.LINEAR, 8.0, 1e6)
    assert (local.scaling, local.factor, local.theta) == (RopeScaling.NONE, 1.0, 1e4)
    assert spec.eos_token_ids == (1, 106)


def test_phi_3_calls_its_scaling_su_or_yarn_and_means_longrope() -> None:
    factors = [1.0 + i for i in range(4)]
    for name in ("su", "yarn", "longrope"):
        config = LLAMA_CONFIG | {
            "architectures": ["Phi3ForCausalLM"],
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 128,
            "rope_scaling": {"type": name, "short_factor": factors, "long_factor": factors[::-1]},
        }
        (rope,) = _spec(config).ropes
        assert rope.scaling is RopeScaling.LONGROPE
        assert (rope.factor, rope.original_max_position, rope.long_factors) == (32.0, 128, (4.0, 3.0, 2.0, 1.0))


def test_qwen_with_windows_switched_off_has_none_whatever_their_size() -> None:
    off = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False, "sliding_window": 32, "max_window_layers": 1}
    assert [layer.window for layer in _spec(LLAMA_CONFIG | off).layers] == [None, None]
    on = off | {"use_sliding_window": True}
    assert [layer.window for layer in _spec(LLAMA_CONFIG | on).layers] == [None, 32]


def test_smollm3_leaves_every_fourth_layer_without_positions() -> None:
    config = LLAMA_CONFIG | {"architectures": ["SmolLM3ForCausalLM"], "num_hidden_layers": 5}
    assert [layer.rope for layer in _spec(config).layers] == [0, 0, 0, None, 0]
    config |= {"no_rope_layers": [0, 1, 1, 1, 0]}
    assert [layer.rope for layer in _spec(config).layers] == [None, 0, 0, 0, None]


def test_a_config_without_architectures_is_known_by_its_type() -> None:
    config = {key: value for key, value in LLAMA_CONFIG.items() if key != "architectures"} | {"model_type": "qwen3"}
    assert _spec(config | {"head_dim": 8}).qk_norm


def test_end_of_text_is_what_any_of_the_files_says() -> None:
    spec = _spec(LLAMA_CONFIG | {"eos_token_id": 2}, {"eos_token_id": [7, 2], "bos_token_id": 5})
    assert spec.eos_token_ids == (7, 2)
    assert spec.bos_token_id == 5


def test_special_tokens_outside_the_vocabulary_are_left_out() -> None:
    spec = _spec(LLAMA_CONFIG | {"eos_token_id": [2, 40, 32000], "bos_token_id": 40})
    assert spec.eos_token_ids == (2,)
    assert spec.bos_token_id is None


ROPE_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"rope_type": "mrope", "mrope_section": [1]}, "'mrope_section' is not supported"),
    ({"rope_type": "proportional"}, "rope type 'proportional' is not supported; supported are default, dynamic, linear"),
    ({"rope_type": "linear"}, "factor is missing"),
    ({"rope_type": "linear", "factor": 0.5}, "factor is 0.5; it stretches positions and must be at least 1"),
    ({"rope_type": "linear", "factor": "2"}, "factor is '2'; a finite number is needed"),
    ({"rope_type": "linear", "facter": 2}, "'facter' is not supported; did you mean 'factor'"),
    ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor is missing"),
    (
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0},
        r"low_freq_factor is 4.0; it must lie between 0 and high_freq_factor \(1.0\)",
    ),
    ({"rope_type": "yarn", "factor": 4.0, "beta_fast": 1.0}, r"beta_fast is 1.0; it must exceed beta_slow \(1.0\)"),
    ({"rope_type": "longrope", "long_factor": [1.0] * 4}, "short_factor is missing"),
    (
        {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 3},
        "long_factor has 3 numbers; 8 rotating dimensions need 4",
    ),
    (
        {"rope_type": "longrope", "short_factor": [1.0, 1.0, 0.0, 1.0], "long_factor": [1.0] * 4},
        "short_factor must hold numbers above 0 only",
    ),
    ({"rope_type": "default", "partial_rotary_factor": 0.1}, "0.1 of a head's 8 dimensions rotate: 0"),
    ({"full_attention": {"rope_type": "default"}}, "'full_attention' is not supported"),
]


@pytest.mark.parametrize(("section", "message"), ROPE_ERRORS)
@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_rotary_parameters_are_checked(section: dict[str, Any], message: str, key: str) -> None:
    with pytest.raises(CheckpointError, match=f"config.json: {key}: .*{message}"):
        _spec(LLAMA_CONFIG | {key: section})


CONFIG_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["MixtralForCausalLM"]}, "'MixtralForCausalLM' is not supported.*supported are Gemma2ForCausalLM, "),
    ({"architectures": ["Qwen3MoeForCausalLM"]}, "'Qwen3MoeForCausalLM' is not supported; supported are Gemma2"),
    ({"architectures": ["MambaForCausalLM"]}, "'MambaForCausalLM' is not supported"),
    ({"architectures": [], "model_type": "mamba"}, "'mamba' is not supported"),
    ({"num_local_experts": 8}, r"mixtures of experts are not supported \(num_local_experts: 8\)"),
    ({"hidden_size": None}, "hidden_size is missing"),
    ({"hidden_size": "32"}, "hidden_size is '32'; a whole number is needed"),
    ({"hidden_size": 32.5}, "hidden_size is 32.5; a whole number is needed"),
    ({"hidden_size": 0}, "hidden_size is 0; a whole number of at least 1 is needed"),
    ({"hidden_size": 30}, r"num_attention_heads is 4; it must divide hidden_size \(30\)"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; the limit is 10000"),
    ({"num_key_value_heads": 3}, r"num_key_value_heads is 3; it must divide num_attention_heads \(4\)"),
    ({"hidden_act": "relu"}, "hidden_act is 'relu'; supported are gelu, gelu_new, gelu_pytorch_tanh, silu, swish"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; a finite number is needed"),
    ({"rms_norm_eps": -1e-5}, "rms_norm_eps is -1e-05; a number above 0 is needed"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; true or false is needed"),
    ({"rope_scaling": 4}, "rope_scaling must be an object, not a int"),
    ({"eos_token_id": ["</s>"]}, "a token id or a list of them is needed"),
    (
        {"architectures": ["MistralForCausalLM"], "layer_types": ["full_attention", "linear_attention"]},
        "layer_types has 'linear_attention'; supported are full_attention and sliding_attention",
    ),
    ({"architectures": ["MistralForCausalLM"], "layer_types": []}, "layer_types has 0 entries for 2 layers"),
    ({"architectures": ["GemmaForCausalLM"], "use_bidirectional_attention": True}, "only causal models are supported"),
    ({"architectures": ["Gemma3ForCausalLM"], "attn_logit_softcapping": 50.0}, "Gemma 3 caps no attention scores"),
    (
        {"architectures": ["Gemma3ForCausalLM"], "rope_parameters": {"rope_type": "default"}},
        "'rope_type' is no kind of layer",
    ),
    ({"architectures": ["Gemma3ForConditionalGeneration"]}, "text_config is missing"),
    ({"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1]}, "no_rope_layers has 1 entries for 2 layers"),
]


@pytest.mark.parametrize(("changes", "message"), CONFIG_ERRORS)
def test_what_cannot_be_served_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        _spec(LLAMA_CONFIG | changes)
    assert str(caught.value).startswith("config.json: ")

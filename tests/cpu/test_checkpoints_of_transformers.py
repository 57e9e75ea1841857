"""Checkpoints as `transformers` saves them, for every architecture: our reading against the library's own model.

The facts are asked of the instantiated model (its modules, buffers and parameters), not of its config, so that both the
meaning of a config and the library's defaults are checked.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from headrace.engine.layers.rotary import rotary_frequencies
from headrace.engine.models.registry import HUGGING_FACE
from headrace.engine.models.weights import Checkpoint, open_checkpoint
from headrace.engine.ops.dequantize import dequantize
from headrace.specs.model import Activation, RopeScaling

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 128,
    "short_factor": [1.0 + i / 10 for i in range(6)],
    "long_factor": [2.0 + i for i in range(6)],
    "partial_rotary_factor": 0.75,
}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    # A case: the architecture's class name, and what its config says beside the sizes
    "llama": ("LlamaForCausalLM", {}),
    "llama with biases and wide heads": (
        "LlamaForCausalLM",
        {"attention_bias": True, "mlp_bias": True, "head_dim": 24, "tie_word_embeddings": True},
    ),
    "llama 3": ("LlamaForCausalLM", {"rope_parameters": LLAMA3_ROPE}),
    "llama linear": ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "llama dynamic": ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    "llama yarn": ("LlamaForCausalLM", {"rope_parameters": YARN_ROPE}),
    "llama yarn with all its parameters": (
        "LlamaForCausalLM",
        {"rope_parameters": YARN_ROPE | {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.25, "truncate": False}},
    ),
    "llama yarn after DeepSeek": (
        "LlamaForCausalLM",
        {"rope_parameters": YARN_ROPE | {"mscale": 1.0, "mscale_all_dim": 0.5}},
    ),
    "mistral": ("MistralForCausalLM", {"sliding_window": 32}),
    "mistral without a window": ("MistralForCausalLM", {"sliding_window": None, "head_dim": 32}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2 with windows": ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}),
    "qwen3 as the library defaults": ("Qwen3ForCausalLM", {"attention_bias": True, "tie_word_embeddings": True}),
    "gemma": ("GemmaForCausalLM", {"head_dim": 32}),
    "gemma2": ("Gemma2ForCausalLM", {"head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 48}),
    "gemma2 as the library defaults": ("Gemma2ForCausalLM", {}),
    "gemma3": (
        "Gemma3ForCausalLM",
        {"head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 48, "num_hidden_layers": 7},
    ),
    "gemma3 stretched": (
        "Gemma3ForCausalLM",
        {
            "head_dim": 32,
            "num_hidden_layers": 7,
            "final_logit_softcapping": 20.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": ("Phi3ForCausalLM", {"sliding_window": 40}),
    "phi3 longrope": ("Phi3ForCausalLM", {"original_max_position_embeddings": 128, "rope_parameters": LONG_ROPE}),
    "granite": (
        "GraniteForCausalLM",
        {
            "attention_multiplier": 0.2,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
            "tie_word_embeddings": True,
        },
    ),
    "smollm3": ("SmolLM3ForCausalLM", {"tie_word_embeddings": True}),
    "smollm3 with windows": (
        "SmolLM3ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 16, "no_rope_layer_interval": 2, "tie_word_embeddings": False},
    ),
}


def _model(case: str) -> Any:
    architecture, settings = CONFIGS[case]
    torch.manual_seed(5)
    model_class: Any = getattr(transformers, architecture)
    model = model_class(model_class.config_class(**(SIZES | settings)))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)  # norms and biases as well: their default would hide a swap
    return model.eval()


@pytest.fixture(scope="module", params=CONFIGS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Checkpoint, Path]:
    model = _model(request.param)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return model, open_checkpoint(folder), folder


def _numbers(checkpoint: Checkpoint, name: str) -> Any:
    tensor = checkpoint.tensor(name)
    assert tensor.interleaved_heads == 0, "only llama.cpp interleaves"
    return torch.from_numpy(dequantize(tensor.storage, tensor.data, tensor.shape))


def _parameters(model: Any, checkpoint: Checkpoint) -> dict[str, Any]:
    """The model's own tensors under canonical names, fused ones cut by the library's own sizes."""
    parameters = dict(model.state_dict())
    spec = checkpoint.spec
    for name in list(parameters):
        if name.endswith("qkv_proj.weight"):
            rows = [spec.num_heads * spec.head_dim] + [spec.num_kv_heads * spec.head_dim] * 2
            for part, rows_of in zip("qkv", parameters.pop(name).split(rows), strict=True):
                parameters[name.replace("qkv_proj", f"{part}_proj")] = rows_of
        elif name.endswith("gate_up_proj.weight"):
            gate, up = parameters.pop(name).chunk(2)
            parameters[name.replace("gate_up", "gate")], parameters[name.replace("gate_up", "up")] = gate, up
    return parameters


def test_every_tensor_is_found_under_its_canonical_name(case: tuple[Any, Checkpoint, Path]) -> None:
    model, checkpoint, _ = case
    parameters = _parameters(model, checkpoint)
    if checkpoint.spec.tie_word_embeddings:
        parameters.pop("lm_head.weight", None)
    assert set(checkpoint.names()) == set(parameters)
    for name, parameter in parameters.items():
        assert torch.equal(_numbers(checkpoint, name), parameter), name
    assert checkpoint.weight_format == "float32"


def test_sizes_and_switches_are_those_of_the_model(case: tuple[Any, Checkpoint, Path]) -> None:
    model, checkpoint, _ = case
    spec, config = checkpoint.spec, model.config
    attention = model.model.layers[0].self_attn
    assert spec.architecture == type(model).__name__
    assert spec.max_position_embeddings == config.max_position_embeddings
    assert spec.head_dim == attention.head_dim
    assert spec.qkv_bias == (getattr(attention, "q_proj", attention.o_proj).bias is not None)
    assert spec.output_bias == (attention.o_proj.bias is not None)
    assert spec.mlp_bias == (model.model.layers[0].mlp.down_proj.bias is not None)
    assert spec.qk_norm == hasattr(attention, "q_norm")
    assert spec.post_norms == hasattr(model.model.layers[0], "post_feedforward_layernorm")
    assert spec.tie_word_embeddings == (model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr())
    norm = model.model.norm
    assert spec.norm_eps == (norm.eps if hasattr(norm, "eps") else norm.variance_epsilon)
    assert (spec.bos_token_id, spec.eos_token_ids) == (1, (2,))


def test_activation_and_multipliers_are_those_of_the_model(case: tuple[Any, Checkpoint, Path]) -> None:
    model, checkpoint, _ = case
    spec, config = checkpoint.spec, model.config
    mlp = model.model.layers[0].mlp
    act = mlp.act_fn if hasattr(mlp, "act_fn") else mlp.activation_fn
    x = torch.linspace(-3, 3, 50)
    ours: Any = {
        Activation.SILU: torch.nn.functional.silu,
        Activation.GELU: torch.nn.functional.gelu,
        Activation.GELU_TANH: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    }[spec.activation]
    torch.testing.assert_close(ours(x), act(x))
    ids = torch.tensor([[3]])
    embedded = model.model.embed_tokens(ids) * getattr(model.model, "embedding_multiplier", 1.0)
    table = _numbers(checkpoint, "model.embed_tokens.weight")
    torch.testing.assert_close(table[ids] * spec.embedding_multiplier, embedded)
    assert spec.residual_multiplier == getattr(config, "residual_multiplier", 1.0)
    assert spec.logits_multiplier == 1 / getattr(config, "logits_scaling", 1.0)
    assert spec.final_softcap == getattr(config, "final_logit_softcapping", None)
    norm, plus = model.model.norm, 1.0 if spec.norm_plus_one else 0.0
    y = torch.randn(1, 1, spec.hidden_size)
    ours_normed = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + spec.norm_eps) * (norm.weight + plus)
    torch.testing.assert_close(ours_normed, norm(y))


def test_every_layer_sees_and_scales_as_in_the_model(case: tuple[Any, Checkpoint, Path]) -> None:
    model, checkpoint, _ = case
    spec = checkpoint.spec
    masks_all_layers_alike = model.config.model_type in ("mistral", "phi3")
    for layer, block in zip(spec.layers, model.model.layers, strict=True):
        attention = block.self_attn
        window = model.config.sliding_window if masks_all_layers_alike else getattr(attention, "sliding_window", None)
        assert layer.window == window
        scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
        assert scale == pytest.approx(attention.scaling, rel=1e-15)
        assert spec.attention_softcap == getattr(attention, "attn_logit_softcapping", None)
        assert (layer.rope is not None) == bool(getattr(attention, "use_rope", True))


def test_rotary_frequencies_are_those_of_the_model(case: tuple[Any, Checkpoint, Path]) -> None:
    model, checkpoint, _ = case
    rotary = model.model.rotary_emb
    for layer, kind in zip(checkpoint.spec.layers, _layer_kinds(model), strict=True):
        if layer.rope is None:
            continue
        prefix = f"{kind}_" if hasattr(rotary, f"{kind}_inv_freq") else ""
        rope = checkpoint.spec.ropes[layer.rope]
        # The library starts with what holds up to the trained length, for longrope; for the rest the length plays no part.
        length = rope.original_max_position if rope.scaling is RopeScaling.LONGROPE else rope.max_position
        ours = rotary_frequencies(rope, max_model_len=length)
        theirs = getattr(rotary, f"{prefix}inv_freq").numpy()
        np.testing.assert_allclose(ours.inverse_frequencies, theirs, rtol=2e-6)
        assert ours.attention_factor == pytest.approx(getattr(rotary, f"{prefix}attention_scaling"), rel=1e-12)


def _layer_kinds(model: Any) -> list[str]:
    return list(getattr(model.config, "layer_types", None) or ["full_attention"] * model.config.num_hidden_layers)


def test_the_layout_before_transformers_5_says_the_same(case: tuple[Any, Checkpoint, Path], tmp_path: Path) -> None:
    _, checkpoint, folder = case
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(_older_layout(config)))
    (tmp_path / "generation_config.json").write_text((folder / "generation_config.json").read_text())
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    with_older = open_checkpoint(tmp_path)
    assert with_older.spec == checkpoint.spec
    assert with_older.digest == checkpoint.digest, "an identity of content, not of spelling"


def _older_layout(config: dict[str, Any]) -> dict[str, Any]:
    """`rope_theta` and `rope_scaling` outside, `torch_dtype`, rules instead of layer types."""
    config = dict(config)
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    rope = config.pop("rope_parameters")
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        config["sliding_window_pattern"] = config.pop("_sliding_window_pattern")
        rope = rope["full_attention"]
    config["rope_theta"] = rope.pop("rope_theta")
    if (share := rope.pop("partial_rotary_factor", None)) is not None:
        config["partial_rotary_factor"] = share
    kind = rope.pop("rope_type")
    if kind != "default":
        config["rope_scaling"] = {"type": kind, **rope}
    return config


def test_every_architecture_of_the_registry_is_tried() -> None:
    tried = {architecture for architecture, _ in CONFIGS.values()}
    assert HUGGING_FACE.keys() - tried == {"Gemma3ForConditionalGeneration"}, "that one has a test of its own"


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_half_of_gemma_3_with_vision_is_gemma_3(tmp_path: Path, prefix: str) -> None:
    model = _model("gemma3")
    model.save_pretrained(tmp_path / "text")
    text = open_checkpoint(tmp_path / "text")
    config = json.loads((tmp_path / "text" / "config.json").read_text())
    config.pop("architectures")
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": config, "eos_token_id": [2, 5]}
    tensors = {
        name.replace("model.", prefix, 1): value for name, value in model.state_dict().items() if "lm_head" not in name
    }
    tensors |= {"vision_tower.x": torch.zeros(1), "multi_modal_projector.y": torch.zeros(1)}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    save_file(tensors, tmp_path / "model.safetensors")
    with_eyes = open_checkpoint(tmp_path)
    assert replace(with_eyes.spec, architecture="", eos_token_ids=()) == replace(
        text.spec, architecture="", eos_token_ids=()
    )
    assert with_eyes.spec.eos_token_ids == (2, 5)
    assert with_eyes.names() == text.names()
    for name in text.names():
        assert bytes(with_eyes.tensor(name).data) == bytes(text.tensor(name).data)


def test_bfloat16_shards_are_read(tmp_path: Path) -> None:
    model = _model("qwen3").to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.weight_format == "bfloat16"
    for name, parameter in model.state_dict().items():
        assert torch.equal(_numbers(checkpoint, name), parameter.float()), name

"""From GGUF metadata to a ModelSpec, one function per architecture.

Knows llama.cpp's keys, and what llama.cpp assumes where a file is silent or the format has no key (Gemma's query scale,
say). What a file tells only by the tensors it holds (biases, tied embeddings) is told by them. Does not know where they
lie.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.base.errors import CheckpointError
from headrace.engine.models.fields import MAX_NUM_LAYERS, Fields
from headrace.engine.models.rope_config import rope_from_gguf
from headrace.specs.model import Activation, LayerSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class GgufModel:
    """What a GGUF file says of a model."""

    metadata: Fields
    prefix: str
    """The architecture's name, which begins its keys."""
    shapes: Mapping[str, tuple[int, ...]]
    """Every tensor's shape, by GGUF's name."""
    rope_factors: dict[str, tuple[float, ...]]
    """The rotary factors that the file keeps as tensors: `rope_freqs`, `rope_factors_short`, `rope_factors_long`."""

    def key(self, name: str) -> str:
        return f"{self.prefix}.{name}"


def gguf_fields(source: str, metadata: Mapping[str, object]) -> Fields:
    """Metadata as fields. A float32 stands for its shortest decimal: 1e-05 was written, not 9.999999747378752e-06."""
    return Fields(source, {k: _shortest(v) if type(v) is float else v for k, v in metadata.items()})


def _shortest(value: float) -> float:
    try:
        single = struct.pack("<f", value)
    except OverflowError:
        return value
    if struct.unpack("<f", single)[0] != value:
        return value  # a float64, or NaN
    for digits in range(6, 9):
        decimal = float(f"{value:.{digits}g}")
        if struct.pack("<f", decimal) == single:
            return decimal
    return value


def llama(model: GgufModel) -> ModelSpec:
    """Llama 2 and 3, Mistral, SmolLM 1 and 2: llama.cpp calls them all `llama`."""
    if model.metadata.integer_or(model.key("expert_count"), 0):
        raise model.metadata.fail(model.key("expert_count"), "mixtures of experts are not supported")
    spec = _decoder(model)
    scale = model.metadata.positive_or(model.key("attention.scale"), None)
    return replace(spec, attention_scale=scale)


def qwen2(model: GgufModel) -> ModelSpec:
    """Biased queries, keys and values."""
    return _decoder(model)


def qwen3(model: GgufModel) -> ModelSpec:
    """Norms on query and key heads."""
    return replace(_decoder(model), qk_norm=True)


def gemma(model: GgufModel) -> ModelSpec:
    """Gemma's norms have their 1 added already by the converter."""
    spec = _decoder(model)
    return replace(spec, activation=Activation.GELU_TANH, embedding_multiplier=spec.hidden_size**0.5)


def gemma2(model: GgufModel) -> ModelSpec:
    """Norms after attention and MLP, soft caps, every other layer under a window."""
    fields = model.metadata
    spec = replace(
        gemma(model),
        post_norms=True,
        attention_softcap=fields.positive_or(model.key("attn_logit_softcapping"), 50.0),
        final_softcap=fields.positive_or(model.key("final_logit_softcapping"), 30.0),
    )
    # The 27B model alone scales queries by its hidden size; the format has no key for it.
    spec = replace(spec, attention_scale=_gemma_scale(spec, is_27b=spec.num_layers == 46))
    return _with_period(model, spec, default_window=4096, default_period=2)


def gemma3(model: GgufModel) -> ModelSpec:
    """Norms on heads; windowed layers rotate by a base of their own, unscaled."""
    fields = model.metadata
    spec = replace(
        gemma(model),
        qk_norm=True,
        post_norms=True,
        final_softcap=fields.positive_or(model.key("final_logit_softcapping"), None),
    )
    spec = replace(spec, attention_scale=_gemma_scale(spec, is_27b=spec.num_layers == 62))
    spec = _with_period(model, spec, default_window=None, default_period=6)
    local = replace(
        rope_from_gguf(
            Fields(fields.source, {}),
            model.prefix,
            head_dim=spec.head_dim,
            max_position=spec.max_position_embeddings,
            factors={},
        ),
        theta=fields.positive_or(model.key("rope.freq_base_swa"), 10_000.0),
    )
    layers = tuple(replace(layer, rope=0 if layer.window is None else 1) for layer in spec.layers)
    return replace(spec, ropes=(*spec.ropes, local), layers=layers)


def phi3(model: GgufModel) -> ModelSpec:
    """Fused projections in the file, longrope, possibly heads that rotate in part; a window of 0 is none."""
    spec = _decoder(model)
    window = model.metadata.integer_or(model.key("attention.sliding_window"), 0)
    if window < 0:
        raise model.metadata.fail(model.key("attention.sliding_window"), "it must not be negative")
    return replace(spec, layers=(LayerSpec(window=window or None),) * spec.num_layers)


def granite(model: GgufModel) -> ModelSpec:
    """Four constant multipliers, of which 0 or nothing means 1; without "finetuned" rotation it has no positions."""
    fields, spec = model.metadata, llama(model)
    rotates = fields.flag_or(model.key("rope.scaling.finetuned"), True)
    return replace(
        spec,
        embedding_multiplier=fields.number_or(model.key("embedding_scale"), 0.0) or 1.0,
        residual_multiplier=fields.number_or(model.key("residual_scale"), 0.0) or 1.0,
        logits_multiplier=1.0 / (fields.number_or(model.key("logit_scale"), 0.0) or 1.0),
        layers=(LayerSpec(rope=0 if rotates else None),) * spec.num_layers,
    )


def smollm3(model: GgufModel) -> ModelSpec:
    """Every fourth layer has no position embedding; the format has no key for it."""
    spec = llama(model)
    layers = tuple(LayerSpec(rope=0 if (i + 1) % 4 else None) for i in range(spec.num_layers))
    return replace(spec, layers=layers)


def _decoder(model: GgufModel) -> ModelSpec:
    """What all have in common."""
    fields, key = model.metadata, model.key
    num_layers = fields.count(key("block_count"), limit=MAX_NUM_LAYERS)
    num_heads = _same_in_all_layers(model, "attention.head_count")
    num_kv_heads = _same_in_all_layers(model, "attention.head_count_kv", default=num_heads)
    if num_heads % num_kv_heads:
        raise fields.fail(key("attention.head_count_kv"), f"it must divide head_count ({num_heads})")
    hidden_size = fields.count(key("embedding_length"))
    head_dim = fields.count_or(key("attention.key_length"), None) or _divided_head_dim(model, hidden_size, num_heads)
    if fields.count_or(key("attention.value_length"), head_dim) != head_dim:
        raise fields.fail(key("attention.value_length"), f"it must equal the keys' length ({head_dim})")
    for unsupported in ("attention.max_alibi_bias", "attention.clamp_kqv", "rope.dimension_sections"):
        if fields.values.get(key(unsupported)):
            raise fields.fail(key(unsupported), "it is not supported")
    max_position = fields.count(key("context_length"))
    return ModelSpec(
        architecture=model.prefix,
        vocab_size=_vocab_size(model),
        hidden_size=hidden_size,
        intermediate_size=_same_in_all_layers(model, "feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        layers=(LayerSpec(),) * num_layers,
        ropes=(
            rope_from_gguf(fields, model.prefix, head_dim=head_dim, max_position=max_position, factors=model.rope_factors),
        ),
        max_position_embeddings=max_position,
        norm_eps=_norm_eps(model),
        qkv_bias="blk.0.attn_q.bias" in model.shapes or "blk.0.attn_qkv.bias" in model.shapes,
        output_bias="blk.0.attn_output.bias" in model.shapes,
        mlp_bias="blk.0.ffn_down.bias" in model.shapes,
        tie_word_embeddings="output.weight" not in model.shapes,
    )


def _same_in_all_layers(model: GgufModel, name: str, *, default: int | None = None) -> int:
    """A count that the format lets differ from layer to layer."""
    key = model.key(name)
    value = model.metadata.values.get(key, default)
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise CheckpointError(f"{model.metadata.source}: {key} differs between layers, which is not supported")
        value = value[0]
    return Fields(model.metadata.source, {key: value}).count(key)


def _divided_head_dim(model: GgufModel, hidden_size: int, num_heads: int) -> int:
    if hidden_size % num_heads:
        key = model.key("attention.head_count")
        raise CheckpointError(
            f"{model.metadata.source}: {key} is {num_heads}; it must divide embedding_length ({hidden_size}) where "
            "attention.key_length is not given"
        )
    return hidden_size // num_heads


def _vocab_size(model: GgufModel) -> int:
    shape = model.shapes.get("token_embd.weight")
    if shape is None or len(shape) != 2:
        raise CheckpointError(
            f"{model.metadata.source}: it has no token_embd.weight of two dimensions: it holds a vocabulary, or a part of a "
            "model, but no model"
        )
    return shape[0]


def _norm_eps(model: GgufModel) -> float:
    eps = model.metadata.number(model.key("attention.layer_norm_rms_epsilon"))
    if eps <= 0:
        raise model.metadata.fail(model.key("attention.layer_norm_rms_epsilon"), "a number above 0 is needed")
    return eps


def _gemma_scale(spec: ModelSpec, *, is_27b: bool) -> float:
    return float((spec.hidden_size // spec.num_heads if is_27b else spec.head_dim) ** -0.5)


def _with_period(model: GgufModel, spec: ModelSpec, *, default_window: int | None, default_period: int) -> ModelSpec:
    """Windows on all layers but every `period`-th; a window of 0 is none."""
    fields, key = model.metadata, model.key("attention.sliding_window_pattern")
    window = fields.integer_or(model.key("attention.sliding_window"), default_window) or None
    if window is not None and window < 0:
        raise fields.fail(model.key("attention.sliding_window"), "it must not be negative")
    flags = fields.values.get(key)
    if isinstance(flags, list):
        if len(flags) != spec.num_layers:
            raise CheckpointError(f"{fields.source}: {key} has {len(flags)} entries for {spec.num_layers} layers")
        windowed = [bool(flag) for flag in flags]
    else:
        period = fields.count_or(key, default_period)
        windowed = [(i + 1) % period != 0 for i in range(spec.num_layers)]
    layers = tuple(LayerSpec(window=window if flag else None) for flag in windowed)
    return replace(spec, layers=layers)

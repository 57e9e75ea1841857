"""From Hugging Face's config.json to a ModelSpec, one function per architecture.

Knows what each architecture is, and what `transformers` assumes where a config is silent (its defaults are part of a
checkpoint's meaning). Reads the layouts of transformers 5 and of those before it. Does not know files or tensors.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.base.errors import CheckpointError
from headrace.engine.models.fields import MAX_NUM_LAYERS, Fields
from headrace.engine.models.rope_config import rope_from_section, rope_section
from headrace.specs.model import Activation, LayerSpec, ModelSpec, RopeSpec

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
}

_FULL, _SLIDING = "full_attention", "sliding_attention"


def llama(config: Fields) -> ModelSpec:
    """Llama 2 and 3, SmolLM 1 and 2, and the many that took its shape."""
    return _with_optional_biases(config, _decoder(config, max_position=2048))


def mistral(config: Fields) -> ModelSpec:
    """Llama with a sliding window over all layers, or none."""
    window = _window(config, 4096)
    types = _layer_types(config, [_FULL if window is None else _SLIDING] * _num_layers(config))
    return _with_windows(_decoder(config, max_position=131_072), types, window)


def qwen2(config: Fields) -> ModelSpec:
    """Biased queries, keys and values; windows, where used at all, only above `max_window_layers`."""
    spec = replace(_decoder(config, max_position=32_768), qkv_bias=True)
    return _with_qwen_windows(config, spec)


def qwen3(config: Fields) -> ModelSpec:
    """Norms on query and key heads."""
    spec = replace(_decoder(config, max_position=32_768, default_head_dim=128), qk_norm=True)
    return _with_qwen_windows(config, _with_attention_bias(config, spec))


def gemma(config: Fields) -> ModelSpec:
    """Gated GELU, scaled embeddings, norms that store their weight less one."""
    name = config.text_or("hidden_act", "gelu_pytorch_tanh")
    # The first release says "gelu" and means the tanh approximation.
    activation = Activation.GELU_TANH if name == "gelu" else _activation(config, "hidden_act", "gelu_pytorch_tanh")
    return _gemma(config, activation)


def gemma2(config: Fields) -> ModelSpec:
    """Gemma with norms after attention and MLP, soft caps, and every other layer under a window."""
    num_layers = _num_layers(config)
    types = _layer_types(config, [_FULL if i % 2 else _SLIDING for i in range(num_layers)])
    spec = replace(
        _gemma(config, _activation(config, "hidden_activation", "gelu_pytorch_tanh")),
        post_norms=True,
        attention_scale=_query_scale(config),
        attention_softcap=_softcap(config, "attn_logit_softcapping", 50.0),
        final_softcap=_softcap(config, "final_logit_softcapping", 30.0),
    )
    return _with_windows(spec, types, _window(config, 4096))


def gemma3(config: Fields) -> ModelSpec:
    """Gemma 2 with norms on heads instead of soft caps; its windowed layers have a rotary base of their own."""
    config = Fields(config.source, {**_GEMMA3_SIZES, **config.values})
    if config.has("attn_logit_softcapping"):
        raise config.fail("attn_logit_softcapping", "Gemma 3 caps no attention scores")
    num_layers = _num_layers(config)
    pattern = config.count_or("sliding_window_pattern", config.count_or("_sliding_window_pattern", 6))
    types = _layer_types(config, [_SLIDING if (i + 1) % pattern else _FULL for i in range(num_layers)])
    activation = _activation(config, "hidden_activation", "gelu_pytorch_tanh")
    spec = replace(
        _gemma(config, activation, max_position=131_072, ropes=_gemma3_ropes),
        qk_norm=True,
        post_norms=True,
        attention_scale=_query_scale(config),
        final_softcap=_softcap(config, "final_logit_softcapping", None),
    )
    spec = _with_windows(spec, types, _window(config, 4096))
    layers = tuple(replace(layer, rope=1 if kind == _SLIDING else 0) for layer, kind in zip(spec.layers, types, strict=True))
    return replace(spec, layers=layers)


def gemma3_with_vision(config: Fields) -> ModelSpec:
    """The language half of Gemma 3 with eyes: text in, text out."""
    section = config.section_or_none("text_config")
    if section is None:
        raise CheckpointError(f"{config.source}: text_config is missing")
    return gemma3(section)


def phi3(config: Fields) -> ModelSpec:
    """Llama with fused projections in the file, longrope, and possibly heads that rotate in part."""
    window = config.count_or("sliding_window", None)
    config = Fields(config.source, {"original_max_position_embeddings": 4096, **config.values})
    spec = _decoder(config, max_position=4096, default_eps=1e-5, ropes=_one_rope(yarn_means_longrope=True))
    types = [_FULL if window is None else _SLIDING] * spec.num_layers
    return _with_windows(spec, types, window)


def granite(config: Fields) -> ModelSpec:
    """Llama with four constant multipliers."""
    spec = _with_optional_biases(config, _decoder(config, max_position=2048))
    return replace(
        spec,
        attention_scale=config.positive_or("attention_multiplier", 1.0),
        embedding_multiplier=config.positive_or("embedding_multiplier", 1.0),
        residual_multiplier=config.positive_or("residual_multiplier", 1.0),
        logits_multiplier=1.0 / config.positive_or("logits_scaling", 1.0),
    )


def smollm3(config: Fields) -> ModelSpec:
    """Llama whose every fourth layer has no position embedding."""
    spec = _decoder(config, max_position=32_768, default_tie=True, ropes=_one_rope(default_theta=2_000_000.0))
    rotates = _rotating_layers(config, spec.num_layers)
    window = config.count_or("sliding_window", None) if config.flag_or("use_sliding_window", False) else None
    types = _layer_types(config, [_SLIDING if window and not rotate else _FULL for rotate in rotates])
    spec = _with_windows(_with_optional_biases(config, spec), types, window)
    layers = zip(spec.layers, rotates, strict=True)
    return replace(spec, layers=tuple(replace(layer, rope=0 if rotate else None) for layer, rotate in layers))


# What the architectures share

_GEMMA3_SIZES: dict[str, object] = {
    # Released configs leave these to the library: those of the 4B model.
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}

RopeBuilder = Callable[[Fields, int, int], tuple[RopeSpec, ...]]
"""From a config, a head's size and the context length to the model's rotary embeddings."""


def _one_rope(*, default_theta: float = 10_000.0, yarn_means_longrope: bool = False) -> RopeBuilder:
    def build(config: Fields, head_dim: int, max_position: int) -> tuple[RopeSpec, ...]:
        rope = rope_from_section(
            rope_section(config),
            config,
            theta=config.positive_or("rope_theta", default_theta),
            head_dim=head_dim,
            max_position=max_position,
            yarn_means_longrope=yarn_means_longrope,
        )
        return (rope,)

    return build


def _gemma3_ropes(config: Fields, head_dim: int, max_position: int) -> tuple[RopeSpec, ...]:
    """Of full layers, and of windowed ones. Before transformers 5, `rope_scaling` concerned the full layers alone."""
    parameters = config.section_or_none("rope_parameters") or Fields(f"{config.source}: rope_parameters", {})
    for key in parameters.values:
        if key not in (_FULL, _SLIDING):
            raise CheckpointError(f"{parameters.source}: {key!r} is no kind of layer; they are {_FULL} and {_SLIDING}")
    nothing = Fields(parameters.source, {})
    full = parameters.section_or_none(_FULL) or config.section_or_none("rope_scaling") or nothing
    sliding = parameters.section_or_none(_SLIDING) or nothing
    full_theta, local_theta = config.positive_or("rope_theta", 1e6), config.positive_or("rope_local_base_freq", 1e4)
    return (
        rope_from_section(full, config, theta=full_theta, head_dim=head_dim, max_position=max_position),
        rope_from_section(sliding, config, theta=local_theta, head_dim=head_dim, max_position=max_position),
    )


def _decoder(
    config: Fields,
    *,
    max_position: int,
    default_eps: float = 1e-6,
    default_tie: bool = False,
    default_head_dim: int | None = None,
    ropes: RopeBuilder = _one_rope(),  # noqa: B008  (a pure function)
) -> ModelSpec:
    """The plain decoder: what all have in common. The keyword arguments are the library's defaults."""
    num_layers, num_heads = _num_layers(config), config.count("num_attention_heads")
    num_kv_heads = config.count_or("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise config.fail("num_key_value_heads", f"it must divide num_attention_heads ({num_heads})")
    head_dim = config.count_or("head_dim", default_head_dim) or _divided_head_dim(config, num_heads)
    max_position = config.count_or("max_position_embeddings", max_position)
    return ModelSpec(
        architecture="",  # the registry knows the name
        vocab_size=config.count("vocab_size"),
        hidden_size=config.count("hidden_size"),
        intermediate_size=config.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        layers=(LayerSpec(),) * num_layers,
        ropes=ropes(config, head_dim, max_position),
        max_position_embeddings=max_position,
        norm_eps=config.positive_or("rms_norm_eps", default_eps),
        activation=_activation(config, "hidden_act", "silu"),
        tie_word_embeddings=config.flag_or("tie_word_embeddings", default_tie),
    )


def _gemma(
    config: Fields, activation: Activation, *, max_position: int = 8192, ropes: RopeBuilder | None = None
) -> ModelSpec:
    if config.flag_or("use_bidirectional_attention", False):
        raise config.fail("use_bidirectional_attention", "only causal models are supported")
    spec = _decoder(config, max_position=max_position, default_tie=True, default_head_dim=256, ropes=ropes or _one_rope())
    embedding_multiplier = spec.hidden_size**0.5
    spec = replace(spec, activation=activation, norm_plus_one=True, embedding_multiplier=embedding_multiplier)
    return _with_attention_bias(config, spec)


def _num_layers(config: Fields) -> int:
    return config.count("num_hidden_layers", limit=MAX_NUM_LAYERS)


def _divided_head_dim(config: Fields, num_heads: int) -> int:
    hidden_size = config.count("hidden_size")
    if hidden_size % num_heads:
        raise config.fail("num_attention_heads", f"it must divide hidden_size ({hidden_size}) where head_dim is not given")
    return hidden_size // num_heads


def _activation(config: Fields, key: str, default: str) -> Activation:
    name = config.text_or(key, default)
    if name not in _ACTIVATIONS:
        raise config.fail(key, f"supported are {', '.join(sorted(_ACTIVATIONS))}")
    return _ACTIVATIONS[name]


def _with_attention_bias(config: Fields, spec: ModelSpec) -> ModelSpec:
    has_bias = config.flag_or("attention_bias", False)
    return replace(spec, qkv_bias=has_bias, output_bias=has_bias)


def _with_optional_biases(config: Fields, spec: ModelSpec) -> ModelSpec:
    return replace(_with_attention_bias(config, spec), mlp_bias=config.flag_or("mlp_bias", False))


def _with_qwen_windows(config: Fields, spec: ModelSpec) -> ModelSpec:
    window = _window(config, 4096) if config.flag_or("use_sliding_window", False) else None
    first = config.integer_or("max_window_layers", 28)
    types = [_SLIDING if window is not None and i >= first else _FULL for i in range(spec.num_layers)]
    return _with_windows(spec, _layer_types(config, types), window)


def _window(config: Fields, default: int) -> int | None:
    """`sliding_window`: absent means the default, null means none."""
    return default if "sliding_window" not in config.values else config.count_or("sliding_window", None)


def _layer_types(config: Fields, default: Sequence[str]) -> list[str]:
    """`layer_types` where given: newer configs list every layer's kind instead of a rule."""
    given = config.items_or("layer_types", None)
    types = [str(kind) for kind in (default if given is None else given)]
    if len(types) != len(default):
        raise CheckpointError(f"{config.source}: layer_types has {len(types)} entries for {len(default)} layers")
    for kind in types:
        if kind not in (_FULL, _SLIDING):
            raise CheckpointError(f"{config.source}: layer_types has {kind!r}; supported are {_FULL} and {_SLIDING}")
    return types


def _with_windows(spec: ModelSpec, types: Sequence[str], window: int | None) -> ModelSpec:
    layers = tuple(
        replace(layer, window=window if kind == _SLIDING else None) for layer, kind in zip(spec.layers, types, strict=True)
    )
    return replace(spec, layers=layers)


def _query_scale(config: Fields) -> float:
    """Gemma divides queries by the root of a number of its own, which need not be the head's size."""
    return float(config.positive_or("query_pre_attn_scalar", 256.0) ** -0.5)


def _softcap(config: Fields, key: str, default: float | None) -> float | None:
    """A cap: absent means the default, null means none."""
    return default if key not in config.values else config.positive_or(key, None)


def _rotating_layers(config: Fields, num_layers: int) -> list[bool]:
    """SmolLM3's `no_rope_layers`: despite its name, 1 marks a layer that rotates."""
    given = config.items_or("no_rope_layers", None)
    interval = config.count_or("no_rope_layer_interval", 4)
    rotates = [bool((i + 1) % interval) for i in range(num_layers)] if given is None else [bool(x) for x in given]
    if len(rotates) < num_layers:
        raise CheckpointError(f"{config.source}: no_rope_layers has {len(rotates)} entries for {num_layers} layers")
    return rotates[:num_layers]

"""Rotary embeddings as checkpoints describe them, in their three spellings, checked and brought to `RopeSpec`.

Knows config.json's `rope_parameters` (transformers 5), its `rope_scaling` with `rope_theta` beside it (before), and GGUF's
`rope.*` keys with their factor tensors. Does not know how frequencies are computed: `layers/` does.
"""

import math

from headrace.base.errors import CheckpointError, nearest
from headrace.engine.models.fields import Fields
from headrace.specs.model import RopeScaling, RopeSpec

_TYPES = {
    # What config.json calls it: what it is
    "default": RopeScaling.NONE,
    "linear": RopeScaling.LINEAR,
    "dynamic": RopeScaling.DYNAMIC,
    "llama3": RopeScaling.LLAMA3,
    "yarn": RopeScaling.YARN,
    "longrope": RopeScaling.LONGROPE,
    "su": RopeScaling.LONGROPE,  # its name before it was published
}

_KNOWN_KEYS = frozenset({
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings",
    "attention_factor", "beta_fast", "beta_slow", "short_factor", "long_factor", "low_freq_factor", "high_freq_factor",
    "mscale", "mscale_all_dim", "truncate",
    "finetuned",  # says how the model was made, not how it runs
})  # fmt: skip


def rope_section(config: Fields) -> Fields:
    """What config.json says of rotary scaling, under either name; empty where it says nothing."""
    for key in ("rope_scaling", "rope_parameters"):
        section = config.section_or_none(key)
        if section is not None and section.values:
            return section
    return Fields(f"{config.source}: rope_parameters", {})


def rope_from_section(
    section: Fields,
    config: Fields,
    *,
    theta: float,
    head_dim: int,
    max_position: int,
    yarn_means_longrope: bool = False,
) -> RopeSpec:
    """One rotary embedding. `theta` and the config's own `partial_rotary_factor` hold where the section is silent."""
    _refuse_unknown_keys(section)
    kind = _scaling_type(section)
    if kind is RopeScaling.YARN and yarn_means_longrope:
        kind = RopeScaling.LONGROPE
    share = section.positive_or("partial_rotary_factor", config.positive_or("partial_rotary_factor", 1.0))
    theta = section.positive_or("rope_theta", theta)
    rotary_dim = _rotary_dim(section.source, head_dim, share)
    original = _original_max_position(section, config, max_position)
    match kind:
        case RopeScaling.NONE:
            return RopeSpec(theta, rotary_dim, max_position=max_position)
        case RopeScaling.LINEAR:
            return RopeSpec(theta, rotary_dim, kind, factor=_factor(section), max_position=max_position)
        case RopeScaling.DYNAMIC:
            # The reference stretches beyond max_position_embeddings itself, whatever else is written.
            return RopeSpec(
                theta,
                rotary_dim,
                kind,
                factor=_factor(section),
                original_max_position=max_position,
                max_position=max_position,
            )
        case RopeScaling.LLAMA3:
            return _llama3(section, theta, rotary_dim, original, max_position)
        case RopeScaling.YARN:
            return _yarn(section, theta, rotary_dim, original, max_position)
        case RopeScaling.LONGROPE:
            return _longrope(section, theta, rotary_dim, original, max_position)


def _refuse_unknown_keys(section: Fields) -> None:
    for key in section.values:
        if key not in _KNOWN_KEYS:
            raise CheckpointError(
                f"{section.source}: {key!r} is not supported{nearest(key, _KNOWN_KEYS)}; ignoring it could turn the "
                "positions wrong"
            )


def _scaling_type(section: Fields) -> RopeScaling:
    name = section.text_or("rope_type", None) or section.text_or("type", "default")
    if name not in _TYPES:
        raise CheckpointError(
            f"{section.source}: rope type {name!r} is not supported; supported are {', '.join(sorted(_TYPES))}"
        )
    return _TYPES[name]


def _rotary_dim(source: str, head_dim: int, share: float) -> int:
    rotary_dim = int(head_dim * share)
    if not 0 < rotary_dim <= head_dim or rotary_dim % 2:
        raise CheckpointError(
            f"{source}: {share} of a head's {head_dim} dimensions rotate: {rotary_dim}, which must be even, "
            f"above 0 and at most {head_dim}"
        )
    return rotary_dim


def _original_max_position(section: Fields, config: Fields, max_position: int) -> int:
    inside = section.count_or("original_max_position_embeddings", max_position)
    return config.count_or("original_max_position_embeddings", inside)  # Phi-3 writes it outside, and that wins


def _factor(section: Fields) -> float:
    factor = section.number("factor")
    if factor < 1:
        raise section.fail("factor", "it stretches positions and must be at least 1")
    return factor


def _llama3(section: Fields, theta: float, rotary_dim: int, original: int, max_position: int) -> RopeSpec:
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    if not 0 < low < high:
        raise section.fail("low_freq_factor", f"it must lie between 0 and high_freq_factor ({high})")
    return RopeSpec(
        theta,
        rotary_dim,
        RopeScaling.LLAMA3,
        factor=_factor(section),
        original_max_position=original,
        max_position=max_position,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(section: Fields, theta: float, rotary_dim: int, original: int, max_position: int) -> RopeSpec:
    beta_fast, beta_slow = section.positive_or("beta_fast", 32.0), section.positive_or("beta_slow", 1.0)
    if beta_fast <= beta_slow:
        raise section.fail("beta_fast", f"it must exceed beta_slow ({beta_slow})")
    return RopeSpec(
        theta,
        rotary_dim,
        RopeScaling.YARN,
        factor=_factor(section) if section.has("factor") else max_position / original,
        original_max_position=original,
        max_position=max_position,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        attention_factor=section.positive_or("attention_factor", None),
        mscale=section.number_or("mscale", 0.0),
        mscale_all_dim=section.number_or("mscale_all_dim", 0.0),
        truncate=section.flag_or("truncate", True),
    )


def _longrope(section: Fields, theta: float, rotary_dim: int, original: int, max_position: int) -> RopeSpec:
    return RopeSpec(
        theta,
        rotary_dim,
        RopeScaling.LONGROPE,
        factor=_factor(section) if section.has("factor") else max_position / original,
        original_max_position=original,
        max_position=max_position,
        attention_factor=section.positive_or("attention_factor", None),
        short_factors=_per_frequency(section.source, "short_factor", section.numbers("short_factor"), rotary_dim),
        long_factors=_per_frequency(section.source, "long_factor", section.numbers("long_factor"), rotary_dim),
    )


def _per_frequency(source: str, name: str, factors: tuple[float, ...], rotary_dim: int) -> tuple[float, ...]:
    if len(factors) != rotary_dim // 2:
        raise CheckpointError(
            f"{source}: {name} has {len(factors)} numbers; {rotary_dim} rotating dimensions need {rotary_dim // 2}"
        )
    if min(factors) <= 0:
        raise CheckpointError(f"{source}: {name} must hold numbers above 0 only")
    return factors


def rope_from_gguf(
    metadata: Fields,
    prefix: str,
    *,
    head_dim: int,
    max_position: int,
    factors: dict[str, tuple[float, ...]],
    default_theta: float = 10_000.0,
) -> RopeSpec:
    """The rotary embedding of a GGUF file. `factors`: its `rope_freqs`, `rope_factors_short`, `rope_factors_long` tensors.

    llama.cpp writes Llama 3's scaling as the factors it amounts to; they are a longrope whose two sets are equal.
    """
    theta = metadata.positive_or(f"{prefix}.rope.freq_base", default_theta)
    rotary_dim = metadata.count_or(f"{prefix}.rope.dimension_count", head_dim)
    if rotary_dim > head_dim or rotary_dim % 2:
        raise metadata.fail(f"{prefix}.rope.dimension_count", f"it must be even and at most the head's {head_dim}")
    kind = metadata.text_or(f"{prefix}.rope.scaling.type", "linear")
    factor = _gguf_factor(metadata, prefix)
    original = metadata.count_or(f"{prefix}.rope.scaling.original_context_length", max_position)
    attention_factor = metadata.positive_or(f"{prefix}.rope.scaling.attn_factor", 1.0)
    if "rope_factors_long" in factors or kind == "longrope":
        return _gguf_longrope(metadata, factors, theta, rotary_dim, original, max_position, attention_factor)
    if kind == "yarn" and "rope_freqs" not in factors:
        return _gguf_yarn(metadata, prefix, theta, rotary_dim, factor, original, max_position, attention_factor)
    if kind not in ("none", "linear"):
        raise metadata.fail(f"{prefix}.rope.scaling.type", "supported are none, linear, yarn and longrope")
    factor = 1.0 if kind == "none" else factor
    if "rope_freqs" in factors:
        stretched = _per_frequency(metadata.source, "rope_freqs.weight", factors["rope_freqs"], rotary_dim)
        return _same_factors(theta, rotary_dim, tuple(f * factor for f in stretched), max_position)
    scaling = RopeScaling.NONE if factor == 1 else RopeScaling.LINEAR
    return RopeSpec(theta, rotary_dim, scaling, factor=factor, max_position=max_position)


def _gguf_factor(metadata: Fields, prefix: str) -> float:
    """0 stands for none; files of 2023 have it under another name."""
    factor = metadata.number_or(f"{prefix}.rope.scaling.factor", None)
    if factor is None:
        factor = metadata.number_or(f"{prefix}.rope.scale_linear", 0.0)
    if factor != 0 and factor < 1:
        raise metadata.fail(f"{prefix}.rope.scaling.factor", "it stretches positions and must be at least 1")
    return factor or 1.0


def _same_factors(theta: float, rotary_dim: int, factors: tuple[float, ...], max_position: int) -> RopeSpec:
    return RopeSpec(
        theta,
        rotary_dim,
        RopeScaling.LONGROPE,
        original_max_position=max_position,
        max_position=max_position,
        attention_factor=1.0,
        short_factors=factors,
        long_factors=factors,
    )


def _gguf_longrope(
    metadata: Fields,
    factors: dict[str, tuple[float, ...]],
    theta: float,
    rotary_dim: int,
    original: int,
    max_position: int,
    attention_factor: float,
) -> RopeSpec:
    checked = {}
    for name in ("rope_factors_short", "rope_factors_long"):
        if name not in factors:
            raise CheckpointError(f"{metadata.source}: its rope scaling is longrope, but tensor {name}.weight is missing")
        checked[name] = _per_frequency(metadata.source, f"{name}.weight", factors[name], rotary_dim)
    return RopeSpec(
        theta,
        rotary_dim,
        RopeScaling.LONGROPE,
        factor=max(1.0, max_position / original),
        original_max_position=original,
        max_position=max_position,
        attention_factor=attention_factor,
        short_factors=checked["rope_factors_short"],
        long_factors=checked["rope_factors_long"],
    )


def _gguf_yarn(
    metadata: Fields,
    prefix: str,
    theta: float,
    rotary_dim: int,
    factor: float,
    original: int,
    max_position: int,
    attention_factor: float,
) -> RopeSpec:
    for key, neutral in (("yarn_log_multiplier", 0.0), ("yarn_ext_factor", 1.0), ("yarn_attn_factor", 1.0)):
        name = f"{prefix}.rope.scaling.{key}"
        if metadata.number_or(name, neutral) not in (neutral, -1.0):  # -1: llama.cpp's "not given"
            raise metadata.fail(name, f"only {neutral} is supported")
    paper = 0.1 * math.log(factor) + 1
    return RopeSpec(
        theta,
        rotary_dim,
        RopeScaling.YARN,
        factor=factor,
        original_max_position=original,
        max_position=max_position,
        beta_fast=metadata.positive_or(f"{prefix}.rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=metadata.positive_or(f"{prefix}.rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=None if attention_factor == 1 else attention_factor * paper,
    )

"""The structure of a decoder-only transformer as data: what one model differs in from another.

Knows numbers and choices. Does not know files, tensors or how anything is computed. `models/decoder.py` is
driven by it; `models/registry.py` fills it from a checkpoint's own description.
"""

from dataclasses import dataclass
from enum import StrEnum


class Activation(StrEnum):
    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"


class RopeScaling(StrEnum):
    """How rotary frequencies are stretched beyond the trained length."""

    NONE = "none"
    LINEAR = "linear"
    DYNAMIC = "dynamic"
    LLAMA3 = "llama3"
    YARN = "yarn"
    LONGROPE = "longrope"


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding (Su et al., 2021), half-split ("NeoX") layout."""

    theta: float
    rotary_dim: int
    """How many leading dimensions of each head are rotated; the rest pass unchanged."""
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    original_max_position: int = 0
    """The trained context length that the scaling starts from; 0 where the scaling needs none."""
    max_position: int = 0
    """The model's context length (`max_position_embeddings`); longrope and dynamic choose by it."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths above original / low are fully scaled."""
    high_freq_factor: float = 1.0
    """llama3: wavelengths below original / high are left alone."""
    beta_fast: float = 32.0
    """yarn: rotations at which interpolation begins to fade in."""
    beta_slow: float = 1.0
    """yarn: rotations at which interpolation is complete."""
    attention_factor: float | None = None
    """yarn, longrope: multiplies cos and sin; None asks for the paper's own value."""
    mscale: float = 0.0
    """yarn as DeepSeek writes it: numerator's scale; 0 where unused."""
    mscale_all_dim: float = 0.0
    """yarn as DeepSeek writes it: denominator's scale; 0 where unused."""
    truncate: bool = True
    """yarn: round the correction range outward to whole dimensions."""
    short_factors: tuple[float, ...] = ()
    """longrope: per-frequency factors up to the original length."""
    long_factors: tuple[float, ...] = ()
    """longrope: per-frequency factors beyond it."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer."""

    rope: int | None = 0
    """Index into `ModelSpec.ropes`; None: this layer has no position embedding."""
    window: int | None = None
    """Sliding window: a token sees itself and the `window - 1` tokens before it; None: everything before it."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One decoder-only transformer."""

    architecture: str
    """The checkpoint's own name for it, for example `LlamaForCausalLM`; for messages, never for branching."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerSpec, ...]
    ropes: tuple[RopeSpec, ...]
    max_position_embeddings: int
    norm_eps: float = 1e-5
    norm_plus_one: bool = False
    """Gemma: the stored weight w means a factor of 1 + w."""
    activation: Activation = Activation.SILU
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm over each query and key head before the rotation."""
    post_norms: bool = False
    """Gemma 2 and 3: attention and MLP outputs are normed again before they join the residual stream."""
    tie_word_embeddings: bool = False
    attention_scale: float | None = None
    """Multiplies q.k; None means head_dim ** -0.5."""
    attention_softcap: float | None = None
    """s -> cap * tanh(s / cap) on attention scores."""
    final_softcap: float | None = None
    """The same on the logits."""
    embedding_multiplier: float = 1.0
    """Gemma scales embeddings by sqrt(hidden_size); Granite by a constant."""
    residual_multiplier: float = 1.0
    """Granite: what a block adds to the residual stream is scaled by this."""
    logits_multiplier: float = 1.0
    """Granite: logits are multiplied by this (the reciprocal of its `logits_scaling`)."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end an answer unless the request ignores them."""

    def __post_init__(self) -> None:
        assert len(self.layers) == self.num_layers, "one LayerSpec per layer"
        assert self.num_heads % self.num_kv_heads == 0, "query heads divide evenly among KV heads"

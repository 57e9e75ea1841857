"""ModelShape: what a model costs, as far as its structure says. Knows sizes by layer; knows neither weights nor hardware.

Filled from the `config.json` of a checkpoint that need not be here.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.base.errors import ConfigurationError


class GroupedAttention(msgspec.Struct, frozen=True, kw_only=True, tag="grouped"):
    """Multi-head, grouped-query and multi-query attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    is_gated: bool = False
    """An output gate, which makes the query projection twice as wide (Qwen3-Next)."""
    norms_all_heads: bool = False
    """Queries and keys are normed over all heads together, so split heads exchange their sums of squares (MiniMax-M2)."""


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True, tag="latent"):
    """Multi-head latent attention (DeepSeek-V2, 2024)."""

    num_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    indexer_heads: int = 0
    """Heads of a sparse-attention indexer (DeepSeek-V3.2); 0: there is none."""
    indexer_top_k: int = 0

    @property
    def latent_size(self) -> int:
        return self.kv_lora_rank + self.qk_rope_head_dim


class LinearAttention(msgspec.Struct, frozen=True, kw_only=True, tag="linear"):
    """A gated delta rule with a state of fixed size (Qwen3-Next)."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int


class DenseMlp(msgspec.Struct, frozen=True, kw_only=True, tag="dense"):
    intermediate_size: int


class MoeMlp(msgspec.Struct, frozen=True, kw_only=True, tag="moe"):
    num_experts: int
    top_k: int
    expert_intermediate_size: int
    shared_intermediate_size: int = 0
    """Of all shared experts together."""


class LayerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that cost the same."""

    count: int
    attention: GroupedAttention | LatentAttention | LinearAttention
    mlp: DenseMlp | MoeMlp


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    hidden_size: int
    vocab_size: int
    layers: tuple[LayerGroup, ...]

    @property
    def num_layers(self) -> int:
        return sum(group.count for group in self.layers)

    @property
    def num_kv_heads(self) -> int:
        """Over how many GPUs a token's KV can be split: one where all heads share a latent."""
        counts = [
            1 if isinstance(group.attention, LatentAttention) else group.attention.num_kv_heads
            for group in self.layers
            if not isinstance(group.attention, LinearAttention)
        ]
        return min(counts, default=1)

    @property
    def has_experts(self) -> bool:
        return any(isinstance(group.mlp, MoeMlp) for group in self.layers)


def shape_from_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """From a `config.json` as Hugging Face writes it. Raises ConfigurationError where a size is missing."""
    config = config.get("text_config", config)
    try:
        groups: dict[tuple[Any, Any], int] = {}
        for index in range(config["num_hidden_layers"]):
            key = (_attention(config, index), _mlp(config, index))
            groups[key] = groups.get(key, 0) + 1
        return ModelShape(
            name=name,
            hidden_size=config["hidden_size"],
            vocab_size=config["vocab_size"],
            layers=tuple(
                LayerGroup(count=count, attention=attention, mlp=mlp) for (attention, mlp), count in groups.items()
            ),
        )
    except KeyError as missing:
        raise ConfigurationError(f"the config of {name} has no {missing.args[0]!r}: its cost cannot be counted") from None


def _attention(config: Mapping[str, Any], index: int) -> GroupedAttention | LatentAttention | LinearAttention:
    kinds = config.get("layer_types") or ()
    kind = kinds[index] if index < len(kinds) else "full_attention"
    if kind == "linear_attention":
        return LinearAttention(
            num_key_heads=config["linear_num_key_heads"],
            num_value_heads=config["linear_num_value_heads"],
            key_head_dim=config["linear_key_head_dim"],
            value_head_dim=config["linear_value_head_dim"],
        )
    if config.get("kv_lora_rank"):
        return LatentAttention(
            num_heads=config["num_attention_heads"],
            q_lora_rank=config.get("q_lora_rank") or 0,
            kv_lora_rank=config["kv_lora_rank"],
            qk_nope_head_dim=config["qk_nope_head_dim"],
            qk_rope_head_dim=config["qk_rope_head_dim"],
            v_head_dim=config["v_head_dim"],
            indexer_heads=config.get("index_n_heads") or 0,
            indexer_top_k=config.get("index_topk") or 0,
        )
    heads = config["num_attention_heads"]
    return GroupedAttention(
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        window=config.get("sliding_window") if kind == "sliding_attention" else None,
        is_gated=bool(config.get("attn_output_gate")),
        norms_all_heads=config.get("qk_norm_type") == "per_layer",
    )


def _mlp(config: Mapping[str, Any], index: int) -> DenseMlp | MoeMlp:
    num_experts = next((config[key] for key in _EXPERTS if config.get(key)), 0)
    if not num_experts or index < config.get("first_k_dense_replace", 0):
        return DenseMlp(intermediate_size=config["intermediate_size"])
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    shared = config.get("shared_expert_intermediate_size") or config.get("shared_intermediate_size") or 0
    return MoeMlp(
        num_experts=num_experts,
        top_k=config.get("num_experts_per_tok") or config["experts_per_token"],
        expert_intermediate_size=width,
        shared_intermediate_size=shared or (config.get("n_shared_experts") or 0) * width,
    )


_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")

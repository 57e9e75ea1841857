"""GpuStepModel: the time of a step on GPUs, from a model's shape, a device, a layout and kernel curves.

Knows operations and how often each is done. The step is the sum of its components; each component has one factor
(`Tuning`) that a fit to whole deployments may move, because a kernel measured alone is not a kernel in a serving engine
(fused, overlapped, launched late).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.sim.cost import kernels
from headrace.sim.cost.curves import EXPERT_KERNELS, DeviceCurves
from headrace.sim.cost.shape import DenseMlp, GroupedAttention, LatentAttention, LayerGroup, LinearAttention, ModelShape
from headrace.sim.cost.step_size import StepSize
from headrace.specs.device import DeviceSpec
from headrace.specs.parallel import ParallelSpec

_WEIGHT_BYTES = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "int4": 0.53, "mxfp4": 0.53125}
"""Per parameter, scales included: 4 bits and an 8-bit scale for 16 (NVFP4) or 32 (MXFP4) of them."""
_PRODUCT_DTYPE = {"bfloat16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "int4": "bfloat16"}
_LARGEST_GROUP = 8
"""GPUs in the largest collective that was measured; beyond it, its curve with the greater volume."""


class Precision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dtypes by what they hold. Raises ConfigurationError for one that is not known."""

    gemm: str = "bfloat16"
    """Dense weights: bfloat16, fp8, fp8_block, nvfp4."""
    experts: str = "bfloat16"
    """Routed experts: besides, int4 and mxfp4."""
    latent_projections: str = "bfloat16"
    """Of multi-head latent attention: bfloat16, fp8_block, nvfp4."""
    kv: str = "bfloat16"
    """The KV cache: bfloat16 or fp8."""

    def __post_init__(self) -> None:
        for name in ("gemm", "experts", "latent_projections"):
            if getattr(self, name) not in _WEIGHT_BYTES:
                raise ConfigurationError(f"{name} must be one of {', '.join(_WEIGHT_BYTES)}, not {getattr(self, name)!r}")
        if self.kv not in ("bfloat16", "fp8"):
            raise ConfigurationError(f"kv must be bfloat16 or fp8, not {self.kv!r}")


class Tuning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Factors on components and the host's own time. The defaults are the kernels as measured, with a bare host.

    They are effective values: a fused all-reduce shows as `collectives` below 1, a slow launch as `elementwise` above. Two
    stand below 1 from the start, because every engine avoids part of what was measured there.
    """

    host_us: float = 500.0
    """Per step: scheduling, launching, reading the tokens back."""
    host_us_per_sequence: float = 2.0
    gemm: float = 1.0
    quantise: float = 0.7
    """On what narrow products add: activations are quantised, mostly in a kernel of its own, unless an engine fuses it."""
    experts: float = 1.0
    decode_attention: float = 1.0
    latent_fixed: float = 0.8
    """On the fixed part of latent attention while decoding: it was measured with launches that engines avoid."""
    prefill: float = 1.0
    """On the attention of prompts."""
    collectives: float = 1.0
    elementwise: float = 1.0
    launch_us_per_layer: float = 50.0
    """In steps with prompts: those are not replayed from a captured graph."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 0:
                raise ConfigurationError(f"tuning: {name} must not be negative, not {getattr(self, name):g}")


_ONE_GPU, _PLAIN, _AS_MEASURED = ParallelSpec(), Precision(), Tuning()

COMPONENTS = (
    "host", "host_per_sequence", "gemm", "quantise", "experts", "decode_attention", "latent_fixed", "prefill", "collectives",
    "elementwise", "launch",
)  # fmt: skip
"""In the order of `GpuStepModel.components`; the first two and the last are in units of their own (steps, sequences,
layers), the others in microseconds."""


@dataclass(frozen=True, slots=True)
class _LinearPart:
    """What depends on the number of tokens alone, over all layers, in microseconds."""

    gemm: float
    quantise: float
    experts: float
    collectives: float
    elementwise: float


class GpuStepModel:
    """Raises ConfigurationError where a curve that the model needs was not measured on the device, or where the layout
    does not fit the model."""

    def __init__(
        self,
        *,
        shape: ModelShape,
        device: DeviceSpec,
        curves: DeviceCurves,
        parallel: ParallelSpec = _ONE_GPU,
        precision: Precision = _PLAIN,
        tuning: Tuning = _AS_MEASURED,
    ) -> None:
        self.shape = shape
        self.parallel = parallel
        self.precision = precision
        self.tuning = tuning
        self._device = device
        self._curves = curves
        self._bf16 = self._rates("bfloat16")
        self._gemm_rates = self._rates(precision.gemm)
        self._latent_rates = self._rates(precision.latent_projections)
        self._latent_key = f"{precision.kv}/{precision.latent_projections}"
        self._attentions: dict[GroupedAttention | LatentAttention | LinearAttention, int] = {}
        for group in shape.layers:
            self._attentions[group.attention] = self._attentions.get(group.attention, 0) + group.count
        self._linear_parts: dict[tuple[int, int], _LinearPart] = {}
        self._logits: dict[int, float] = {}
        self._measured_dims = sorted({int(key.split("/")[1]) for key in curves.decode_attention})
        self._grouped_keys: dict[int, str] = {}
        self._check()

    # The whole

    def step_us(self, size: StepSize, *, num_tokens_everywhere: int | None = None) -> float:
        """One step of one attention rank. Where there are several (attention-DP), its experts see what all of them have: as
        much each, unless `num_tokens_everywhere` is given."""
        tuning = self.tuning
        linear = self._linear(size.num_tokens, num_tokens_everywhere)
        decode, latent_fixed, prefill = self._attention_us(size)
        total = (
            tuning.host_us
            + tuning.host_us_per_sequence * size.num_sequences
            + tuning.gemm * (linear.gemm + self._logits_us(size.num_samples))
            + tuning.quantise * linear.quantise
            + tuning.experts * linear.experts
            + tuning.decode_attention * decode
            + tuning.latent_fixed * latent_fixed
            + tuning.prefill * prefill
            + tuning.collectives * linear.collectives
            + tuning.elementwise * linear.elementwise
        )
        if size.num_chunks:
            total += tuning.launch_us_per_layer * self.shape.num_layers
        return total

    def decode_run_us(
        self, num_decodes: int, contexts: Iterable[int], *, num_tokens_everywhere: int | None = None
    ) -> list[float]:
        """`step_us` of steps that only decode, so many sequences each, with so many tokens of context: the same numbers,
        sooner."""
        tuning, logits = self.tuning, self._logits_us(num_decodes)
        linear = self._linear(num_decodes, num_tokens_everywhere)
        before = (
            tuning.host_us
            + tuning.host_us_per_sequence * num_decodes
            + tuning.gemm * (linear.gemm + logits)
            + tuning.quantise * linear.quantise
            + tuning.experts * linear.experts
        )
        collectives, elementwise = tuning.collectives * linear.collectives, tuning.elementwise * linear.elementwise
        times = []
        for context in contexts:
            decode, latent_fixed, _ = self._attention_us(StepSize(num_decodes=num_decodes, decode_context=context))
            # Sums in the order of `step_us`, so that not even the last bit differs.
            attention = before + tuning.decode_attention * decode + tuning.latent_fixed * latent_fixed
            times.append(attention + collectives + elementwise)
        return times

    def components(self, size: StepSize) -> tuple[float, ...]:
        """As `COMPONENTS` names them, before any factor: `step_us` is their product with the tuning's fields."""
        linear = self._linear(size.num_tokens)
        decode, latent_fixed, prefill = self._attention_us(size)
        return (
            1.0,
            float(size.num_sequences),
            linear.gemm + self._logits_us(size.num_samples),
            linear.quantise,
            linear.experts,
            decode,
            latent_fixed,
            prefill,
            linear.collectives,
            linear.elementwise,
            float(self.shape.num_layers) if size.num_chunks else 0.0,
        )

    @property
    def weight_bytes_per_gpu(self) -> float:
        """Weights on one GPU, embeddings included."""
        shape, parallel = self.shape, self.parallel
        total = 2.0 * 2.0 * shape.vocab_size * shape.hidden_size / parallel.tensor_parallel_size
        for group in shape.layers:
            total += group.count * self._layer_weight_bytes(group)
        return total / parallel.pipeline_parallel_size

    @property
    def kv_bytes_per_token_per_gpu(self) -> float:
        """Of the layers whose cache grows with the context."""
        wide = 1.0 if self.precision.kv == "fp8" else 2.0
        total = 0.0
        for group in self.shape.layers:
            attention = group.attention
            if isinstance(attention, LatentAttention):
                total += group.count * attention.latent_size * wide
            elif isinstance(attention, GroupedAttention) and attention.window is None:
                heads = self._kv_heads(attention)
                total += group.count * heads * attention.head_dim * 2.0 * wide
        return total / self.parallel.pipeline_parallel_size

    # Attention: depends on contexts

    def _attention_us(self, size: StepSize) -> tuple[float, float, float]:
        """Decoding, the fixed part of it where it is latent, and prompts, over all layers."""
        decode = latent_fixed = prefill = 0.0
        for attention, count in self._attentions.items():
            if isinstance(attention, GroupedAttention):
                layer_decode, layer_prefill = self._grouped_us(attention, size)
            elif isinstance(attention, LatentAttention):
                layer_decode, layer_prefill = self._latent_us(attention, size)
                if size.num_decodes:
                    fixed = self._curves.latent_decode[self._latent_key].t0
                    layer_decode -= fixed
                    latent_fixed += count * fixed
            else:
                layer_decode, layer_prefill = self._linear_attention_us(attention, size)
            decode += count * layer_decode
            prefill += count * layer_prefill
        return decode, latent_fixed, prefill

    def _grouped_us(self, attention: GroupedAttention, size: StepSize) -> tuple[float, float]:
        key = self._grouped_key(attention.head_dim)
        wide = 1.0 if self.precision.kv == "fp8" else 2.0
        heads = max(1.0, attention.num_heads / self.parallel.tensor_parallel_size)
        kv_heads = self._kv_heads(attention)
        decode = prefill = 0.0
        if size.num_decodes:
            context = float(size.decode_context)
            if attention.window is not None:
                context = min(context, float(size.num_decodes * attention.window))
            curve = self._curves.decode_attention[key]
            decode = curve.time_us(self._bf16, size.num_decodes, context, heads, kv_heads, attention.head_dim, wide)
        if size.num_chunks:
            pairs, context = float(size.chunk_pairs), float(size.chunk_context)
            if attention.window is not None:
                pairs = min(pairs, float(size.chunk_tokens * attention.window))
                context = min(context, float(size.chunk_tokens + size.num_chunks * attention.window))
            curve_prefill = self._curves.prefill_attention[key]
            prefill = curve_prefill.time_us(
                self._bf16, pairs, size.chunk_tokens, context, heads, kv_heads, attention.head_dim, wide
            )
        return decode, prefill

    def _latent_us(self, attention: LatentAttention, size: StepSize) -> tuple[float, float]:
        precision = self.precision
        key, rates = self._latent_key, self._latent_rates
        wide = 1.0 if precision.kv == "fp8" else 2.0
        heads = max(1.0, attention.num_heads / self.parallel.tensor_parallel_size)
        projections = _latent_projections(attention, self.shape.hidden_size, heads)
        weight_bytes = _WEIGHT_BYTES[precision.latent_projections]
        latent = float(attention.latent_size)
        decode = prefill = 0.0
        if size.num_decodes:
            context = float(size.decode_context)
            if attention.indexer_top_k:  # the attention itself is sparse; the indexer reads everything, with few heads
                context = min(context, float(size.num_decodes * attention.indexer_top_k))
            decode = self._curves.latent_decode[key].decode_us(
                rates, self._bf16.flops, size.num_decodes, context, heads, self.shape.hidden_size, projections, weight_bytes,
                latent, wide,
            )  # fmt: skip
        if size.num_chunks:
            qk_and_v = float(attention.qk_nope_head_dim + attention.qk_rope_head_dim + attention.v_head_dim)
            prefill = self._curves.latent_prefill[key].prefill_us(
                rates, self._bf16.flops, size.chunk_pairs, size.chunk_tokens, size.chunk_context, heads,
                self.shape.hidden_size, projections, weight_bytes, latent, wide, qk_and_v,
            )  # fmt: skip
        return decode, prefill

    def _linear_attention_us(self, attention: LinearAttention, size: StepSize) -> tuple[float, float]:
        """A pass over the state for each sequence. Not measured, so an assumption: four small kernels (convolution, gates,
        the rule, a gated norm) in 30 us, and 0.7 of the bandwidth."""
        state = attention.num_value_heads * attention.key_head_dim * attention.value_head_dim * 4.0 * 2.0
        state /= self.parallel.tensor_parallel_size
        per_token = 4.0 * attention.num_value_heads * attention.value_head_dim * 2.0 / self.parallel.tensor_parallel_size
        reach = self._bf16.bytes * 0.7
        decode = (30.0 + size.num_decodes * state / reach) if size.num_decodes else 0.0
        prefill = (
            (30.0 + (size.num_chunks * state + size.chunk_tokens * per_token * 4.0) / reach) if size.num_chunks else 0.0
        )
        return decode, prefill

    # Everything else: depends on the number of tokens

    def _linear(self, num_tokens: int, num_everywhere: int | None = None) -> _LinearPart:
        if num_everywhere is None:
            num_everywhere = num_tokens * self.parallel.data_parallel_size
        part = self._linear_parts.get((num_tokens, num_everywhere))
        if part is None:
            part = self._make_linear(float(num_tokens), float(num_everywhere))
            self._linear_parts[num_tokens, num_everywhere] = part
        return part

    def _make_linear(self, tokens: float, everywhere: float) -> _LinearPart:
        gemm = quantise = experts = collectives = elementwise = 0.0
        for group in self.shape.layers:
            for n, k in self._products(group):
                gemm += group.count * self._gemm_us(tokens, n, k)
                quantise += group.count * self._quantise_us(tokens, k)
            gemm += group.count * self._router_us(group, tokens)
            experts += group.count * self._experts_us(group, everywhere)
            collectives += group.count * self._collectives_us(group, tokens, everywhere)
            elementwise += group.count * self._elementwise_us(group, tokens)
        hops = self.parallel.pipeline_parallel_size - 1
        if hops:
            per_hop = 10.0 + tokens * self.shape.hidden_size * 2.0 / (self._device.scale_up_bandwidth / 1e6)
            collectives += hops * per_hop
        return _LinearPart(gemm, quantise, experts, collectives, elementwise)

    def _products(self, group: LayerGroup) -> list[tuple[float, float]]:
        """(N, K) on one GPU of a layer's dense products; those of latent attention are in its own curve."""
        hidden, split = self.shape.hidden_size, self.parallel.tensor_parallel_size
        attention, mlp = group.attention, group.mlp
        products: list[tuple[float, float]] = []
        if isinstance(attention, LinearAttention):
            keys = attention.num_key_heads * attention.key_head_dim
            values = attention.num_value_heads * attention.value_head_dim
            products += [((2 * keys + 2 * values) / split, hidden), (hidden, values / split)]
        elif isinstance(attention, GroupedAttention):
            queries = attention.num_heads * (2 if attention.is_gated else 1)
            width = queries * attention.head_dim / split + 2 * self._kv_heads(attention) * attention.head_dim
            products += [(width, hidden), (hidden, attention.num_heads * attention.head_dim / split)]
        width = mlp.intermediate_size if isinstance(mlp, DenseMlp) else mlp.shared_intermediate_size
        if width:
            products += [(2 * width / split, hidden), (hidden, width / split)]
        return products

    def _router_us(self, group: LayerGroup, tokens: float) -> float:
        if isinstance(group.mlp, DenseMlp):
            return 0.0
        return self._curves.gemm["bfloat16"].time_us(self._bf16, tokens, group.mlp.num_experts, self.shape.hidden_size, 2.0)

    def _experts_us(self, group: LayerGroup, everywhere: float) -> float:
        mlp, parallel = group.mlp, self.parallel
        if isinstance(mlp, DenseMlp):
            return 0.0
        dtype = self.precision.experts
        kernel = EXPERT_KERNELS[self._device.architecture][dtype]
        curve = self._curves.experts[kernel]
        rates = self._rates("fp8" if kernel.startswith("w4a8") else "bfloat16" if dtype == "mxfp4" else dtype)
        return curve.time_us(
            rates, everywhere, self.shape.hidden_size,
            mlp.expert_intermediate_size / parallel.moe_tensor_parallel_size, mlp.num_experts, mlp.top_k,
            parallel.expert_parallel_size, _WEIGHT_BYTES[dtype],
        )  # fmt: skip

    def _collectives_us(self, group: LayerGroup, tokens: float, everywhere: float) -> float:
        parallel = self.parallel
        message = tokens * self.shape.hidden_size * 2.0
        total = 0.0
        has_experts = not isinstance(group.mlp, DenseMlp)
        if parallel.tensor_parallel_size > 1:
            once = self._collective_us("all_reduce", parallel.tensor_parallel_size, message)
            total += once if has_experts and parallel.data_parallel_size > 1 else 2 * once
            if isinstance(group.attention, GroupedAttention) and group.attention.norms_all_heads:
                total += 2 * self._collective_us("all_reduce", parallel.tensor_parallel_size, tokens * 4.0)
        if parallel.data_parallel_size > 1 and has_experts:
            gpus = parallel.num_gpus_per_stage
            everything = everywhere * self.shape.hidden_size * 2.0
            total += self._collective_us("all_gather", gpus, everything)
            total += self._collective_us("reduce_scatter", gpus, everything)
        return total

    def _elementwise_us(self, group: LayerGroup, tokens: float) -> float:
        """Norms, rotations, activations: four small kernels, an assumption of 1.5 us and 0.7 of the bandwidth each. A
        sparse indexer costs 40 us more (assumed as well)."""
        total = 4.0 * (1.5 + 5.0 * tokens * self.shape.hidden_size / (self._bf16.bytes * 0.7))
        if isinstance(group.attention, LatentAttention) and group.attention.indexer_heads:
            total += 40.0
        return total

    # Parts

    def _gemm_us(self, m: float, n: float, k: float) -> float:
        """A product alone, with no more fixed time than a plain one has."""
        dtype = self.precision.gemm
        curves, rates = self._curves.gemm, self._gemm_rates
        fixed = curves["bfloat16"].t0
        if dtype != "fp8_block":
            return fixed + curves[dtype].product_us(rates, m, n, k, _WEIGHT_BYTES[dtype])
        # Small products of the block-scaled table show the host's launches; there the plain curve holds.
        plain, blocked = curves["fp8"], curves["fp8_block"]
        return fixed + max(plain.product_us(rates, m, n, k, 1.0), blocked.product_us(rates, m, n, k, 1.0))

    def _quantise_us(self, m: float, k: float) -> float:
        dtype = self.precision.gemm
        if dtype == "bfloat16":
            return 0.0
        curve = self._curves.gemm["fp8" if dtype == "fp8_block" else dtype]
        launch = max(0.0, curve.t0 - self._curves.gemm["bfloat16"].t0)
        return launch + curve.quantise_us(self._gemm_rates, m, k, _WEIGHT_BYTES[dtype])

    def _logits_us(self, num_samples: int) -> float:
        if num_samples not in self._logits:
            width = self.shape.vocab_size / self.parallel.tensor_parallel_size
            self._logits[num_samples] = (
                self._curves.gemm["bfloat16"].time_us(self._bf16, num_samples, width, self.shape.hidden_size, 2.0)
                if num_samples
                else 0.0
            )
        return self._logits[num_samples]

    def _collective_us(self, operation: str, num_gpus: int, num_bytes: float) -> float:
        measured = 2 if num_gpus <= 2 else 4 if num_gpus <= 4 else _LARGEST_GROUP
        factor = (num_gpus - 1) / num_gpus * (2.0 if operation == "all_reduce" else 1.0)
        return self._curves.collective[f"{operation}/{measured}"].time_us(num_bytes, factor)

    def _kv_heads(self, attention: GroupedAttention) -> float:
        return max(1.0, attention.num_kv_heads / self.parallel.tensor_parallel_size)

    def _rates(self, dtype: str) -> kernels.Rates:
        peak = self._device.peak(_PRODUCT_DTYPE[dtype])
        return kernels.Rates(peak / 1e6, self._device.memory_bandwidth / 1e6)

    def _nearest_dim(self, head_dim: int) -> int:
        return min(self._measured_dims, key=lambda dim: abs(dim - head_dim))

    def _grouped_key(self, head_dim: int) -> str:
        """What the curves of grouped attention are called."""
        if head_dim not in self._grouped_keys:
            self._grouped_keys[head_dim] = f"{self.precision.kv}/{self._nearest_dim(head_dim)}"
        return self._grouped_keys[head_dim]

    def _layer_weight_bytes(self, group: LayerGroup) -> float:
        hidden, split, precision = self.shape.hidden_size, self.parallel.tensor_parallel_size, self.precision
        dense = _WEIGHT_BYTES[precision.gemm]
        attention, mlp = group.attention, group.mlp
        if isinstance(attention, LatentAttention):
            heads = attention.num_heads / split
            total = _latent_projections(attention, hidden, heads) * _WEIGHT_BYTES[precision.latent_projections]
        elif isinstance(attention, GroupedAttention):
            queries = attention.num_heads * (3 if attention.is_gated else 2) / split
            total = hidden * attention.head_dim * (queries + 2 * self._kv_heads(attention)) * dense
        else:
            keys = attention.num_key_heads * attention.key_head_dim
            total = hidden * (2 * keys + 3 * attention.num_value_heads * attention.value_head_dim) / split * dense
        if isinstance(mlp, DenseMlp):
            return total + 3.0 * hidden * mlp.intermediate_size / split * dense
        total += 3.0 * hidden * mlp.shared_intermediate_size / split * dense
        experts = mlp.num_experts * 3.0 * hidden * mlp.expert_intermediate_size / self.parallel.num_gpus_per_stage
        return total + experts * _WEIGHT_BYTES[precision.experts]

    def _check(self) -> None:
        shape, parallel, precision, curves = self.shape, self.parallel, self.precision, self._curves
        if parallel.pipeline_parallel_size > shape.num_layers:
            raise ConfigurationError(
                f"pipeline_parallel_size ({parallel.pipeline_parallel_size}) exceeds the {shape.num_layers} layers"
            )
        for attention in self._attentions:
            if not isinstance(attention, LinearAttention) and attention.num_heads % parallel.tensor_parallel_size:
                raise ConfigurationError(
                    f"tensor_parallel_size ({parallel.tensor_parallel_size}) must divide the model's {attention.num_heads} "
                    "attention heads"
                )
        needed = [(curves.gemm, "bfloat16", "products"), (curves.gemm, precision.gemm, "products")]
        for group in shape.layers:
            if isinstance(group.attention, LatentAttention):
                key = f"{precision.kv}/{precision.latent_projections}"
                needed.append((curves.latent_decode, key, "latent attention"))  # type: ignore[arg-type]
            elif isinstance(group.attention, GroupedAttention):
                key = self._grouped_key(group.attention.head_dim)
                needed.append((curves.decode_attention, key, "attention"))  # type: ignore[arg-type]
            if not isinstance(group.mlp, DenseMlp):
                chosen = EXPERT_KERNELS[self._device.architecture].get(precision.experts, precision.experts)
                needed.append((curves.experts, chosen, "experts"))  # type: ignore[arg-type]
        for measured, key, what in needed:
            if key not in measured:
                raise ConfigurationError(
                    f"{what} in {key} were not measured on {self._device.title}; "
                    f"measured are {', '.join(measured) or 'none'}"
                )


def _latent_projections(attention: LatentAttention, hidden: int, heads: float) -> float:
    """Parameters of the projections on one GPU: the compressions are copied, the rest is split by heads."""
    qk = attention.qk_nope_head_dim + attention.qk_rope_head_dim
    queries_from = attention.q_lora_rank or hidden
    copied = hidden * (attention.q_lora_rank + attention.latent_size)
    split = queries_from * qk + attention.kv_lora_rank * (attention.qk_nope_head_dim + attention.v_head_dim)
    return copied + heads * (split + attention.v_head_dim * hidden)

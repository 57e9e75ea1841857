"""The time of single operations: bytes and operations on the roofline, times efficiencies, with a fixed latency.

All times are in microseconds, so rates are per microsecond. Written in plain arithmetic that also takes arrays, so that the
code that predicts is the code that was fitted. The form follows Williams, Waterman & Patterson (Roofline, CACM 2009) with a
smooth knee: measured kernels approach a roof, they do not run along two of them. Parameters are effective values: an
efficiency above 1 says that a kernel moves less than the formula counts.
"""

import msgspec


def blend(first: float, second: float, sharpness: float) -> float:
    """Between the larger of two (sharpness -> infinity) and their sum (1), the q-norm. Zeros are allowed."""
    return float_power(first**sharpness + second**sharpness, 1.0 / sharpness)


def float_power(base: float, exponent: float) -> float:
    result: float = base**exponent
    return result


class Rates(msgspec.Struct, frozen=True, gc=False):
    """What a device does in a microsecond at most."""

    flops: float
    bytes: float


class Gemm(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """[M, K] x [K, N]: one product with its quantisation of activations."""

    t0: float
    """Microseconds however small it is."""
    em: float
    """Share of the memory bandwidth."""
    ec: float
    """Share of the peak of products."""
    q: float
    """Sharpness of the knee."""
    k0: float
    """Length of K at which half of the peak is lost to a product's beginning and end."""
    eq: float
    """Share of the bandwidth while activations are quantised."""

    def time_us(self, rates: Rates, m: float, n: float, k: float, weight_bytes: float) -> float:
        return self.t0 + self.product_us(rates, m, n, k, weight_bytes) + self.quantise_us(rates, m, k, weight_bytes)

    def product_us(self, rates: Rates, m: float, n: float, k: float, weight_bytes: float) -> float:
        """Without the fixed part."""
        compute = 2.0 * m * n * k / (rates.flops * self.ec) * (1.0 + self.k0 / k)
        memory = (n * k * weight_bytes + 2.0 * m * (n + k)) / (rates.bytes * self.em)
        return blend(compute, memory, self.q)

    def quantise_us(self, rates: Rates, m: float, k: float, weight_bytes: float) -> float:
        """Reading activations and writing them narrower, where the weights are narrow."""
        return m * k * (2.0 + weight_bytes) / (rates.bytes * self.eq) if weight_bytes < 2.0 else 0.0


class DecodeAttention(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One query token for each sequence against its cached keys and values (grouped queries)."""

    t0: float
    em: float
    rr: float
    """Share of the bandwidth for what is written and read per query head."""
    q: float
    tb: float
    """Microseconds for each sequence."""

    def time_us(
        self, rates: Rates, num_sequences: float, context: float, heads: float, kv_heads: float, dim: float, kv_bytes: float
    ) -> float:
        """`context`: tokens attended to, over all sequences."""
        read = context * kv_heads * dim * 2.0 * kv_bytes / (rates.bytes * self.em)
        per_query = num_sequences * heads * dim * 4.0 / (rates.bytes * self.rr)
        return blend(self.t0, read + per_query, self.q) + self.tb * num_sequences


class PrefillAttention(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Chunks of prompts against themselves and what came before."""

    t0: float
    em: float
    ec: float
    q: float

    def time_us(
        self, rates: Rates, pairs: float, num_tokens: float, context: float, heads: float, kv_heads: float, dim: float,
        kv_bytes: float,
    ) -> float:  # fmt: skip
        """`pairs`: (query, key) pairs that the causal mask leaves."""
        compute = 4.0 * heads * dim * pairs / (rates.flops * self.ec)
        moved = num_tokens * heads * dim * 4.0 + context * kv_heads * dim * 2.0 * kv_bytes
        return self.t0 + blend(compute, moved / (rates.bytes * self.em), self.q)


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Multi-head latent attention (DeepSeek-V2, 2024) with its projections, absorbed for decoding, expanded for prompts."""

    t0: float
    em: float
    e1: float
    """Share of the projections' peak."""
    e2: float
    """Share of bfloat16's peak in attention itself."""
    q: float

    def decode_us(
        self, rates: Rates, flops_bf16: float, num_sequences: float, context: float, heads: float, hidden: float,
        projections: float, weight_bytes: float, latent: float, kv_bytes: float,
    ) -> float:  # fmt: skip
        """`projections`: parameters on this GPU; `latent`: elements cached per token (kv_lora_rank + rope)."""
        compute = num_sequences * 2.0 * projections / (rates.flops * self.e1)
        compute = compute + context * heads * 2.0 * (2.0 * latent - 64.0) / (flops_bf16 * self.e2)
        moved = projections * weight_bytes + context * latent * kv_bytes + num_sequences * hidden * 4.0
        return self.t0 + blend(compute, moved / (rates.bytes * self.em), self.q)

    def prefill_us(
        self, rates: Rates, flops_bf16: float, pairs: float, num_tokens: float, context: float, heads: float, hidden: float,
        projections: float, weight_bytes: float, latent: float, kv_bytes: float, qk_and_v_dims: float,
    ) -> float:  # fmt: skip
        compute = num_tokens * 2.0 * projections / (rates.flops * self.e1)
        compute = compute + pairs * heads * 2.0 * qk_and_v_dims / (flops_bf16 * self.e2)
        moved = projections * weight_bytes + context * latent * kv_bytes + num_tokens * hidden * 4.0
        return self.t0 + blend(compute, moved / (rates.bytes * self.em), self.q)


class Experts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A layer's routed experts on one GPU: gate, up and down, with the routing of tokens around them."""

    t0: float
    em: float
    ec: float
    q: float
    m0: float
    """Rows by which each active expert's tile is padded."""
    skew: float
    """How much fewer distinct experts are hit than by an even draw."""
    i0: float
    """Width of an expert's slice at which half of the bandwidth is lost."""
    im: float
    """How much more the busiest GPU has than the mean, at many GPUs."""
    ea: float
    """Share of the bandwidth for the activations between the products."""

    def time_us(
        self, rates: Rates, num_tokens: float, hidden: float, slice_width: float, num_experts: float, top_k: float,
        expert_parallel: float, weight_bytes: float,
    ) -> float:  # fmt: skip
        """`slice_width`: an expert's intermediate size over the GPUs that share it; `num_tokens`: of all ranks."""
        rows = num_tokens * top_k / expert_parallel * (1.0 + self.im * (1.0 - 1.0 / expert_parallel))
        active = num_experts / expert_parallel * (1.0 - float_power(1.0 - top_k / num_experts, num_tokens / self.skew))
        activations = rows * (4.0 * hidden + 6.0 * slice_width)
        compute = 6.0 * hidden * slice_width * (rows + self.m0 * active) / (rates.flops * self.ec)
        weights = active * 3.0 * hidden * slice_width * weight_bytes
        memory = weights / (rates.bytes * self.em) * (1.0 + self.i0 / slice_width)
        return self.t0 + activations / (rates.bytes * self.ea) + blend(compute, memory, self.q)


class Collective(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One collective among a number of GPUs."""

    a: float
    """Microseconds however small the message."""
    busbw: float
    """GB/s on the bus, as nccl-tests counts."""
    q: float

    def time_us(self, num_bytes: float, factor: float) -> float:
        """`factor`: bytes on the bus for each byte of the message: 2 (G-1)/G of an all-reduce, (G-1)/G of the others."""
        return blend(self.a, factor * num_bytes / (self.busbw * 1e3), self.q)

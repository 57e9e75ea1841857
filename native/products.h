// Products of prepared rows with tiles of weights, and what follows a product: bias, residual, activation.
//
// Knows tiles and prepared rows. Does not know threads: it computes the tiles and row groups it is told to. A row's sums are
// formed in the same order however many rows share a group, so its bits do not depend on its company.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace headrace {
namespace HEADRACE_ISA {

// Two numbers of a row along the summed dimension, against two of each of sixteen columns: the step of every sum but the
// quantised. `apart` is how many elements the second of the two lies behind the first, where they are not interleaved.
struct Float32Sums {
    typedef float Row;
    typedef float Column;
    typedef Pair Operand;
    static INLINE Operand column(const Column* p, size_t apart) { return {load(p), load(p + apart)}; }
    static INLINE F add(F sum, const Row* row, Operand c) {
        return fma(set1(row[1]), c.odd, fma(set1(row[0]), c.even, sum));
    }
};

struct ExpandedSums {  // columns in BF16, rows in float32
    typedef float Row;
    typedef uint16_t Column;
    typedef Pair Operand;
    static INLINE Operand column(const Column* p, size_t) { return load_pair(p); }
    static INLINE F add(F sum, const Row* row, Operand c) { return Float32Sums::add(sum, row, c); }
};

#if defined(__AVX512BF16__)
struct PairedSums {  // both in BF16
    typedef uint16_t Row;
    typedef uint16_t Column;
    struct Operand {
        __m512bh v;
    };
    static INLINE Operand column(const Column* p, size_t) { return {(__m512bh)_mm512_loadu_si512(p)}; }
    static INLINE F add(F sum, const Row* row, Operand c) {
        int32_t two;
        std::memcpy(&two, row, 4);
        return {_mm512_dpbf16_ps(sum.v, c.v, (__m512bh)_mm512_set1_epi32(two))};
    }
};
constexpr bool kHasBf16 = true;
#else
typedef ExpandedSums PairedSums;
constexpr bool kHasBf16 = false;
#endif

#if defined(__AVX512F__)
constexpr int kMaxGroup = 16;
#else
constexpr int kMaxGroup = 4;
#endif

// A tile's results: [R][16].

constexpr int kPrefetchBytes = 2048;

template <Format kFormat, int R>
static void quantized_tile(const uint8_t* w, int num_blocks, const int8_t* a, const float* scales, const int32_t* sums,
                           const float* scaled_sums, float* out) {
    constexpr int kStep = kFormat == Format::Q4_1 ? 1 : 2;
    constexpr int kBytes = kFormat == Format::Q4_0 ? 576 : kFormat == Format::Q4_1 ? 320 : 1088;
    constexpr int kTogether = R % 2 == 0 ? 2 : 1;  // rows whose integer sums are formed side by side
    F total[R];
    UNROLL for (int r = 0; r < R; ++r) total[r] = zero();
    for (int b = 0; b < num_blocks; b += kStep) {
        if constexpr (R >= 12) {  // with fewer rows the hardware's own prefetching does better
            UNROLL for (int i = 0; i < kBytes; i += 64) prefetch(w + kPrefetchBytes + i);
        }
        UNROLL for (int h = 0; h < kStep; ++h) {
            const F d = load_half((const uint16_t*)(w + 32 * h));
            B x[8];
            if constexpr (kFormat == Format::Q8_0) {
                UNROLL for (int j = 0; j < 8; ++j) x[j] = load_bytes(w + 64 + 512 * h + 64 * j);
            } else {
                UNROLL for (int j = 0; j < 4; ++j) {
                    const B both = load_bytes(w + 64 + 256 * h + 64 * j);
                    x[j] = low_nibbles(both);
                    x[j + 4] = high_nibbles(both);
                }
            }
            UNROLL for (int r0 = 0; r0 < R; r0 += kTogether) {
                I s[kTogether];
                UNROLL for (int i = 0; i < kTogether; ++i) {
                    if constexpr (kFormat == Format::Q4_0) s[i] = iset1(sums[r0 + i] * 8);
                    if constexpr (kFormat == Format::Q4_1) s[i] = iset1(0);
                    if constexpr (kFormat == Format::Q8_0) s[i] = iset1(sums[r0 + i] * kByteBias);
                }
                UNROLL for (int j = 0; j < 8; ++j) {
                    UNROLL for (int i = 0; i < kTogether; ++i) {
                        const int8_t* four = a + (r0 + i) * kBlock + 4 * j;
                        if constexpr (kFormat == Format::Q8_0) s[i] = dot_biased_bytes(s[i], x[j], four);
                        else s[i] = dot_nibbles(s[i], x[j], four);
                    }
                }
                UNROLL for (int i = 0; i < kTogether; ++i) {
                    const int r = r0 + i;
                    total[r] = fma(to_float(s[i]), d * set1(scales[r]), total[r]);
                    if constexpr (kFormat == Format::Q4_1)
                        total[r] = fma(load_half((const uint16_t*)(w + 32)), set1(scaled_sums[r]), total[r]);
                }
            }
            a += R * kBlock;
            scales += R;
            sums += R;
            scaled_sums += R;
        }
        w += kBytes;
    }
    UNROLL for (int r = 0; r < R; ++r) store(out + r * 16, total[r]);
}

template <class Sums, int R>
static void float_tile(const uint8_t* data, int num_steps, const typename Sums::Row* a, float* out) {
    const auto* w = (const typename Sums::Column*)data;
    F total[R];
    UNROLL for (int r = 0; r < R; ++r) total[r] = zero();
    for (int j = 0; j < num_steps; ++j) {
        const typename Sums::Operand c = Sums::column(w, 16);
        UNROLL for (int r = 0; r < R; ++r) total[r] = Sums::add(total[r], a + r * 2, c);
        w += 32;
        a += R * 2;
    }
    UNROLL for (int r = 0; r < R; ++r) store(out + r * 16, total[r]);
}

template <Format kFormat, int R>
static INLINE void quantized_tile_of(const Tile& tile, const LinearView& w, const Activations& x, int first, float* out) {
    const size_t at = size_t(first) * w.num_blocks;
    quantized_tile<kFormat, R>(tile.data, w.num_blocks, x.int8 + at * kBlock, x.scales + at, x.negative_sums + at,
                               x.scaled_sums + at, out);
}

template <int R>
static void tile_of(const Tile& tile, const LinearView& w, const Activations& x, bool bf16, int first, float* out) {
    const int num_steps = (w.num_in + 1) / 2;
    const size_t at = size_t(first) * num_steps * 2;
    switch (tile.format) {
        case Format::Q4_0: return quantized_tile_of<Format::Q4_0, R>(tile, w, x, first, out);
        case Format::Q4_1: return quantized_tile_of<Format::Q4_1, R>(tile, w, x, first, out);
        case Format::Q8_0: return quantized_tile_of<Format::Q8_0, R>(tile, w, x, first, out);
        case Format::F32: return float_tile<Float32Sums, R>(tile.data, num_steps, x.floats + at, out);
        case Format::BF16:
            if (kHasBf16 && bf16) return float_tile<PairedSums, R>(tile.data, num_steps, (const PairedSums::Row*)(x.bf16 + at), out);
            return float_tile<ExpandedSums, R>(tile.data, num_steps, x.floats + at, out);
    }
}

typedef void (*TileFunction)(const Tile&, const LinearView&, const Activations&, bool, int, float*);

static INLINE TileFunction tile_function(int num_rows) {
    switch (num_rows) {
        case 1: return tile_of<1>;
        case 2: return tile_of<2>;
        case 3: return tile_of<3>;
#if defined(__AVX512F__)
        case 4: return tile_of<4>;
        case 6: return tile_of<6>;
        case 8: return tile_of<8>;
        case 12: return tile_of<12>;
        default: return tile_of<16>;
#else
        default: return tile_of<4>;
#endif
    }
}

static INLINE void write_row(const float* sums, const Tile& tile, const float* bias, int row, const Output& to) {
    const int n = tile.num_columns;
    F y = load(sums);
    if (bias) y = y + load_n(bias + tile.column, n);
    if (to.multiplier != 1.0f) y = y * set1(to.multiplier);
    if (to.softcap != 0.0f) y = set1(to.softcap) * tanh(y / set1(to.softcap));
    if (to.add) y = y + load_n(to.add + size_t(row) * to.add_stride + tile.column, n);
    float* out = to.out + size_t(row) * to.stride + tile.column;
    if (n == 16) store(out, y);
    else store_n(out, y, n);
}

static void linear(const LinearView& w, const Activations& x, bool bf16, const RowGroup* groups, int num_groups,
                   int first_tile, int end_tile, const Output& to) {
    alignas(64) float sums[kMaxGroup * 16];
    for (int t = first_tile; t < end_tile; ++t) {
        for (int g = 0; g < num_groups; ++g) {
            tile_function(groups[g].num_rows)(w.tiles[t], w, x, bf16, groups[g].first, sums);
            for (int r = 0; r < groups[g].num_rows; ++r)
                write_row(sums + r * 16, w.tiles[t], w.bias, groups[g].first + r, to);
        }
    }
}

static INLINE F erf(F x) {
    // Abramowitz and Stegun 7.1.26 is too coarse for float32; the library's own, lane by lane, is exact enough and rare.
    float lanes[16];
    store(lanes, x);
    for (int i = 0; i < 16; ++i) lanes[i] = std::erf(lanes[i]);
    return load(lanes);
}

static INLINE F activate(F x, Gate gate) {
    switch (gate) {
        case Gate::SILU: return x / (set1(1.0f) + exp(zero() - x));
        case Gate::GELU: return set1(0.5f) * x * (set1(1.0f) + erf(x * set1(0.70710678118654752f)));
        default: {
            const F inner = set1(0.79788456080286536f) * (x + set1(0.044715f) * x * x * x);
            return set1(0.5f) * x * (set1(1.0f) + tanh(inner));
        }
    }
}

static void gated(const LinearView& gate, const LinearView& up, Gate activation, const Activations& x, bool bf16,
                  const RowGroup* groups, int num_groups, int first_tile, int end_tile, const Output& to) {
    alignas(64) float gates[kMaxGroup * 16], ups[kMaxGroup * 16];
    for (int t = first_tile; t < end_tile; ++t) {
        const Tile &gate_tile = gate.tiles[t], &up_tile = up.tiles[t];
        const int n = gate_tile.num_columns, column = gate_tile.column;
        for (int g = 0; g < num_groups; ++g) {
            const int first = groups[g].first, num_rows = groups[g].num_rows;
            tile_function(num_rows)(gate_tile, gate, x, bf16, first, gates);
            tile_function(num_rows)(up_tile, up, x, bf16, first, ups);
            for (int r = 0; r < num_rows; ++r) {
                F a = load(gates + r * 16), b = load(ups + r * 16);
                if (gate.bias) a = a + load_n(gate.bias + column, n);
                if (up.bias) b = b + load_n(up.bias + column, n);
                store_n(to.out + size_t(first + r) * to.stride + column, activate(a, activation) * b, n);
            }
        }
    }
}

// Rows made ready for products.

static void prepare_int8(const float* x, int num_in, int num_blocks, RowGroup group, int row, Activations to) {
    const int R = group.num_rows;
    for (int b = 0; b < num_blocks; ++b) {
        const int n = num_in - b * kBlock;
        const float* at = x + b * kBlock;
        const F low = n >= 16 ? load(at) : load_n(at, n > 0 ? n : 0);
        const F high = n >= 32 ? load(at + 16) : load_n(at + 16, n > 16 ? n - 16 : 0);
        const float greatest = max_magnitude(low, high);
        const size_t place = size_t(group.first) * num_blocks + size_t(b) * R + row;
        const float scale = greatest * (1.0f / 127.0f);
        const float inverse = greatest > 0.0f ? 127.0f / greatest : 0.0f;
        const int32_t sum = quantize32(low, high, inverse, to.int8 + place * kBlock);
        to.scales[place] = scale;
        to.negative_sums[place] = -sum;
        to.scaled_sums[place] = scale * float(sum);
    }
}

static void prepare_floats(const float* x, int num_in, RowGroup group, int row, int padded, Activations to) {
    float* out = to.floats + size_t(group.first) * padded + row * 2;
    for (int k = 0; k < padded; k += 2, out += group.num_rows * 2) {
        out[0] = x[k];
        out[1] = k + 1 < num_in ? x[k + 1] : 0.0f;
    }
}

static void prepare_bf16(const float* x, int num_in, RowGroup group, int row, int padded, Activations to) {
    uint16_t* out = to.bf16 + size_t(group.first) * padded + row * 2;
    for (int k = 0; k < padded; k += 2, out += group.num_rows * 2) {
        out[0] = float_to_bf16(x[k]);
        out[1] = k + 1 < num_in ? float_to_bf16(x[k + 1]) : 0;
    }
}

}  // namespace HEADRACE_ISA
}  // namespace headrace

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

struct HalfColumns {  // columns in F16, rows in float32
    typedef float Row;
    typedef uint16_t Column;
    typedef Pair Operand;
    static INLINE Operand column(const Column* p, size_t apart) { return {load_half(p), load_half(p + apart)}; }
    static INLINE F add(F sum, const Row* row, Operand c) { return Float32Sums::add(sum, row, c); }
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

// Rows that share what is unpacked of a tile; of these, as many as have their integer sums formed side by side, and as many as
// keep their sums in registers over a whole column.
#if defined(__AVX512F__)
constexpr int kMaxGroup = 16, kRowsTogether = 2, kRowsInRegisters = 16;
#elif defined(__AVX2__)
constexpr int kMaxGroup = 8, kRowsTogether = 4, kRowsInRegisters = 4;
#else
constexpr int kMaxGroup = 4, kRowsTogether = 1, kRowsInRegisters = 4;
#endif

// Calls what(first, std::integral_constant<int, N>) for pieces of R rows, of at most kMost each.
template <int R, int kMost, int kFirst = 0, class What>
static INLINE void in_row_pieces(What what) {
    if constexpr (kFirst < R) {
        constexpr int N = R - kFirst < kMost ? R - kFirst : kMost;
        what(kFirst, std::integral_constant<int, N>());
        in_row_pieces<R, kMost, kFirst + N>(what);
    }
}

// A tile's results: [R][16].

constexpr int kPrefetchBytes = 2048;

static INLINE void unpack_nibbles(const uint8_t* w, B* x) {
    UNROLL for (int j = 0; j < 4; ++j) {
        const B both = load_bytes(w + 64 * j);
        x[j] = low_nibbles(both);
        x[j + 4] = high_nibbles(both);
    }
}

static INLINE void unpack_fives(const uint8_t* w, B* x) {
    unpack_nibbles(w, x);
    const B fifth = load_bytes(w + 256);
    x[0] = with_bits<4, 16>(x[0], fifth);
    x[1] = with_bits<3, 16>(x[1], fifth);
    x[2] = with_bits<2, 16>(x[2], fifth);
    x[3] = with_bits<1, 16>(x[3], fifth);
    x[4] = with_bits<0, 16>(x[4], fifth);
    x[5] = with_bits<-1, 16>(x[5], fifth);
    x[6] = with_bits<-2, 16>(x[6], fifth);
    x[7] = with_bits<-3, 16>(x[7], fifth);
}

static INLINE void unpack_sixes(const uint8_t* w, B* x) {
    unpack_nibbles(w, x);
    UNROLL for (int half = 0; half < 2; ++half) {
        const B pairs = load_bytes(w + 256 + 64 * half);
        B* y = x + 4 * half;
        y[0] = with_bits<4, 48>(y[0], pairs);
        y[1] = with_bits<2, 48>(y[1], pairs);
        y[2] = with_bits<0, 48>(y[2], pairs);
        y[3] = with_bits<-2, 48>(y[3], pairs);
    }
}

static INLINE void unpack_bytes(const uint8_t* w, B* x) {
    UNROLL for (int j = 0; j < 8; ++j) x[j] = load_bytes(w + 64 * j);
}

// An offset that stands for the bias of whole bytes, which each instruction set deals with in its own way.
constexpr int kOfBytes = 1 << 16;

// What a format's units hold. Of block h: `unpack` gives the stored integers, of kBits bits and kOffset too great, `scale` what they
// are multiples of, `minimum` what is added to each of them (where kHasMinima).
template <Format kFormat>
struct Unit;

struct PlainUnit {
    static constexpr bool kHasMinima = false, kHasTwoScales = false, kIsSuper = false;
    static INLINE F scale(const uint8_t* w, int h) { return load_half((const uint16_t*)(w + 32 * h)); }
    static INLINE F minimum(const uint8_t* w, int) { return load_half((const uint16_t*)(w + 32)); }
};
template <>
struct Unit<Format::Q4_0> : PlainUnit {
    static constexpr int kBits = 4, kBlocks = 2, kBytes = 576, kOffset = 8;
    static INLINE void unpack(const uint8_t* w, int h, B* x) { unpack_nibbles(w + 64 + 256 * h, x); }
};
template <>
struct Unit<Format::Q4_1> : PlainUnit {
    static constexpr int kBits = 4, kBlocks = 1, kBytes = 320, kOffset = 0;
    static constexpr bool kHasMinima = true;
    static INLINE void unpack(const uint8_t* w, int, B* x) { unpack_nibbles(w + 64, x); }
};
template <>
struct Unit<Format::Q5_0> : PlainUnit {
    static constexpr int kBits = 5, kBlocks = 2, kBytes = 704, kOffset = 16;
    static INLINE void unpack(const uint8_t* w, int h, B* x) { unpack_fives(w + 64 + 320 * h, x); }
};
template <>
struct Unit<Format::Q5_1> : PlainUnit {
    static constexpr int kBits = 5, kBlocks = 1, kBytes = 384, kOffset = 0;
    static constexpr bool kHasMinima = true;
    static INLINE void unpack(const uint8_t* w, int, B* x) { unpack_fives(w + 64, x); }
};
template <>
struct Unit<Format::Q8_0> : PlainUnit {
    static constexpr int kBits = 8, kBlocks = 2, kBytes = 1088, kOffset = kOfBytes;
    static INLINE void unpack(const uint8_t* w, int h, B* x) { unpack_bytes(w + 64 + 512 * h, x); }
};

struct SuperUnit {
    static constexpr int kBlocks = 8, kOffset = 0;
    static constexpr bool kHasMinima = true, kHasTwoScales = false, kIsSuper = true;
    static INLINE F scale(const uint8_t* w, int h) {
        return load_half((const uint16_t*)w) * load_unsigned_bytes(w + 64 + 16 * h);
    }
    static INLINE F minimum(const uint8_t* w, int h) {
        return zero() - load_half((const uint16_t*)(w + 32)) * load_unsigned_bytes(w + 192 + 16 * h);
    }
};
template <>
struct Unit<Format::Q4_K> : SuperUnit {
    static constexpr int kBits = 4, kBytes = 320 + 8 * 256;
    static INLINE void unpack(const uint8_t* w, int h, B* x) { unpack_nibbles(w + 320 + 256 * h, x); }
};
template <>
struct Unit<Format::Q5_K> : SuperUnit {
    static constexpr int kBits = 5, kBytes = 320 + 8 * 320;
    static INLINE void unpack(const uint8_t* w, int h, B* x) { unpack_fives(w + 320 + 320 * h, x); }
};
template <>
struct Unit<Format::Q6_K> : SuperUnit {
    static constexpr int kBits = 6, kBytes = 320 + 8 * 384, kOffset = 32;
    static constexpr bool kHasMinima = false, kHasTwoScales = true;
    static INLINE F scale(const uint8_t* w, int h) {
        return load_half((const uint16_t*)w) * load_signed_bytes(w + 64 + 32 * h);
    }
    static INLINE F second_scale(const uint8_t* w, int h) {
        return load_half((const uint16_t*)w) * load_signed_bytes(w + 80 + 32 * h);
    }
    static INLINE void unpack(const uint8_t* w, int h, B* x) { unpack_sixes(w + 320 + 384 * h, x); }
};

// Prepared rows from one block on.
struct BlockRows {
    const int8_t* a;
    const float* scales;
    const int32_t *sums, *first_sums;
    const float* scaled_sums;

    BlockRows(const Activations& x, size_t at)
        : a(x.int8 + at * kBlock), scales(x.scales + at), sums(x.negative_sums + at), first_sums(x.first_sums + at),
          scaled_sums(x.scaled_sums + at) {}
    INLINE void advance(int num_rows) {
        a += num_rows * kBlock;
        scales += num_rows;
        sums += num_rows;
        first_sums += num_rows;
        scaled_sums += num_rows;
    }
};

// Where a sum starts so that the offset of the weights is taken off; `negative_sum`: minus the sum of the row's part.
template <int kOffset>
static INLINE I start(int32_t negative_sum) {
    if constexpr (kOffset == 0) return iset1(0);
    else return iset1(negative_sum * (kOffset == kOfBytes ? kByteBias : kOffset));
}

// total[r] += what one block of sixteen columns gives with R rows.
template <int R, int kBits, int kOffset, bool kHasMinima>
static INLINE void add_block(const B* x, F d, F minimum, const BlockRows& rows, F* total) {
    in_row_pieces<R, kRowsTogether>([&](int first, auto count) {
        constexpr int N = count.value;
        I s[N];
        UNROLL for (int i = 0; i < N; ++i) s[i] = start<kOffset>(rows.sums[first + i]);
        dot_rows<kBits, 8, N>(s, x, rows.a + first * kBlock, kBlock);
        UNROLL for (int i = 0; i < N; ++i) {
            const int r = first + i;
            total[r] = fma(to_float(s[i]), d * set1(rows.scales[r]), total[r]);
            if constexpr (kHasMinima) total[r] = fma(minimum, set1(rows.scaled_sums[r]), total[r]);
        }
    });
}

// The same for a block whose halves have scales of their own.
template <int R, int kBits, int kOffset>
static INLINE void add_halves(const B* x, F first, F second, const BlockRows& rows, F* total) {
    UNROLL for (int r = 0; r < R; ++r) {
        I s = start<kOffset>(rows.first_sums[r]), t = start<kOffset>(rows.sums[r] - rows.first_sums[r]);
        dot_rows<kBits, 4, 1>(&s, x, rows.a + r * kBlock, kBlock);
        dot_rows<kBits, 4, 1>(&t, x + 4, rows.a + r * kBlock + 16, kBlock);
        const F both = fma(to_float(t), second, to_float(s) * first);
        total[r] = fma(both, set1(rows.scales[r]), total[r]);
    }
}

template <Format kFormat, int R>
static INLINE void add_block_of_unit(const uint8_t* w, int h, const BlockRows& rows, F* total) {
    typedef Unit<kFormat> U;
    B x[8];
    U::unpack(w, h, x);
    if constexpr (U::kHasTwoScales) add_halves<R, U::kBits, U::kOffset>(x, U::scale(w, h), U::second_scale(w, h), rows, total);
    else if constexpr (U::kHasMinima) add_block<R, U::kBits, U::kOffset, true>(x, U::scale(w, h), U::minimum(w, h), rows, total);
    else add_block<R, U::kBits, U::kOffset, false>(x, U::scale(w, h), zero(), rows, total);
}

// With few rows the hardware's own prefetching does better.
template <int R, int kBytes>
static INLINE void prefetch_ahead(const uint8_t* w) {
    if constexpr (R >= 12) {
        UNROLL for (int i = 0; i < kBytes; i += 64) prefetch(w + kPrefetchBytes + i);
    }
}

template <Format kFormat, int R>
static void quantized_tile(const Tile& tile, const LinearView& view, const Activations& x, int first, float* out) {
    typedef Unit<kFormat> U;
    const uint8_t* w = tile.data;
    BlockRows rows(x, size_t(first) * view.num_blocks);
    F total[R];
    UNROLL for (int r = 0; r < R; ++r) total[r] = zero();
    for (int b = 0; b < view.num_blocks; b += U::kBlocks) {
        if constexpr (U::kIsSuper) {
#pragma GCC unroll 1
            for (int h = 0; h < U::kBlocks; ++h) {
                prefetch_ahead<R, U::kBytes / U::kBlocks>(w + U::kBytes / U::kBlocks * h);
                add_block_of_unit<kFormat, R>(w, h, rows, total);
                rows.advance(R);
            }
        } else {
            prefetch_ahead<R, U::kBytes>(w);
            UNROLL for (int h = 0; h < U::kBlocks; ++h) {
                add_block_of_unit<kFormat, R>(w, h, rows, total);
                rows.advance(R);
            }
        }
        w += U::kBytes;
    }
    UNROLL for (int r = 0; r < R; ++r) store(out + r * 16, total[r]);
}

static INLINE F load_scales(const uint8_t* p, ScaleType type) {
    if (type == ScaleType::F16) return load_half((const uint16_t*)p);
    if (type == ScaleType::BF16) return load_bf16((const uint16_t*)p);
    return load((const float*)p);
}

// Groups of one, two or four blocks of nibbles, whose scales and zero points lie behind them.
template <bool kHasZeros, int R>
static void grouped_tile(const Tile& tile, const LinearView& view, const Activations& x, int first, float* out) {
    const int group_blocks = tile.group_blocks, num_groups = (view.num_blocks + group_blocks - 1) / group_blocks;
    const int scale_bytes = tile.scale_type == ScaleType::F32 ? 64 : 32;
    const uint8_t* w = tile.data;
    const uint8_t* scales = w + size_t(view.num_blocks) * 256;
    const uint8_t* zeros = scales + size_t(num_groups) * size_t(scale_bytes);
    BlockRows rows(x, size_t(first) * view.num_blocks);
    F total[R];
    UNROLL for (int r = 0; r < R; ++r) total[r] = zero();
    for (int b = 0; b < view.num_blocks; b += group_blocks) {
        const F d = load_scales(scales, tile.scale_type);
        const F minimum = kHasZeros ? zero() - d * load_unsigned_bytes(zeros) : zero();
        const int end = b + group_blocks < view.num_blocks ? b + group_blocks : view.num_blocks;
        for (int h = b; h < end; ++h) {
            prefetch_ahead<R, 256>(w);
            B unpacked[8];
            unpack_nibbles(w, unpacked);
            add_block<R, 4, kHasZeros ? 0 : 8, kHasZeros>(unpacked, d, minimum, rows, total);
            rows.advance(R);
            w += 256;
        }
        scales += scale_bytes;
        zeros += 16;
    }
    UNROLL for (int r = 0; r < R; ++r) store(out + r * 16, total[r]);
}

// Bytes with one scale for a column, against rows with one scale for the row: integers all along.
template <int R>
static void byte_tile(const Tile& tile, const LinearView& view, const Activations& x, int first, float* out) {
    in_row_pieces<R, kRowsInRegisters>([&](int piece, auto count) {
        constexpr int N = count.value, kChains = N <= 2 ? 4 : 1;  // a sum alone would wait for itself
        const uint8_t* w = tile.data;
        const int8_t* a = x.whole_int8 + size_t(first) * view.num_blocks * kBlock + piece * kBlock;
        const float* scales = x.whole_scales + first + piece;
        const int32_t* sums = x.whole_sums + first + piece;
        I sum[N][kChains];
        UNROLL for (int r = 0; r < N; ++r) {
            UNROLL for (int i = 0; i < kChains; ++i) sum[r][i] = start<kOfBytes>(i == 0 ? sums[r] : 0);
        }
        for (int b = 0; b < view.num_blocks; ++b) {
            prefetch_ahead<N, 512>(w);
            UNROLL for (int j = 0; j < 8; ++j) {
                const B column = load_bytes(w + 64 * j);
                UNROLL for (int r = 0; r < N; ++r)
                    sum[r][j % kChains] = dot_biased_bytes(sum[r][j % kChains], column, a + r * kBlock + 4 * j);
            }
            w += 512;
            a += R * kBlock;
        }
        const F d = load((const float*)w);
        UNROLL for (int r = 0; r < N; ++r) {
            UNROLL for (int i = 1; i < kChains; ++i) sum[r][0] = add(sum[r][0], sum[r][i]);
            store(out + (piece + r) * 16, to_float(sum[r][0]) * (d * set1(scales[r])));
        }
    });
}

template <class Sums, int R>
static void float_tile(const uint8_t* data, int num_steps, const typename Sums::Row* rows, float* out) {
    in_row_pieces<R, kRowsInRegisters>([&](int piece, auto count) {
        constexpr int N = count.value;
        const auto* w = (const typename Sums::Column*)data;
        const typename Sums::Row* a = rows + piece * 2;
        F total[N];
        UNROLL for (int r = 0; r < N; ++r) total[r] = zero();
        for (int j = 0; j < num_steps; ++j) {
            const typename Sums::Operand c = Sums::column(w, 16);
            UNROLL for (int r = 0; r < N; ++r) total[r] = Sums::add(total[r], a + r * 2, c);
            w += 32;
            a += R * 2;
        }
        UNROLL for (int r = 0; r < N; ++r) store(out + (piece + r) * 16, total[r]);
    });
}

template <int R>
static void tile_of(const Tile& tile, const LinearView& w, const Activations& x, bool bf16, int first, float* out) {
    const int num_steps = (w.num_in + 1) / 2;
    const size_t at = size_t(first) * num_steps * 2;
    switch (tile.format) {
        case Format::Q4_0: return quantized_tile<Format::Q4_0, R>(tile, w, x, first, out);
        case Format::Q4_1: return quantized_tile<Format::Q4_1, R>(tile, w, x, first, out);
        case Format::Q5_0: return quantized_tile<Format::Q5_0, R>(tile, w, x, first, out);
        case Format::Q5_1: return quantized_tile<Format::Q5_1, R>(tile, w, x, first, out);
        case Format::Q8_0: return quantized_tile<Format::Q8_0, R>(tile, w, x, first, out);
        case Format::Q4_K: return quantized_tile<Format::Q4_K, R>(tile, w, x, first, out);
        case Format::Q5_K: return quantized_tile<Format::Q5_K, R>(tile, w, x, first, out);
        case Format::Q6_K: return quantized_tile<Format::Q6_K, R>(tile, w, x, first, out);
        case Format::I4: return grouped_tile<false, R>(tile, w, x, first, out);
        case Format::I4_Z: return grouped_tile<true, R>(tile, w, x, first, out);
        case Format::I8: return byte_tile<R>(tile, w, x, first, out);
        case Format::F16: return float_tile<HalfColumns, R>(tile.data, num_steps, x.floats + at, out);
        case Format::F32: return float_tile<Float32Sums, R>(tile.data, num_steps, x.floats + at, out);
        case Format::BF16:
            if (kHasBf16 && bf16) return float_tile<PairedSums, R>(tile.data, num_steps, (const PairedSums::Row*)(x.bf16 + at), out);
            return float_tile<ExpandedSums, R>(tile.data, num_steps, x.floats + at, out);
    }
}

typedef void (*TileFunction)(const Tile&, const LinearView&, const Activations&, bool, int, float*);

// For every number of rows up to kMaxGroup: a remainder that were padded, or cut once more, would unpack weights in vain.
static INLINE TileFunction tile_function(int num_rows) {
    static constexpr TileFunction kFunctions[] = {
        tile_of<1>, tile_of<2>, tile_of<3>, tile_of<4>,
#if defined(__AVX2__)
        tile_of<5>, tile_of<6>, tile_of<7>, tile_of<8>,
#endif
#if defined(__AVX512F__)
        tile_of<9>, tile_of<10>, tile_of<11>, tile_of<12>, tile_of<13>, tile_of<14>, tile_of<15>, tile_of<16>,
#endif
    };
    return kFunctions[num_rows - 1];
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

// Of block b of a row, its sixteen first and sixteen last numbers; zeros behind the row's end.
static INLINE void load_block(const float* x, int num_in, int b, F& low, F& high) {
    const int n = num_in - b * kBlock;
    const float* at = x + b * kBlock;
    low = n >= 16 ? load(at) : load_n(at, n > 0 ? n : 0);
    high = n >= 32 ? load(at + 16) : load_n(at + 16, n > 16 ? n - 16 : 0);
}

static void prepare_int8(const float* x, int num_in, int num_blocks, RowGroup group, int row, Activations to) {
    const int R = group.num_rows;
    for (int b = 0; b < num_blocks; ++b) {
        F low, high;
        load_block(x, num_in, b, low, high);
        const float greatest = max_magnitude(low, high);
        const size_t place = size_t(group.first) * num_blocks + size_t(b) * R + row;
        const float scale = greatest * (1.0f / 127.0f);
        const float inverse = greatest > 0.0f ? 127.0f / greatest : 0.0f;
        const HalfSums sums = quantize32(low, high, inverse, to.int8 + place * kBlock);
        to.scales[place] = scale;
        to.negative_sums[place] = -(sums.first + sums.second);
        to.first_sums[place] = -sums.first;
        to.scaled_sums[place] = scale * float(sums.first + sums.second);
    }
}

static void prepare_whole_int8(const float* x, int num_in, int num_blocks, RowGroup group, int row, Activations to) {
    float greatest = 0.0f;
    F low, high;
    for (int b = 0; b < num_blocks; ++b) {
        load_block(x, num_in, b, low, high);
        const float here = max_magnitude(low, high);
        if (!(here <= greatest)) greatest = here;  // and what is not a number stays
        if (greatest != greatest) break;
    }
    const float inverse = greatest > 0.0f ? 127.0f / greatest : 0.0f;
    int32_t sum = 0;
    for (int b = 0; b < num_blocks; ++b) {
        load_block(x, num_in, b, low, high);
        const size_t place = size_t(group.first) * num_blocks + size_t(b) * group.num_rows + row;
        const HalfSums sums = quantize32(low, high, inverse, to.whole_int8 + place * kBlock);
        sum += sums.first + sums.second;
    }
    to.whole_scales[group.first + row] = greatest * (1.0f / 127.0f);
    to.whole_sums[group.first + row] = -sum;
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

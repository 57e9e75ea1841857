// Products of a group of prepared rows with a tile of weights.
//
// Knows tiles and prepared rows. Does not know what follows a product. A row's sums are formed in the same order however many rows
// share a group, so its bits do not depend on its company.
#pragma once

#include "kernels.h"
#include "simd.h"
#include "units.h"

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
// keep their sums in registers over a whole column. And whether integer sums start from what takes the offset of the weights off,
// or have it added in the end, where there are no registers for it until then.
#if defined(__AVX512F__)
constexpr int kMaxGroup = 16, kRowsTogether = 2, kRowsInRegisters = 16;
constexpr bool kStartsFromOffset = true;
#elif defined(__AVX2__)
constexpr int kMaxGroup = 8, kRowsTogether = 4, kRowsInRegisters = 4;
constexpr bool kStartsFromOffset = false;
#else
constexpr int kMaxGroup = 4, kRowsTogether = 1, kRowsInRegisters = 4;
constexpr bool kStartsFromOffset = true;
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

// Weights that memory is asked for while others are multiplied: so many bytes at each block.
struct Ahead {
    const uint8_t* next = nullptr;
    int bytes_per_block = 0;

    INLINE void ask_for_next() {
        if (!next) return;
        for (int i = 0; i < bytes_per_block; i += 64) prefetch(next + i);
        next += bytes_per_block;
    }
};

// The next tile, where it lies behind this one.
static INLINE Ahead expected_behind(const Tile& tile, const LinearView& w) {
    if (&tile + 1 == w.tiles + w.num_tiles) return {};
    const ptrdiff_t bytes = (&tile)[1].data - tile.data;
    if (bytes <= 0 || bytes > ptrdiff_t(w.num_blocks) * 1024) return {};
    return {tile.data + bytes, int(bytes / w.num_blocks)};
}

// A tile's results: [R][16].

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
    constexpr int32_t kTimes = kOffset == kOfBytes ? kByteBias : kOffset;
    if constexpr (kTimes == 0) return iset1(0);
    else return iset1_times<kTimes>(negative_sum);
}

// total[r] += what one block of sixteen columns gives with R rows.
template <int R, int kBits, int kOffset, bool kHasMinima>
static INLINE void add_block(B (&x)[8], F d, F minimum, const BlockRows& rows, F* total) {
    in_row_pieces<R, kRowsTogether>([&](int first, auto count) {
        constexpr int N = count.value;
        I s[N];
        if constexpr (kBits < 8 && R > kRowsTogether) leave_in_memory(x);
        UNROLL for (int i = 0; i < N; ++i) s[i] = kStartsFromOffset ? start<kOffset>(rows.sums[first + i]) : iset1(0);
        dot_rows<kBits, 8, N>(s, x, rows.a + first * kBlock, kBlock);
        UNROLL for (int i = 0; i < N; ++i) {
            const int r = first + i;
            if constexpr (!kStartsFromOffset) s[i] = add(s[i], start<kOffset>(rows.sums[r]));
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

template <int R, int kBytes>
static INLINE void prefetch_ahead(const uint8_t* w) {
    constexpr int kAhead = R >= kManyRows ? kPrefetchBytes : kFewRowsPrefetchBytes;
    if constexpr (kAhead > 0) {
        UNROLL for (int i = 0; i < kBytes; i += 64) prefetch(w + kAhead + i);
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
        const int8_t* a = x.whole_int8 + size_t(first) * view.num_blocks * kBlock + piece * 2 * kBlock;
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
                    sum[r][j % kChains] = dot_biased_bytes(sum[r][j % kChains], column, a + r * 2 * kBlock + 4 * j);
            }
            w += 512;
            a += b % 2 == 0 ? kBlock : (2 * R - 1) * kBlock;
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
            if constexpr (N < 12) prefetch_ahead<N, 32 * sizeof(typename Sums::Column)>((const uint8_t*)w);
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
            if (kHasBf16 && bf16) {
                const uint16_t* rows = x.bf16 + size_t(first) * w.num_blocks * kBlock;
                return float_tile<PairedSums, R>(tile.data, num_steps, (const PairedSums::Row*)rows, out);
            }
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

#if !defined(__AMX_TILE__) && (!defined(__AVX2__) || defined(__AVX512F__))

struct ProductTiles {};  // what AMX holds

// Products of one tile of columns after another with groups of rows. kStripe: groups that meet a tile before the next one's turn.
// kGroupsTogether: those of them that are multiplied by one call.
class TileProducts {
  public:
    static constexpr int kGroupsTogether = 1, kStripe = 1 << 20, kRowsApart = kMaxGroup;

    TileProducts(const LinearView& w, const Activations& x, bool bf16, const RowGroup* groups, int, ProductTiles&, int)
        : w_(w), x_(x), bf16_(bf16), groups_(groups) {}
    // What follows is with this tile, and groups from `first` on.
    void take(const Tile& tile, int, int) { tile_ = &tile; }
    // sums: [count][kMaxGroup][16], of groups from `first` on.
    void multiply(int first, int, float* sums) {
        tile_function(groups_[first].num_rows)(*tile_, w_, x_, bf16_, groups_[first].first, sums);
    }

  private:
    const LinearView& w_;
    const Activations& x_;
    const bool bf16_;
    const RowGroup* groups_;
    const Tile* tile_ = nullptr;
};

#endif

}  // namespace HEADRACE_ISA
}  // namespace headrace

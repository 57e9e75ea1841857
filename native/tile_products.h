// Products of groups of rows with a tile of columns by AMX.
//
// Knows prepared rows, units of weights and tile registers. Does not know what follows a product. Blocks' sums are integers, exact in
// any order, and they are combined as `products.h` combines them: the bits are those of the rows one by one. BF16 is always
// multiplied here, however few the rows: tile products round in an order of their own.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "memory.h"
#include "group_products.h"
#include "tiles.h"

#if defined(__AMX_TILE__)

namespace headrace {
namespace HEADRACE_ISA {

// The integers of a tile of blocks, signed, and what they are multiples of; unpacked once for many groups.
struct UnpackedColumns {
    int8_t* values;  // [num_blocks][8][16][4]
    float* scales;   // [num_blocks][16]
    float* others;   // likewise: the minima, or the scales of the second halves

    static size_t num_bytes(int num_blocks) { return size_t(num_blocks) * (512 + 64 + 64); }
    UnpackedColumns(uint8_t* memory, int num_blocks)
        : values((int8_t*)memory), scales((float*)(memory + size_t(num_blocks) * 512)), others(scales + size_t(num_blocks) * 16) {}
};

template <int kOffset>
static INLINE void store_signed(const B* x, int8_t* to) {
    const __m512i offset = _mm512_set1_epi8(char(kOffset == kOfBytes ? kByteBias : kOffset));
    UNROLL for (int j = 0; j < 8; ++j)
        _mm512_store_si512(to + 64 * j, kOffset == 0 ? x[j].v : _mm512_sub_epi8(x[j].v, offset));
}

template <Format kFormat>
static void unpack_units(const Tile& tile, int num_blocks, const UnpackedColumns& to) {
    typedef Unit<kFormat> U;
    const uint8_t* w = tile.data;
    for (int b = 0; b < num_blocks; ++b) {
        const int h = b % U::kBlocks;
        UNROLL for (int i = 0; i < U::kBytes / U::kBlocks; i += 64) prefetch(w + kPrefetchBytes + U::kBytes / U::kBlocks * h + i);
        B x[8];
        U::unpack(w, h, x);
        store_signed<U::kOffset>(x, to.values + size_t(b) * 512);
        store(to.scales + size_t(b) * 16, U::scale(w, h));
        if constexpr (U::kHasTwoScales) store(to.others + size_t(b) * 16, U::second_scale(w, h));
        else if constexpr (U::kHasMinima) store(to.others + size_t(b) * 16, U::minimum(w, h));
        if (h == U::kBlocks - 1) w += U::kBytes;
    }
}

template <bool kHasZeros>
static void unpack_groups(const Tile& tile, int num_blocks, const UnpackedColumns& to) {
    const int num_groups = (num_blocks + tile.group_blocks - 1) / tile.group_blocks;
    const size_t scale_bytes = tile.scale_type == ScaleType::F32 ? 64 : 32;
    const uint8_t* w = tile.data;
    const uint8_t* scales = w + size_t(num_blocks) * 256;
    const uint8_t* zeros = scales + size_t(num_groups) * scale_bytes;
    for (int b = 0; b < num_blocks; ++b, w += 256) {
        UNROLL for (int i = 0; i < 256; i += 64) prefetch(w + kPrefetchBytes + i);
        B x[8];
        unpack_nibbles(w, x);
        store_signed<kHasZeros ? 0 : 8>(x, to.values + size_t(b) * 512);
        const size_t group = size_t(b / tile.group_blocks);
        const F d = load_scales(scales + group * scale_bytes, tile.scale_type);
        store(to.scales + size_t(b) * 16, d);
        if (kHasZeros) store(to.others + size_t(b) * 16, zero() - d * load_unsigned_bytes(zeros + group * 16));
    }
}

enum class Sums : uint8_t { PLAIN, MINIMA, HALVES };  // how blocks' integers become numbers

// out[r] = the sums of rows r with sixteen columns. Rows behind the group's last are computed from what lies there, for nobody.
// num_tile_rows: of the tiles as they are shaped, no fewer than there are rows.
template <Sums kSums>
static void tile_of_blocks(const UnpackedColumns& columns, const Activations& x, int first, int num_rows, int num_tile_rows,
                           int num_blocks, Ahead ahead, float* out) {
    constexpr bool kInHalves = kSums == Sums::HALVES;  // then a block takes two products
    constexpr int kPart = kInHalves ? kBlock / 2 : kBlock;
    alignas(64) int32_t integers[2][kMaxGroup * 16];
    if (num_tile_rows < kMaxGroup) std::memset(integers, 0, sizeof integers);
    BlockRows rows(x, size_t(first) * num_blocks);
    const int8_t *a = rows.a, *w = columns.values;
    const float *scales = columns.scales, *others = columns.others;
    F total[kMaxGroup];
    UNROLL for (int r = 0; r < kMaxGroup; ++r) total[r] = zero();

    const std::integral_constant<int, 0> even;
    const std::integral_constant<int, 1> odd;
    const auto multiply = [&](auto parity) INLINE_LAMBDA {
        constexpr int kTile = parity.value, kRows = 4 + kTile, kColumns = 6 + kTile;
        tile_load<kRows>(a, kBlock);
        tile_load<kColumns>(w, 64);
        tile_zero<kTile>();
        add_product_of_signed<kTile, kRows, kColumns>();
        a += !kInHalves ? num_rows * kBlock : kTile == 1 ? num_rows * kBlock - kPart : kPart;
        w += kPart * 16;
    };
    // While tiles are in use a processor multiplies and converts sixteen lanes on one of its ports only, and adds on two. So three of
    // four integers become numbers by additions: of the bits of 1.5 * 2^23, whose last is worth one, and of its negative.
    const auto number = [&](int which, int r) INLINE_LAMBDA {
        const __m512i stored = _mm512_load_si512(integers[which] + r * 16);
        if (r % 4 == 3) return to_float({stored});
        const __m512i shifted = _mm512_add_epi32(stored, _mm512_set1_epi32(0x4B400000));
        return F{_mm512_sub_ps(_mm512_castsi512_ps(shifted), _mm512_set1_ps(12582912.0f))};
    };
    const auto add = [&](int which) INLINE_LAMBDA {
        const F d = load(scales);
        const F other = kSums == Sums::PLAIN ? zero() : load(others);
        UNROLL for (int r = 0; r < kMaxGroup; ++r) {
            if constexpr (kInHalves) {
                total[r] = fma(fma(number(1, r), other, number(0, r) * d), set1(rows.scales[r]), total[r]);
            } else {
                total[r] = fma(number(which, r), d * set1(rows.scales[r]), total[r]);
                if constexpr (kSums == Sums::MINIMA) total[r] = fma(other, set1(rows.scaled_sums[r]), total[r]);
            }
            asm volatile("" : "+v"(total[r].v));  // row by row: both kinds of work are then at hand
        }
        rows.advance(num_rows);
        scales += 16;
        others += 16;
        ahead.ask_for_next();
    };
    // Tiles and lanes compute at the same time: a product is stored when the next one is under way, and what is added was stored
    // before that.
    const int num_products = kInHalves ? 2 * num_blocks : num_blocks;
    multiply(even);
    multiply(odd);
    tile_store<0>(integers[0], 64);
    for (int p = 2; p < num_products; p += 2) {
        multiply(even);
        tile_store<1>(integers[1], 64);
        add(0);
        multiply(odd);
        tile_store<0>(integers[0], 64);
        if constexpr (!kInHalves) add(1);
    }
    tile_store<1>(integers[1], 64);
    add(0);
    if constexpr (!kInHalves) add(1);
    UNROLL for (int r = 0; r < kMaxGroup; ++r) store(out + r * 16, total[r]);
}

// Sums over all of K in the tiles themselves. A step takes 64 bytes of each row and 16 lines of the columns.
struct ByteSteps {
    template <int kSums, int kRows, int kColumns>
    static INLINE void add() {
        add_product_of_biased<kSums, kRows, kColumns>();
    }
};
struct Bf16Steps {
    template <int kSums, int kRows, int kColumns>
    static INLINE void add() {
        add_product_of_bf16<kSums, kRows, kColumns>();
    }
};

// N groups of sixteen rows, whose first row's bytes are at `rows`; or, where there is one and it is left over, that.
template <class Steps, int N, bool kIsRest>
static void sum_steps(const uint8_t* columns, const uint8_t* rows, int num_rows, int num_steps, void* sums) {
    constexpr int kSums = kIsRest ? 5 : 0, kRows = kIsRest ? 7 : 4, kColumns = 6;
    const size_t apart = size_t(num_steps) * kMaxGroup * 64;
    tile_zero<kSums>();
    if constexpr (N > 1) tile_zero<1>();
    if constexpr (N > 2) tile_zero<2>();
    if constexpr (N > 3) tile_zero<3>();
    for (int step = 0; step < num_steps; ++step) {
        if constexpr (N == 1) {
            UNROLL for (int i = 0; i < 1024; i += 64) prefetch(columns + kFewRowsPrefetchBytes + i);
        }
        tile_load<kColumns>(columns, 64);
        const auto add = [&](auto group) INLINE_LAMBDA {
            tile_load<kRows>(rows + apart * group.value, 64);
            Steps::template add<kSums + group.value, kRows, kColumns>();
        };
        add(std::integral_constant<int, 0>());
        if constexpr (N > 1) add(std::integral_constant<int, 1>());
        if constexpr (N > 2) add(std::integral_constant<int, 2>());
        if constexpr (N > 3) add(std::integral_constant<int, 3>());
        columns += 1024;
        rows += num_rows * 64;
    }
    float* to = (float*)sums;
    tile_store<kSums>(to, 64);
    if constexpr (N > 1) tile_store<1>(to + kMaxGroup * 16, 64);
    if constexpr (N > 2) tile_store<2>(to + 2 * kMaxGroup * 16, 64);
    if constexpr (N > 3) tile_store<3>(to + 3 * kMaxGroup * 16, 64);
}

// The tile registers that products want, shaped when the kind of product changes.
class ProductTiles {
  public:
    enum class Kind : uint8_t { NONE, BLOCKS, HALVES, STEPS };

    // `num_rows`: of tiles that belong to blocks; `num_left`: of the group that has fewer than sixteen, 0: none.
    void want(Kind kind, int num_rows, int num_left) {
        if (kind == kind_) return;
        kind_ = kind;
        TileShapes shapes;
        const auto with = [&](std::initializer_list<int> tiles, int num_rows, int row_bytes) {
            for (int tile : tiles) shapes.with(tile, num_rows, row_bytes);
        };
        if (kind == Kind::STEPS) {
            with({0, 1, 2, 3, 4, 6}, kMaxGroup, 64);
            with({5, 7}, num_left ? num_left : kMaxGroup, 64);
        } else {
            const int row_bytes = kind == Kind::BLOCKS ? kBlock : kBlock / 2;
            with({0, 1}, num_rows, 64);
            with({4, 5}, num_rows, row_bytes);
            with({6, 7}, row_bytes / 4, 64);
        }
        tiles_.shape(shapes);
    }

  private:
    TilesInUse tiles_;
    Kind kind_ = Kind::NONE;
};

// Memory of this thread; `which`: of two products side by side.
static uint8_t* unpacked_memory(int which, int num_blocks) {
    static thread_local Scratch memory[2];
    return memory[which].reserve(UnpackedColumns::num_bytes(num_blocks));
}

// Products of one tile of columns after another with groups of rows. kStripe: groups that meet a tile before the next one's turn.
// kGroupsTogether: those of them that are multiplied by one call.
class TileProducts {
  public:
    static constexpr int kGroupsTogether = 4, kStripe = 16, kRowsApart = 8 * kMaxGroup;

    // `which`: of those that share the tiles.
    TileProducts(const LinearView& w, const Activations& x, bool bf16, const RowGroup* groups, int num_groups, ProductTiles& tiles,
                 int which)
        : w_(w), x_(x), bf16_(bf16), groups_(groups), tiles_(tiles), which_(which),
          num_left_(groups[num_groups - 1].num_rows % kMaxGroup), num_tile_rows_(groups[0].num_rows) {}

    // What follows is with this tile, and groups from `first` to `end`.
    void take(const Tile& tile, int first, int end) {
        tile_ = &tile;
        kind_ = kind_of(tile);
        const bool is_unpacked = kind_ == Kind::BLOCKS || kind_ == Kind::HALVES;
        bool is_wanted = false;
        for (int g = first; g < end && is_unpacked; ++g) is_wanted |= groups_[g].num_rows >= kFewestTileRows;
        if (is_wanted) unpack();
        ahead_ = expected_behind(tile, w_);
    }

    // sums: [count][kMaxGroup][16], of groups from `first` on.
    void multiply(int first, int count, float* sums) {
        const bool is_bf16 = tile_->format == Format::BF16;
        int num_full = 0;
        if (kind_ == Kind::STEPS) {
            while (num_full < count && groups_[first + num_full].num_rows == kMaxGroup) ++num_full;
            if (num_full) multiply_steps(first, num_full, sums);
        }
        for (int g = num_full; g < count; ++g) {
            const RowGroup& group = groups_[first + g];
            float* to = sums + g * kMaxGroup * 16;
            if (kind_ == Kind::NONE || (group.num_rows < kFewestTileRows && !is_bf16))
                tile_function(group.num_rows)(*tile_, w_, x_, bf16_, group.first, to);
            else if (kind_ == Kind::STEPS) multiply_steps(first + g, 1, to);
            else multiply_blocks(group, to);
        }
    }

  private:
    typedef ProductTiles::Kind Kind;

    Kind kind_of(const Tile& tile) const {
        switch (tile.format) {
            case Format::Q6_K: return Kind::HALVES;
            case Format::I8: return Kind::STEPS;
            case Format::BF16: return bf16_ ? Kind::STEPS : Kind::NONE;
            case Format::F16:
            case Format::F32: return Kind::NONE;
            default: return Kind::BLOCKS;
        }
    }

    void unpack() {
        columns_ = UnpackedColumns(unpacked_memory(which_, w_.num_blocks), w_.num_blocks);
        const int n = w_.num_blocks;
        has_minima_ = false;
        switch (tile_->format) {
            case Format::Q4_0: return unpack_units<Format::Q4_0>(*tile_, n, columns_);
            case Format::Q5_0: return unpack_units<Format::Q5_0>(*tile_, n, columns_);
            case Format::Q8_0: return unpack_units<Format::Q8_0>(*tile_, n, columns_);
            case Format::Q6_K: return unpack_units<Format::Q6_K>(*tile_, n, columns_);
            case Format::I4: return unpack_groups<false>(*tile_, n, columns_);
            default: break;
        }
        has_minima_ = true;
        switch (tile_->format) {
            case Format::Q4_1: return unpack_units<Format::Q4_1>(*tile_, n, columns_);
            case Format::Q5_1: return unpack_units<Format::Q5_1>(*tile_, n, columns_);
            case Format::Q4_K: return unpack_units<Format::Q4_K>(*tile_, n, columns_);
            case Format::Q5_K: return unpack_units<Format::Q5_K>(*tile_, n, columns_);
            default: return unpack_groups<true>(*tile_, n, columns_);
        }
    }

    void multiply_blocks(const RowGroup& group, float* sums) {
        tiles_.want(kind_, num_tile_rows_, num_left_);
        const auto function = kind_ == Kind::HALVES ? tile_of_blocks<Sums::HALVES>
                              : has_minima_         ? tile_of_blocks<Sums::MINIMA>
                                                    : tile_of_blocks<Sums::PLAIN>;
        function(columns_, x_, group.first, group.num_rows, num_tile_rows_, w_.num_blocks, ahead_, sums);
        ahead_ = {};
    }

    void multiply_steps(int first, int count, float* sums) {
        tiles_.want(Kind::STEPS, num_tile_rows_, num_left_);
        const RowGroup& group = groups_[first];
        const size_t row = size_t(group.first);
        if (tile_->format == Format::BF16) {
            sum_groups<Bf16Steps>((const uint8_t*)x_.bf16 + row * w_.num_blocks * 64, group.num_rows, w_.num_blocks, count, sums);
            return;
        }
        sum_groups<ByteSteps>((const uint8_t*)x_.whole_int8 + row * w_.num_blocks * kBlock, group.num_rows, w_.num_blocks / 2, count,
                              sums);
        const F d = load((const float*)(tile_->data + size_t(w_.num_blocks) * 512));
        for (int g = 0; g < count; ++g) {
            float* of_group = sums + g * kMaxGroup * 16;
            const int num_rows = groups_[first + g].num_rows;
            for (int r = 0; r < num_rows; ++r) {
                const size_t at = row + size_t(g * kMaxGroup + r);
                const I sum = {_mm512_loadu_si512(of_group + r * 16)};
                store(of_group + r * 16, to_float(add(sum, start<kOfBytes>(x_.whole_sums[at]))) * (d * set1(x_.whole_scales[at])));
            }
        }
    }

    template <class Steps>
    void sum_groups(const uint8_t* rows, int num_rows, int num_steps, int count, float* sums) {
        const uint8_t* columns = tile_->data;
        if (num_rows < kMaxGroup) return sum_steps<Steps, 1, true>(columns, rows, num_rows, num_steps, sums);
        switch (count) {
            case 1: return sum_steps<Steps, 1, false>(columns, rows, num_rows, num_steps, sums);
            case 2: return sum_steps<Steps, 2, false>(columns, rows, num_rows, num_steps, sums);
            case 3: return sum_steps<Steps, 3, false>(columns, rows, num_rows, num_steps, sums);
            default: return sum_steps<Steps, 4, false>(columns, rows, num_rows, num_steps, sums);
        }
    }

    const LinearView& w_;
    const Activations& x_;
    const bool bf16_;
    const RowGroup* groups_;
    ProductTiles& tiles_;
    const int which_, num_left_, num_tile_rows_;
    const Tile* tile_ = nullptr;
    Kind kind_ = Kind::NONE;
    bool has_minima_ = false;
    Ahead ahead_;
    UnpackedColumns columns_{nullptr, 0};
};

}  // namespace HEADRACE_ISA
}  // namespace headrace

#endif

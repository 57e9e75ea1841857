// Products of groups of rows with a tile of columns by AVX2. Where several groups meet a tile, its integers are unpacked once for
// all of them, and four rows at a time pass over the whole tile: more have no registers for their sums.
//
// Knows units of weights and prepared rows. Does not know what follows a product. The bits are those of `group_products.h`.
#pragma once

#include <utility>

#include "group_products.h"
#include "memory.h"

#if defined(__AVX2__) && !defined(__AVX512F__)

namespace headrace {
namespace HEADRACE_ISA {

struct UnpackedBlock {
    B integers[8];
    float scales[16], minima[16];
};

template <Format kFormat>
static void unpack_units(const Tile& tile, int num_blocks, UnpackedBlock* to) {
    typedef Unit<kFormat> U;
    const uint8_t* w = tile.data;
    for (int b = 0; b < num_blocks; ++b) {
        const int h = b % U::kBlocks;
        U::unpack(w, h, to[b].integers);
        store(to[b].scales, U::scale(w, h));
        if constexpr (U::kHasMinima) store(to[b].minima, U::minimum(w, h));
        if (h == U::kBlocks - 1) w += U::kBytes;
    }
}

template <bool kHasZeros>
static void unpack_groups(const Tile& tile, int num_blocks, UnpackedBlock* to) {
    const int num_groups = (num_blocks + tile.group_blocks - 1) / tile.group_blocks;
    const size_t scale_bytes = tile.scale_type == ScaleType::F32 ? 64 : 32;
    const uint8_t* scales = tile.data + size_t(num_blocks) * 256;
    const uint8_t* zeros = scales + size_t(num_groups) * scale_bytes;
    for (int b = 0; b < num_blocks; ++b) {
        const size_t group = size_t(b / tile.group_blocks);
        const F d = load_scales(scales + group * scale_bytes, tile.scale_type);
        unpack_nibbles(tile.data + size_t(b) * 256, to[b].integers);
        store(to[b].scales, d);
        if (kHasZeros) store(to[b].minima, zero() - d * load_unsigned_bytes(zeros + group * 16));
    }
}

// sums[r] = the sums of all rows of a group. `ahead`: weights that memory is asked for meanwhile.
template <int kBits, int kOffset, bool kHasMinima>
static void multiply_unpacked(UnpackedBlock* blocks, int num_blocks, const Activations& x, const RowGroup& group, Ahead ahead,
                              float* sums) {
    const auto pass = [&](int first, auto count) {
        constexpr int N = count.value;
        BlockRows rows(x, size_t(group.first) * num_blocks + size_t(first));
        F total[N];
        UNROLL for (int r = 0; r < N; ++r) total[r] = zero();
        for (int b = 0; b < num_blocks; ++b) {
            UnpackedBlock& block = blocks[b];
            ahead.ask_for_next();
            const F minimum = kHasMinima ? load(block.minima) : zero();
            add_block<N, kBits, kOffset, kHasMinima>(block.integers, load(block.scales), minimum, rows, total);
            rows.advance(group.num_rows);
        }
        ahead = {};
        UNROLL for (int r = 0; r < N; ++r) store(sums + (first + r) * 16, total[r]);
    };
    static_assert(kRowsTogether == 4, "remainders are of one to three");
    int first = 0;
    for (; first + 4 <= group.num_rows; first += 4) pass(first, std::integral_constant<int, 4>());
    switch (group.num_rows - first) {
        case 1: return pass(first, std::integral_constant<int, 1>());
        case 2: return pass(first, std::integral_constant<int, 2>());
        case 3: return pass(first, std::integral_constant<int, 3>());
        default: return;
    }
}

struct ProductTiles {};  // what AMX holds

class TileProducts {
  public:
    static constexpr int kGroupsTogether = 1, kStripe = 1 << 20, kRowsApart = kMaxGroup;

    TileProducts(const LinearView& w, const Activations& x, bool bf16, const RowGroup* groups, int, ProductTiles&, int which)
        : w_(w), x_(x), bf16_(bf16), groups_(groups), which_(which) {}
    // What follows is with this tile, and groups from `first` on.
    void take(const Tile& tile, int first, int end) {
        tile_ = &tile;
        multiply_ = nullptr;
        if (end - first > 1) unpack();
        ahead_ = expected_behind(tile, w_);
    }
    // sums: [count][kMaxGroup][16], of groups from `first` on.
    void multiply(int first, int, float* sums) {
        const RowGroup& group = groups_[first];
        if (multiply_) multiply_(blocks_, w_.num_blocks, x_, group, std::exchange(ahead_, Ahead{}), sums);
        else tile_function(group.num_rows)(*tile_, w_, x_, bf16_, group.first, sums);
    }

  private:
    typedef void (*Multiply)(UnpackedBlock*, int, const Activations&, const RowGroup&, Ahead, float*);

    void unpack() {
        switch (tile_->format) {
            case Format::Q4_0: return unpack_by(unpack_units<Format::Q4_0>, multiply_unpacked<4, 8, false>);
            case Format::Q4_1: return unpack_by(unpack_units<Format::Q4_1>, multiply_unpacked<4, 0, true>);
            case Format::Q5_0: return unpack_by(unpack_units<Format::Q5_0>, multiply_unpacked<5, 16, false>);
            case Format::Q5_1: return unpack_by(unpack_units<Format::Q5_1>, multiply_unpacked<5, 0, true>);
            case Format::Q4_K: return unpack_by(unpack_units<Format::Q4_K>, multiply_unpacked<4, 0, true>);
            case Format::Q5_K: return unpack_by(unpack_units<Format::Q5_K>, multiply_unpacked<5, 0, true>);
            case Format::I4: return unpack_by(unpack_groups<false>, multiply_unpacked<4, 8, false>);
            case Format::I4_Z: return unpack_by(unpack_groups<true>, multiply_unpacked<4, 0, true>);
            default: return;
        }
    }
    void unpack_by(void (*unpack)(const Tile&, int, UnpackedBlock*), Multiply multiply) {
        static thread_local Scratch memory[2];
        blocks_ = (UnpackedBlock*)memory[which_].reserve(size_t(w_.num_blocks) * sizeof(UnpackedBlock));
        unpack(*tile_, w_.num_blocks, blocks_);
        multiply_ = multiply;
    }

    const LinearView& w_;
    const Activations& x_;
    const bool bf16_;
    const RowGroup* groups_;
    const int which_;
    const Tile* tile_ = nullptr;
    UnpackedBlock* blocks_ = nullptr;
    Multiply multiply_ = nullptr;
    Ahead ahead_;
};

}  // namespace HEADRACE_ISA
}  // namespace headrace

#endif

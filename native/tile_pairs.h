// One row's products with two tiles of weights at once, by AVX2: a core reads a fifth more from two places than from one.
//
// Knows units of weights and prepared rows. Does not know what follows a product. The bits are those of `group_products.h`.
#pragma once

#include "group_products.h"

namespace headrace {
namespace HEADRACE_ISA {

struct TilePair {
    const Tile &first, &second;
    float *first_sums, *second_sums;  // [16] each
};

#if defined(__AVX2__) && !defined(__AVX512F__)

// Integers of less than a byte take so many instructions for a line that the next lines are not in sight; bytes do not.
template <int kBits>
constexpr int kPairPrefetchBytes = kBits < 8 ? 1024 : 0;

template <Format kFormat>
static void quantized_pair(const TilePair& pair, const LinearView& view, const Activations& x, int row) {
    typedef Unit<kFormat> U;
    constexpr int kStep = U::kIsSuper ? 1 : U::kBlocks;  // blocks
    const uint8_t* units[2] = {pair.first.data, pair.second.data};
    F total[2][1] = {{zero()}, {zero()}};
    BlockRows rows(x, size_t(row) * view.num_blocks);
    for (int b = 0; b < view.num_blocks; b += kStep) {
        const int first = U::kIsSuper ? b % U::kBlocks : 0;
        const BlockRows before = rows;
        UNROLL for (int i = 0; i < 2; ++i) {
            rows = before;
            if constexpr (kPairPrefetchBytes<U::kBits> > 0) {
                constexpr int kBytes = U::kBytes / U::kBlocks;
                UNROLL for (int p = 0; p < kBytes * kStep; p += 64) prefetch(units[i] + kPairPrefetchBytes<U::kBits> + kBytes * first + p);
            }
            UNROLL for (int h = 0; h < kStep; ++h) {
                add_block_of_unit<kFormat, 1>(units[i], first + h, rows, total[i]);
                rows.advance(1);
            }
            if (first + kStep == U::kBlocks) units[i] += U::kBytes;
        }
    }
    store(pair.first_sums, total[0][0]);
    store(pair.second_sums, total[1][0]);
}

static void multiply_pair(const TilePair& pair, const LinearView& view, const Activations& x, bool bf16, int row) {
    if (pair.first.format == pair.second.format) {
        switch (pair.first.format) {
            case Format::Q4_0: return quantized_pair<Format::Q4_0>(pair, view, x, row);
            case Format::Q4_1: return quantized_pair<Format::Q4_1>(pair, view, x, row);
            case Format::Q5_0: return quantized_pair<Format::Q5_0>(pair, view, x, row);
            case Format::Q5_1: return quantized_pair<Format::Q5_1>(pair, view, x, row);
            case Format::Q8_0: return quantized_pair<Format::Q8_0>(pair, view, x, row);
            case Format::Q4_K: return quantized_pair<Format::Q4_K>(pair, view, x, row);
            case Format::Q5_K: return quantized_pair<Format::Q5_K>(pair, view, x, row);
            case Format::Q6_K: return quantized_pair<Format::Q6_K>(pair, view, x, row);
            default: break;
        }
    }
    tile_of<1>(pair.first, view, x, bf16, row, pair.first_sums);
    tile_of<1>(pair.second, view, x, bf16, row, pair.second_sums);
}

// False where there are more rows than one, or no gain: nothing is done then.
static INLINE bool multiplies_only_row(const TilePair& pair, const LinearView& view, const Activations& x, bool bf16,
                                       const RowGroup* groups, int num_groups) {
    if (num_groups != 1 || groups[0].num_rows != 1) return false;
    multiply_pair(pair, view, x, bf16, groups[0].first);
    return true;
}

#else

static INLINE bool multiplies_only_row(const TilePair&, const LinearView&, const Activations&, bool, const RowGroup*, int) {
    return false;
}

#endif

}  // namespace HEADRACE_ISA
}  // namespace headrace

// The processor's tile registers (AMX): eight of sixteen rows of 64 bytes, which it multiplies with one another.
//
// Knows instructions. Does not know what the numbers mean. Only where the compiler is told to use them.
#pragma once

#if defined(__AMX_BF16__)

#include <cstddef>
#include <cstdint>

#include "simd.h"

namespace headrace {
namespace HEADRACE_ISA {

// What each of the eight holds; the processor's own layout.
struct TileShapes {
    uint8_t palette = 1, first_row = 0, unused[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

inline thread_local bool has_whole_tiles = false;

// All tiles whole, on this thread, from now on: telling the processor takes as long as a hundred products' rows.
INLINE void use_whole_tiles() {
    if (has_whole_tiles) return;
    static const TileShapes shapes;
    asm volatile("ldtilecfg %0" : : "m"(shapes));
    has_whole_tiles = true;
}

template <int kTile>
INLINE void clear_tile() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kTile>
INLINE void load_tile(const void* rows, size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
INLINE void store_tile(void* rows, size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
}
// sums[row][column] += pairs of BF16: rows [row][pair][2], columns [pair][column][2]. The sixteen products of all pairs' first
// are summed in order, those of their second likewise, and the sum of the two is added.
template <int kSums, int kRows, int kColumns>
INLINE void multiply_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kRows), "i"(kColumns));
}

}  // namespace HEADRACE_ISA
}  // namespace headrace

#endif

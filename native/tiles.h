// The tile registers of AMX: eight of sixteen rows of 64 bytes.
//
// Knows instructions. Does not know what is multiplied. Tiles belong to a thread, and the system saves them whenever it takes the
// processor from a thread that uses them: a kernel holds them while it runs, and lets go of them.
//
// A product of tiles adds, to each of R x 16 sums, four (int8) or two (BF16) neighbours along K for each 32-bit word of a row:
//   sums    [R][16] int32 or float32
//   rows    [R][words] of four bytes or two BF16, neighbours along K
//   columns [words][16] of the same: what a tile of weights holds (`kernels.h`)
#pragma once

#include "simd.h"

#if defined(__AMX_TILE__)

namespace headrace {
namespace HEADRACE_ISA {

constexpr int kFewestTileRows = 9;  // fewer of a group are done without tiles: their operands cost as much as sixteen's

#define INLINE_LAMBDA __attribute__((always_inline))

// How a kernel wants its tiles; all are zero at first.
struct TileShapes {
    alignas(64) uint8_t bytes[64] = {1};  // palette 1: up to 16 rows of 64 bytes

    // `tile`: its number, 0 to 7.
    constexpr TileShapes& with(int tile, int num_rows, int row_bytes) {
        bytes[16 + 2 * tile] = uint8_t(row_bytes);
        bytes[48 + tile] = uint8_t(num_rows);
        return *this;
    }
};

class TilesInUse {
  public:
    TilesInUse() = default;
    explicit TilesInUse(const TileShapes& shapes) { shape(shapes); }
    ~TilesInUse() {
        if (in_use_) _tile_release();
    }
    TilesInUse(const TilesInUse&) = delete;
    TilesInUse& operator=(const TilesInUse&) = delete;

    void shape(const TileShapes& shapes) {
        _tile_loadconfig(shapes.bytes);
        in_use_ = true;
    }

  private:
    bool in_use_ = false;
};

// The compiler's own take tiles only by literal numbers, and may move what is read and written past them.
template <int kTile>
static INLINE void tile_zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
static INLINE void tile_load(const void* from, size_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "i"(kTile) : "memory");
}
template <int kTile>
static INLINE void tile_store(void* to, size_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_bytes), "i"(kTile) : "memory");
}
template <int kSums, int kRows, int kColumns>
static INLINE void add_product_of_signed() {  // signed rows, signed columns
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows), "i"(kColumns));
}
template <int kSums, int kRows, int kColumns>
static INLINE void add_product_of_biased() {  // signed rows, unsigned columns
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows), "i"(kColumns));
}
template <int kSums, int kRows, int kColumns>
static INLINE void add_product_of_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows), "i"(kColumns));
}

}  // namespace HEADRACE_ISA
}  // namespace headrace

#endif

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
    explicit TilesInUse(const TileShapes& shapes) { _tile_loadconfig(shapes.bytes); }
    ~TilesInUse() { _tile_release(); }
    TilesInUse(const TilesInUse&) = delete;
    TilesInUse& operator=(const TilesInUse&) = delete;
};

}  // namespace HEADRACE_ISA
}  // namespace headrace

#endif

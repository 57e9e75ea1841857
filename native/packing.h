// How the rows of a checkpoint become tiles of sixteen output columns; kernels.h draws the tiles.
//
// Knows storage formats, in the file (`headrace/engine/ops/dequantize.py` says what their bytes mean) and in a tile. Does not
// know threads or whose memory a tile lies in. Nothing is rounded on the way: a tile holds the file's own integers and scales.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"
#include "stored_blocks.h"

namespace headrace {

// What rows that share a tile have in common.
struct TileKind {
    Format format;
    uint8_t group_blocks = 0;
    ScaleType scale_type = ScaleType::F32;

    bool operator==(const TileKind& other) const {
        return format == other.format && group_blocks == other.group_blocks && scale_type == other.scale_type;
    }
};

// The kind of tile that these rows need: the shortest scales that hold theirs exactly, zero points only where some are not 8.
TileKind tile_kind(const Storage& storage, const uint8_t* rows, size_t num_rows, int num_in);

// Whether rows that meet it are rounded to int8 by blocks.
bool needs_blocks(Format format);

// Blocks of 32 along K, padded to an even number.
int padded_blocks(int num_in);

size_t tile_bytes(const TileKind& kind, int num_in);

// One row's share of a tile that was all zeros.
void pack_row(const Storage& storage, const TileKind& kind, const uint8_t* row, int num_in, int column, uint8_t* tile);

}  // namespace headrace

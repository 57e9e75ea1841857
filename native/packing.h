// How the rows of a checkpoint become tiles of sixteen output columns; kernels.h draws the tiles.
//
// Knows storage formats, in the file and in a tile. Does not know threads or whose memory a tile lies in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels.h"

namespace headrace {

// By the name that the storage format has in GGUF; raises std::invalid_argument where no kernel takes it.
Format format_of(const std::string& storage);

// Whether rows that meet it are rounded to int8.
bool is_quantized(Format format);

// Blocks of 32 along K, padded to an even number.
int padded_blocks(int num_in);

size_t row_bytes(Format format, int num_in);   // of a row as the file has it; 0 if it cannot have whole rows of that size
size_t tile_bytes(Format format, int num_in);  // of sixteen rows as a tile has them

// One row's share of a tile that was all zeros.
void pack_row(Format format, const uint8_t* row, int num_in, int column, uint8_t* tile);

}  // namespace headrace

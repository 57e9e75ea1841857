// Rows of an embedding table as numbers, from the bytes that a checkpoint has.
//
// Knows storage formats. Agrees bit for bit with `headrace/engine/ops/dequantize.py`. Does not know where ids come from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "stored_blocks.h"

namespace headrace {

struct EmbeddingTable {
    // Raises std::invalid_argument for a format that is not known here, or bytes that are no whole rows.
    EmbeddingTable(const std::string& storage, const uint8_t* data, size_t num_bytes, int num_columns);

    static bool knows(const std::string& storage);
    bool has(int64_t id) const { return 0 <= id && id < num_rows; }
    void read_row(int64_t id, float multiplier, float* out) const;

    const uint8_t* data;
    size_t row_bytes;
    int64_t num_rows;
    int num_columns;

  private:
    typedef void (*Reader)(const Storage&, const uint8_t* row, int num_columns, float* out);
    static Reader reader_of(Format format);  // null where there is none

    const Storage* storage_;
    Reader reader_;
};

}  // namespace headrace

// A projection: packed tiles of weights, and a bias.
//
// Knows its tiles and where each thread's lie. Does not know what is multiplied with them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "packing.h"
#include "thread_pool.h"

namespace headrace {

class Linear {
  public:
    int num_in = 0, num_out = 0;
    std::vector<Tile> tiles;
    std::vector<float> bias;
    bool has_blocks = false, has_bytes = false, has_bf16 = false, has_floats = false;  // what its rows are prepared as
    bool has_minima = false;

    void add_kind(Format format) {
        if (needs_blocks(format)) has_blocks = true;
        else if (format == Format::I8) has_bytes = true;
        else if (format == Format::BF16) has_bf16 = true;
        else has_floats = true;
        has_minima |= format == Format::Q4_1 || format == Format::Q5_1 || format == Format::Q4_K || format == Format::Q5_K ||
                      format == Format::I4_Z;
    }
    LinearView view() const {
        return {tiles.data(), int32_t(tiles.size()), num_in, padded_blocks(num_in), bias.empty() ? nullptr : bias.data()};
    }
};

// Rows of one storage format, as a checkpoint has them.
struct StoredRows {
    std::string storage;
    const uint8_t* data;
    size_t num_bytes;
    const int32_t* order;  // which of the rows comes first, second, ...; null for their own order
    size_t order_size;
};

// The loaded projections' memory: a region for each thread.
class LinearLoader {
  public:
    explicit LinearLoader(ThreadPool& pool) : pool_(pool), regions_(size_t(pool.size())) {}

    // The parts stacked. In two steps, so that the caller may let go of its interpreter for the second, the long one.
    // Raises std::invalid_argument where sizes contradict one another.
    struct Row {
        const Storage* storage;
        TileKind kind;
        const uint8_t* data;
    };
    struct Unpacked {
        std::unique_ptr<Linear> linear;
        std::vector<Row> rows;
    };
    Unpacked lay_out(const std::vector<StoredRows>& parts, int num_in, const float* bias, size_t bias_size);
    std::unique_ptr<Linear> pack(Unpacked unpacked);

  private:
    ThreadPool& pool_;
    std::vector<WeightRegion> regions_;
};

}  // namespace headrace

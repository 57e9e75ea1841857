// Where a step's tokens stand: their positions, their slots in the cache, and which rows attend together.
//
// Knows sequences as spans of rows. Does not know caches or heads.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "kernels.h"

namespace headrace {

class Placement {
  public:
    std::vector<int32_t> positions;  // one per row
    std::vector<int64_t> slots;      // one per row
    std::vector<AttentionTile> tiles;

    // Greatest of their kind, -1 without rows: what must lie within a table or a cache.
    int32_t last_position = -1;
    int64_t last_slot = -1;

    int num_rows() const { return int(positions.size()); }

    // Block ids of the sequences to come, so many in all: what was added stays where it is.
    void reserve_blocks(size_t num_block_ids) { block_ids_.reserve(num_block_ids); }

    // One more id of the sequence that `add` will then place.
    void add_block(int64_t id) {
        if (id < 0 || id > INT32_MAX) throw std::invalid_argument("a block id is a small number");
        if (block_ids_.size() == block_ids_.capacity()) throw std::logic_error("more blocks than were reserved");
        block_ids_.push_back(int32_t(id));
    }

    // The rows of a sequence whose blocks are the last `num_blocks` that were added.
    void add(int num_computed_tokens, int num_tokens, int block_size, int num_blocks) {
        const int32_t* ids = block_ids_.data() + block_ids_.size() - size_t(num_blocks);
        const int end = num_computed_tokens + num_tokens;
        for (int i = 0; i < num_tokens; i += kAttentionRows)
            tiles.push_back({num_rows() + i, std::min(kAttentionRows, num_tokens - i), num_computed_tokens + i, ids});
        for (int position = num_computed_tokens; position < end; ++position) {
            positions.push_back(position);
            slots.push_back(int64_t(ids[position / block_size]) * block_size + position % block_size);
            last_slot = std::max(last_slot, slots.back());
        }
        last_position = std::max(last_position, end - 1);
    }

    // After the last sequence. The longest tile first: what is left for the end of a step is then short.
    void sort() {
        std::stable_sort(tiles.begin(), tiles.end(), [](const AttentionTile& a, const AttentionTile& b) {
            return int64_t(a.position + a.num_rows) * a.num_rows > int64_t(b.position + b.num_rows) * b.num_rows;
        });
    }

  private:
    std::vector<int32_t> block_ids_;
};

}  // namespace headrace

// Where a step's tokens stand: their positions, their slots in the cache, and which rows attend together.
//
// Knows sequences as spans of rows, and which of them have the same blocks. Does not know caches or heads.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "kernels.h"

namespace headrace {

// A part of a context that several sequences have in common, block for block, and that all their rows see whole.
struct SharedPart {
    struct Member {
        int tile;       // its number
        int first_row;  // of those of `rows`
    };

    int part;
    AttentionTile rows;  // of all members
    std::vector<Member> members;
    std::vector<int32_t> row_numbers;
    int last_position;  // the greatest of them

    // Whether windows reach back as far, those of the places too that `rows` pretends to.
    bool is_seen_whole(const AttentionView& a) const {
        return !a.window || a.window >= last_position + kAttentionRows - part * kPartTokens;
    }
};

class Placement {
  public:
    std::vector<int32_t> positions;  // one per row
    std::vector<int64_t> slots;      // one per row
    std::vector<AttentionTile> tiles;
    std::vector<SharedPart> shared_parts;

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
    void finish(int block_size) {
        std::stable_sort(tiles.begin(), tiles.end(), [](const AttentionTile& a, const AttentionTile& b) {
            return int64_t(a.position + a.num_rows) * a.num_rows > int64_t(b.position + b.num_rows) * b.num_rows;
        });
        std::vector<int> few;  // those that leave room for others beside them
        for (int t = 0; t < int(tiles.size()); ++t)
            if (tiles[size_t(t)].num_rows * 2 <= kAttentionRows) few.push_back(t);
        find_shared(few.data(), few.data() + few.size(), 0, block_size);
        for (SharedPart& shared : shared_parts) shared.rows.rows = shared.row_numbers.data();
    }

  private:
    // Among tiles that have all earlier parts in common. Beginnings are what sequences share, so nothing behind a part is
    // looked at that is not shared itself.
    void find_shared(int* first, int* end, int part, int block_size) {
        const int part_end = (part + 1) * kPartTokens, first_block = part * kPartTokens / block_size;
        const int last_block = (part_end - 1) / block_size;
        const auto ids = [&](int tile) { return tiles[size_t(tile)].block_ids; };
        const auto is_before = [&](int a, int b) {  // the last first: it seldom agrees where others do not
            if (ids(a)[last_block] != ids(b)[last_block]) return ids(a)[last_block] < ids(b)[last_block];
            return std::lexicographical_compare(ids(a) + first_block, ids(a) + last_block, ids(b) + first_block, ids(b) + last_block);
        };
        end = std::stable_partition(first, end, [&](int tile) { return tiles[size_t(tile)].position >= part_end - 1; });
        if (end - first < 2) return;
        std::sort(first, end, [&](int a, int b) { return is_before(a, b) || (!is_before(b, a) && a < b); });
        while (first != end) {
            int* run = first;
            while (++first != end && !is_before(*run, *first)) {
            }
            if (first - run < 2) continue;
            share(run, first, part);
            find_shared(run, first, part + 1, block_size);
        }
    }

    // Cuts tiles that have a part in common into such as attend together, as equal as may be.
    void share(const int* first, const int* end, int part) {
        int num_rows = 0;
        for (const int* tile = first; tile != end; ++tile) num_rows += tiles[size_t(*tile)].num_rows;
        const int num_together = (num_rows + kAttentionRows - 1) / kAttentionRows;
        const int enough = (num_rows + num_together - 1) / num_together;
        while (first != end) {
            SharedPart shared{part, {0, 0, (part + 1) * kPartTokens - 1, tiles[size_t(*first)].block_ids}, {}, {}, 0};
            for (; first != end; ++first) {
                const AttentionTile& tile = tiles[size_t(*first)];
                if (shared.rows.num_rows >= enough || shared.rows.num_rows + tile.num_rows > kAttentionRows) break;
                shared.members.push_back({*first, shared.rows.num_rows});
                for (int row = 0; row < tile.num_rows; ++row) shared.row_numbers.push_back(tile.first_row + row);
                shared.rows.num_rows += tile.num_rows;
                shared.last_position = std::max(shared.last_position, tile.position + tile.num_rows - 1);
            }
            if (shared.members.size() > 1) shared_parts.push_back(std::move(shared));
        }
    }

    std::vector<int32_t> block_ids_;
};

}  // namespace headrace

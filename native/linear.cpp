#include "linear.h"

#include <cstring>
#include <stdexcept>

namespace headrace {

LinearLoader::Unpacked LinearLoader::lay_out(const std::vector<StoredRows>& parts, int num_in, const float* bias,
                                             size_t bias_size) {
    auto linear = std::make_unique<Linear>();
    linear->num_in = num_in;
    std::vector<Row> rows;
    for (const StoredRows& part : parts) {
        const Storage* found = find_storage(part.storage);
        if (!found) throw std::invalid_argument("no kernel for " + part.storage);
        const Storage& storage = *found;
        const size_t size = storage.row_bytes(num_in);
        if (size == 0 || part.num_bytes % size) throw std::invalid_argument("these bytes are no whole rows");
        const size_t num_rows = part.num_bytes / size;
        if (part.order && part.order_size != num_rows) throw std::invalid_argument("an order names every row once");
        const TileKind kind = tile_kind(storage, part.data, num_rows, num_in);
        linear->add_kind(kind.format);
        for (size_t r = 0; r < num_rows; ++r) {
            const size_t from = part.order ? size_t(part.order[r]) : r;
            if (from >= num_rows) throw std::invalid_argument("an order names a row that is not there");
            rows.push_back({&storage, kind, part.data + from * size});
        }
    }
    linear->num_out = int(rows.size());
    if (bias_size) {
        if (bias_size != rows.size()) throw std::invalid_argument("a bias has a number for each output");
        linear->bias.assign(bias, bias + bias_size);
    }
    for (size_t at = 0; at < rows.size();) {
        size_t n = 1;
        const TileKind& kind = rows[at].kind;
        while (n < kTileColumns && at + n < rows.size() && rows[at + n].kind == kind) ++n;
        linear->tiles.push_back({nullptr, int32_t(at), int16_t(n), kind.format, kind.group_blocks, kind.scale_type});
        at += n;
    }
    return {std::move(linear), std::move(rows)};
}

std::unique_ptr<Linear> LinearLoader::pack(Unpacked unpacked) {
    Linear& linear = *unpacked.linear;
    const auto first_row = [&](const Tile& tile) -> const Row& { return unpacked.rows[size_t(tile.column)]; };
    // Each thread's share of few rows lies in a region of its own, in the order of use.
    const int num_tiles = int(linear.tiles.size());
    for (int thread = 0; thread < pool_.size(); ++thread) {
        for (int t = pool_.share(num_tiles, thread); t < pool_.share(num_tiles, thread + 1); ++t)
            linear.tiles[size_t(t)].data =
                regions_[size_t(thread)].take(tile_bytes(first_row(linear.tiles[size_t(t)]).kind, linear.num_in));
    }
    pool_.run(num_tiles, [&](int, int t) {
        const Tile& tile = linear.tiles[size_t(t)];
        uint8_t* data = const_cast<uint8_t*>(tile.data);
        std::memset(data, 0, tile_bytes(first_row(tile).kind, linear.num_in));
        for (int c = 0; c < tile.num_columns; ++c) {
            const Row& row = unpacked.rows[size_t(tile.column + c)];
            pack_row(*row.storage, row.kind, row.data, linear.num_in, c, data);
        }
    });
    return std::move(unpacked.linear);
}

}  // namespace headrace

#include "machine.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace headrace {

namespace {

const Kernels& kernels_called(const std::string& isa) {
    const Kernels* kernels = find_kernels(isa.c_str());
    if (!kernels) throw std::invalid_argument("this processor has no instruction set called " + isa);
    return *kernels;
}

}  // namespace

Machine::Machine(int num_threads, const std::string& isa)
    : kernels_(kernels_called(isa)),
      pool_(std::max(1, num_threads)),
      loader_(pool_),
      products_(kernels_, pool_),
      memory_(std::make_shared<BlockCache>()) {}

template <class RowWork>
void Machine::for_rows(int num_rows, RowWork work) {
    const auto rows = [&](int, int first, int end) {
        for (int r = first; r < end; ++r) work(r);
    };
    if (is_shared(num_rows)) pool_.run_rows(num_rows, rows);
    else rows(0, 0, num_rows);
}

void Machine::run(const Operation& op, const Matrix* values, const Step& step) {
    const auto value = [&](int number) { return number < 0 ? Matrix{} : values[number]; };
    std::visit([&](const auto& work) { perform(work, value(op.input), value(op.other), value(op.output), step); }, op.work);
}

void Machine::perform(const Embed& work, const Matrix&, const Matrix&, const Matrix& out, const Step& step) {
    if (work.table) {
        for (int r = 0; r < out.rows; ++r)
            if (!work.table->has(step.token_ids[r])) throw std::invalid_argument("a token id that the table does not have");
    }
    for_rows(out.rows, [&](int r) {
        if (work.table) work.table->read_row(step.token_ids[r], work.multiplier, out.row(r));
        else std::memcpy(out.row(r), step.embedded + size_t(r) * size_t(out.columns), size_t(out.columns) * 4);
    });
}

void Machine::perform(const SelectRows&, const Matrix& x, const Matrix&, const Matrix& out, const Step& step) {
    for (int i = 0; i < out.rows; ++i) {
        const int row = step.selected[i];
        if (row < 0 || row >= x.rows) throw std::invalid_argument("no such row");
        std::memcpy(out.row(i), x.row(row), size_t(x.columns) * 4);
    }
}

void Machine::perform(const RmsNorm& work, const Matrix& x, const Matrix&, const Matrix& out, const Step&) {
    for_rows(x.rows, [&](int r) { kernels_.rms_norm(x.row(r), work.norm.weight, work.norm.eps, x.columns, out.row(r)); });
}

void Machine::perform(const Add& work, const Matrix& x, const Matrix& y, const Matrix& out, const Step&) {
    for_rows(x.rows, [&](int r) { kernels_.add_scaled(x.row(r), y.row(r), work.scale, x.columns, out.row(r)); });
}

void Machine::perform(const Project& work, const Matrix& x, const Matrix& add_to, const Matrix& out, const Step&) {
    products_.linear(x, work.norm, *work.weight, work.bf16,
                     {out.data, size_t(out.stride), add_to.data, size_t(add_to.stride), work.multiplier, work.softcap});
}

void Machine::perform(const GatedProject& work, const Matrix& x, const Matrix&, const Matrix& out, const Step&) {
    products_.gated(x, work.norm, *work.gate, *work.up, work.activation, work.bf16,
                    {out.data, size_t(out.stride), nullptr, 0, 1.0f, 0.0f});
}

void Machine::perform(const RopeAndCache& work, const Matrix& qkv, const Matrix&, const Matrix& q, const Step& step) {
    const AttentionView& a = work.kv->view;
    const Placement& placement = *step.placement;
    const RotationTable& rotation = work.rotation;
    if (placement.num_rows() != qkv.rows) throw std::invalid_argument("a place for every token");
    if (placement.last_slot >= int64_t(a.num_blocks) * a.block_size)
        throw std::invalid_argument("a block that the cache does not have");
    if (rotation.angles && size_t(placement.last_position + 1) * size_t(rotation.rotary_dim) > rotation.size)
        throw std::invalid_argument("a position beyond the table");
    for_rows(qkv.rows, [&](int r) {
        const size_t position = size_t(placement.positions[size_t(r)]);
        if (r + 1 < qkv.rows) kernels_.expect_slot(a, placement.slots[size_t(r + 1)]);
        const float* angles = rotation.angles ? rotation.angles + position * size_t(rotation.rotary_dim) : nullptr;
        kernels_.rope_and_cache(qkv.row(r), a, work.norm, angles, rotation.rotary_dim, placement.slots[size_t(r)], q.row(r));
    });
}

// Parts that several sequences read are computed once for all of them; all other parts as well if `lists_all`.
void Machine::list_parts(const AttentionView& a, const Placement& placement, bool lists_all) {
    parts_.clear();
    known_.clear();
    first_known_.clear();
    if (!lists_all && placement.shared_parts.empty()) return;

    int num_known = 0;  // of a head
    for (const AttentionTile& tile : placement.tiles) {
        first_known_.push_back(num_known);
        num_known += end_part(tile) - first_part(a, tile);
    }
    known_.assign(size_t(num_known) * size_t(a.num_kv_heads), nullptr);
    const size_t sums_floats = kernels_.attention_sums(a);
    const size_t most_parts = placement.shared_parts.size() + size_t(lists_all ? num_known : 0);
    float* sums = (float*)attention_sums_.reserve(sums_floats * 4 * most_parts * size_t(a.num_kv_heads));
    for (int kv_head = 0; kv_head < a.num_kv_heads; ++kv_head) {
        const auto known_at = [&](int tile, int part) -> const float*& {
            const int first = first_part(a, placement.tiles[size_t(tile)]);
            return known_[size_t(kv_head * num_known + first_known_[size_t(tile)] + part - first)];
        };
        for (const SharedPart& shared : placement.shared_parts) {
            if (!shared.is_seen_whole(a)) continue;
            parts_.push_back({&shared.rows, kv_head, shared.part});
            for (const SharedPart::Member& member : shared.members)
                known_at(member.tile, shared.part) = sums + sums_floats / kAttentionRows * size_t(member.first_row);
            sums += sums_floats;
        }
        for (int tile = 0; lists_all && tile < int(placement.tiles.size()); ++tile) {
            const AttentionTile& rows = placement.tiles[size_t(tile)];
            for (int part = first_part(a, rows); part < end_part(rows); ++part) {
                if (known_at(tile, part)) continue;
                parts_.push_back({&rows, kv_head, part});
                known_at(tile, part) = sums;
                sums += sums_floats;
            }
        }
    }
}

void Machine::perform(const Attend& work, const Matrix& q, const Matrix&, const Matrix& out, const Step& step) {
    const AttentionView& a = work.kv->view;
    const Placement& placement = *step.placement;
    // Head by head, as keys and values lie: sequences whose blocks are neighbours are read in one run, and tiles of one
    // prompt find its keys and values in the cache.
    const int num_tiles = int(placement.tiles.size()), num_pairs = num_tiles * a.num_kv_heads;
    const size_t bytes = (kernels_.attention_scratch(a) * 4 + kAlignment - 1) / kAlignment * kAlignment;
    uint8_t* scratch = attention_scratch_.reserve(bytes * size_t(pool_.size()));
    const auto scratch_of = [&](int thread) { return (float*)(scratch + bytes * size_t(thread)); };

    // Where pairs of rows and heads are fewer than keep all threads busy, these share the parts of the contexts.
    constexpr int kPairsPerThread = 6;  // more than that are shared out evenly enough as they are
    const bool shares_parts = num_pairs < kPairsPerThread * pool_.size() && pool_.size() > 1;
    list_parts(a, placement, shares_parts);
    pool_.run(int(parts_.size()), [&](int thread, int item) {
        const Part& at = parts_[size_t(item)];
        float* sums = (float*)attention_sums_.data() + kernels_.attention_sums(a) * size_t(item);
        kernels_.attention_part(a, *at.tile, at.kv_head, at.part, q.data, sums, scratch_of(thread));
    });
    auto finish = [&](int thread, int pair) {
        const size_t tile = size_t(pair % num_tiles), kv_head = size_t(pair / num_tiles);
        const size_t num_known = known_.size() / size_t(a.num_kv_heads);
        const float* const* known = known_.empty() ? nullptr : known_.data() + kv_head * num_known + size_t(first_known_[tile]);
        kernels_.attention(a, placement.tiles[tile], int(kv_head), q.data, known, out.data, scratch_of(thread));
    };
    if (!shares_parts) {
        pool_.run(num_pairs, finish);
    } else {  // which is little
        for (int pair = 0; pair < num_pairs; ++pair) finish(0, pair);
    }
}

}  // namespace headrace

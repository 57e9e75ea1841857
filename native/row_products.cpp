#include "row_products.h"

#include <algorithm>

namespace headrace {

namespace {

// So few rows, or so few of all threads together, are prepared by each thread for itself: that saves a barrier, and fetching from
// another core what was prepared there.
constexpr int kFewRows = 2, kFewRowsOfAllThreads = 16;
constexpr int kItemsPerThread = 8;  // so little work is lost to a thread that is kept from its own

constexpr size_t kPastEnd = 512;  // kernels may read behind a group's last row, as if it had sixteen, for nobody

size_t whole_lines(size_t num_bytes) { return (num_bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void RowProducts::linear(const Matrix& x, const Norm& norm, const Linear& weight, bool bf16, const Output& to) {
    const LinearView view = weight.view();
    const Preparation how = preparation(x, norm, weight, nullptr, bf16);
    if (x.rows == 1 && kernels_.linear_in_pairs) return linear_in_pairs(x, how, view, bf16, to);
    with_pieces(x, how, view.num_tiles, [&](const Activations& prepared, const RowGroup* groups, int num_groups, int first, int end) {
        kernels_.linear(view, prepared, bf16, groups, num_groups, first, end, to);
    });
}

// Each thread's share of the tiles is read from its beginning and from its middle at once, whoever takes a part of it.
void RowProducts::linear_in_pairs(const Matrix& x, const Preparation& how, const LinearView& view, bool bf16, const Output& to) {
    with_prepared(x, how, kItemsPerThread * pool_.size(), [&](const Activations& prepared, int item) {
        const int owner = item / kItemsPerThread, turn = item % kItemsPerThread;
        const int first = pool_.share(view.num_tiles, owner), end = pool_.share(view.num_tiles, owner + 1);
        const int apart = (end - first + 1) / 2;
        kernels_.linear_in_pairs(view, prepared, bf16, first + apart * turn / kItemsPerThread,
                                 first + apart * (turn + 1) / kItemsPerThread, apart, end, to);
    });
}

void RowProducts::gated(const Matrix& x, const Norm& norm, const Linear& gate, const Linear& up, Gate activation, bool bf16,
                        const Output& to) {
    const LinearView gate_view = gate.view(), up_view = up.view();
    with_pieces(x, preparation(x, norm, gate, &up, bf16), gate_view.num_tiles,
                [&](const Activations& prepared, const RowGroup* groups, int num_groups, int first, int end) {
                    kernels_.gated(gate_view, up_view, activation, prepared, bf16, groups, num_groups, first, end, to);
                });
}

RowProducts::Preparation RowProducts::preparation(const Matrix& x, const Norm& norm, const Linear& weight,
                                                 const Linear* other, bool bf16) const {
    const bool halves = weight.has_bf16 || (other && other->has_bf16);
    Preparation how{};
    how.norm = norm;
    how.int8 = weight.has_blocks || (other && other->has_blocks);
    how.meet_minima = weight.has_minima || (other && other->has_minima);
    how.whole_int8 = weight.has_bytes || (other && other->has_bytes);
    how.pairs = halves && bf16 && kernels_.has_bf16_products;
    how.floats = weight.has_floats || (other && other->has_floats) || (halves && !how.pairs);
    how.num_in = weight.num_in;
    how.num_blocks = padded_blocks(weight.num_in);
    how.padded = (weight.num_in + 1) / 2 * 2;
    how.num_rows = size_t(x.rows);
    return how;
}

size_t RowProducts::Preparation::num_bytes() const {
    const size_t blocks = num_rows * size_t(num_blocks), numbers = num_rows * size_t(padded);
    const size_t for_int8 = int8 ? whole_lines(blocks * kBlock) + 4 * whole_lines(blocks * 4) : 0;
    const size_t for_whole = whole_int8 ? whole_lines(blocks * kBlock) + 2 * whole_lines(num_rows * 4) : 0;
    return kPastEnd + for_int8 + for_whole + (pairs ? whole_lines(blocks * kBlock * 2) : 0) + (floats ? whole_lines(numbers * 4) : 0);
}

Activations RowProducts::Preparation::laid_out(uint8_t* memory) const {
    const auto next = [&memory](size_t n) {
        uint8_t* taken = memory;
        memory += whole_lines(n);
        return taken;
    };
    const size_t blocks = num_rows * size_t(num_blocks), numbers = num_rows * size_t(padded);
    Activations a{};
    a.meet_minima = meet_minima;
    if (int8) {
        a.int8 = (int8_t*)next(blocks * kBlock);
        a.scales = (float*)next(blocks * 4);
        a.negative_sums = (int32_t*)next(blocks * 4);
        a.first_sums = (int32_t*)next(blocks * 4);
        a.scaled_sums = (float*)next(blocks * 4);
    }
    if (whole_int8) {
        a.whole_int8 = (int8_t*)next(blocks * kBlock);
        a.whole_scales = (float*)next(num_rows * 4);
        a.whole_sums = (int32_t*)next(num_rows * 4);
    }
    if (pairs) a.bf16 = (uint16_t*)next(blocks * kBlock * 2);
    if (floats) a.floats = (float*)next(numbers * 4);
    return a;
}

void RowProducts::prepare(const Matrix& x, int first_row, int end_row, const Preparation& how, float* normed,
                          const Activations& to) const {
    size_t g = 0;
    for (int row = first_row; row < end_row; ++row) {
        while (row >= groups_[g].first + groups_[g].num_rows) ++g;
        const RowGroup group = groups_[g];
        const int r = row - group.first;
        const float* from = x.row(row);
        if (how.norm.weight) {
            kernels_.rms_norm(from, how.norm.weight, how.norm.eps, how.num_in, normed);
            from = normed;
        }
        if (how.int8) kernels_.prepare_int8(from, how.num_in, how.num_blocks, group, r, to);
        if (how.whole_int8) kernels_.prepare_whole_int8(from, how.num_in, how.num_blocks, group, r, to);
        if (how.pairs) kernels_.prepare_bf16(from, how.num_in, how.num_blocks, group, r, to);
        if (how.floats) kernels_.prepare_floats(from, how.num_in, group, r, how.padded, to);
    }
}

// Groups of rows, as large as the kernels take.
void RowProducts::cut_into_groups(int num_rows) {
    groups_.clear();
    for (int first = 0; first < num_rows; first += kernels_.max_group)
        groups_.push_back({first, std::min(num_rows - first, kernels_.max_group)});
}

template <class What>
void RowProducts::with_prepared(const Matrix& x, const Preparation& how, int num_items, What what) {
    const int num_threads = pool_.size();
    const bool each_its_own = x.rows <= std::max(kFewRows, kFewRowsOfAllThreads / num_threads);
    const size_t bytes = how.num_bytes();
    const size_t normed_bytes = whole_lines(size_t(how.num_in) * 4);
    uint8_t* normed = normed_.reserve(normed_bytes * size_t(num_threads));
    const auto normed_of = [&](int thread) { return (float*)(normed + normed_bytes * size_t(thread)); };
    uint8_t* scratch = scratch_.reserve(bytes * size_t(each_its_own ? num_threads : 1));
    cut_into_groups(x.rows);
    if (!each_its_own) {
        const Activations to = how.laid_out(scratch);
        pool_.run_rows(x.rows, [&](int thread, int first, int end) { prepare(x, first, end, how, normed_of(thread), to); });
    }
    has_prepared_.assign(size_t(num_threads) * 64, 0);  // a cache line each
    pool_.run(num_items, [&](int thread, int item) {
        const Activations prepared = how.laid_out(scratch + (each_its_own ? bytes * size_t(thread) : 0));
        if (each_its_own && !has_prepared_[size_t(thread) * 64]) {
            prepare(x, 0, x.rows, how, normed_of(thread), prepared);
            has_prepared_[size_t(thread) * 64] = 1;
        }
        what(prepared, item);
    });
}

template <class What>
void RowProducts::with_pieces(const Matrix& x, const Preparation& how, int num_tiles, What what) {
    if (x.rows == 0) return;
    const int num_threads = pool_.size(), num_groups = (x.rows + kernels_.max_group - 1) / kernels_.max_group;
    // Few rows: the threads share the tiles. Many: they share the rows, so that none reads what another has prepared.
    const int num_parts = x.rows >= kernels_.rows_apart * num_threads ? num_threads : 1;
    const int num_chunks = std::min(num_tiles, num_parts == 1 ? kItemsPerThread * num_threads : kItemsPerThread);
    with_prepared(x, how, num_parts * num_chunks, [&](const Activations& prepared, int item) {
        const int part = item / num_chunks, chunk = item % num_chunks;
        const int first = num_parts == 1 ? 0 : pool_.share(num_groups, part);
        const int end = num_parts == 1 ? num_groups : pool_.share(num_groups, part + 1);
        const int first_tile = int(int64_t(num_tiles) * chunk / num_chunks);
        const int end_tile = int(int64_t(num_tiles) * (chunk + 1) / num_chunks);
        what(prepared, groups_.data() + first, end - first, first_tile, end_tile);
    });
}

}  // namespace headrace

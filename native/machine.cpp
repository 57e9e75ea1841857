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

template <class Work>
void Machine::for_rows(int num_rows, Work work) {
    const auto rows = [&](int, int first, int end) {
        for (int r = first; r < end; ++r) work(r);
    };
    if (is_shared(num_rows)) pool_.run_rows(num_rows, rows);
    else rows(0, 0, num_rows);
}

void Machine::select_rows(const Matrix& x, const int* rows, const Matrix& out) {
    for (int i = 0; i < out.rows; ++i) {
        if (rows[i] < 0 || rows[i] >= x.rows) throw std::invalid_argument("no such row");
        std::memcpy(out.row(i), x.row(rows[i]), size_t(x.columns) * 4);
    }
}

void Machine::rms_norm(const Matrix& x, const float* weight, float eps, const Matrix& out) {
    for_rows(x.rows, [&](int r) { kernels_.rms_norm(x.row(r), weight, eps, x.columns, out.row(r)); });
}

void Machine::add(const Matrix& x, const Matrix& y, float scale, const Matrix& out) {
    for_rows(x.rows, [&](int r) { kernels_.add_scaled(x.row(r), y.row(r), scale, x.columns, out.row(r)); });
}

void Machine::linear(const Matrix& x, const Linear& weight, bool bf16, const Matrix& add_to, float multiplier, float softcap,
                     const Matrix& out) {
    products_.linear(x, weight, bf16,
                     {out.data, size_t(out.stride), add_to.data, size_t(add_to.stride), multiplier, softcap});
}

void Machine::gated_linear(const Matrix& x, const Linear& gate, const Linear& up, Gate activation, bool bf16,
                           const Matrix& out) {
    products_.gated(x, gate, up, activation, bf16, {out.data, size_t(out.stride), nullptr, 0, 1.0f, 0.0f});
}

void Machine::rope_and_cache(const Matrix& qkv, const Cache& kv, const Placement& placement, const RotationTable& rotation,
                             const HeadNorm& norm, const Matrix& q) {
    const AttentionView& a = kv.view;
    if (placement.last_slot >= int64_t(a.num_blocks) * a.block_size)
        throw std::invalid_argument("a block that the cache does not have");
    if (rotation.angles && size_t(placement.last_position + 1) * size_t(rotation.rotary_dim) > rotation.size)
        throw std::invalid_argument("a position beyond the table");
    for_rows(qkv.rows, [&](int r) {
        const size_t position = size_t(placement.positions[size_t(r)]);
        const float* angles = rotation.angles ? rotation.angles + position * size_t(rotation.rotary_dim) : nullptr;
        kernels_.rope_and_cache(qkv.row(r), a, norm, angles, rotation.rotary_dim, placement.slots[size_t(r)], q.row(r));
    });
}

void Machine::attention(const Matrix& q, const Cache& kv, const Placement& placement, const Matrix& out) {
    const AttentionView& a = kv.view;
    const size_t bytes = (kernels_.attention_scratch(a) * 4 + kAlignment - 1) / kAlignment * kAlignment;
    uint8_t* scratch = attention_scratch_.reserve(bytes * size_t(pool_.size()));
    pool_.run(int(placement.tiles.size()) * a.num_kv_heads, [&](int thread, int item) {
        kernels_.attention(a, placement.tiles[size_t(item / a.num_kv_heads)], item % a.num_kv_heads, q.data, out.data,
                           (float*)(scratch + bytes * size_t(thread)));
    });
}

}  // namespace headrace

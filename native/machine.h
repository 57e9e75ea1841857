// The operations on concrete matrices: which kernel runs on which rows, on which thread.
//
// Knows threads, kernels and scratch memory. Does not know Python or models; `headrace/engine/ops/protocol.py` says what each
// operation means. One thread at a time may call it. Raises std::invalid_argument where a step does not fit its caches.
#pragma once

#include <memory>
#include <string>

#include "kernels.h"
#include "kv_cache.h"
#include "linear.h"
#include "placement.h"
#include "row_products.h"
#include "tensor.h"
#include "thread_pool.h"

namespace headrace {

// cos [dim / 2] and sin [dim / 2] of each position.
struct RotationTable {
    const float* angles;  // null: nothing rotates
    size_t size;
    int rotary_dim;
};

class Machine {
  public:
    Machine(int num_threads, const std::string& isa);  // raises where the processor has no such instruction set

    const char* isa() const { return kernels_.name; }
    ThreadPool& pool() { return pool_; }
    LinearLoader& loader() { return loader_; }
    const std::shared_ptr<BlockCache>& memory() const { return memory_; }

    void select_rows(const Matrix& x, const int* rows, const Matrix& out);
    void rms_norm(const Matrix& x, const float* weight, float eps, const Matrix& out);
    void add(const Matrix& x, const Matrix& y, float scale, const Matrix& out);
    // out = (x . weight + bias) * multiplier, soft-capped unless softcap is 0, + add_to unless that has no data
    void linear(const Matrix& x, const Linear& weight, bool bf16, const Matrix& add_to, float multiplier, float softcap,
                const Matrix& out);
    void gated_linear(const Matrix& x, const Linear& gate, const Linear& up, Gate activation, bool bf16, const Matrix& out);
    void rope_and_cache(const Matrix& qkv, const Cache& kv, const Placement& placement, const RotationTable& rotation,
                        const HeadNorm& norm, const Matrix& q);  // qkv is used up
    void attention(const Matrix& q, const Cache& kv, const Placement& placement, const Matrix& out);

    // So few rows are computed sooner than they are shared out.
    bool is_shared(int num_rows) const { return num_rows >= kSharedRows && pool_.size() > 1; }

  private:
    static constexpr int kSharedRows = 8;

    template <class Work>
    void for_rows(int num_rows, Work work);

    const Kernels& kernels_;
    ThreadPool pool_;
    LinearLoader loader_;
    RowProducts products_;
    std::shared_ptr<BlockCache> memory_;
    Scratch attention_scratch_;
};

}  // namespace headrace

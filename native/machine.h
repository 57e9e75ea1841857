// The operations on concrete matrices: which kernel runs on which rows, on which thread.
//
// Knows threads, kernels and scratch memory. Does not know Python or models; `headrace/engine/ops/protocol.py` says what each
// operation means. One thread at a time may call it. Raises std::invalid_argument where a step does not fit its caches.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "linear.h"
#include "operation.h"
#include "row_products.h"
#include "tensor.h"
#include "thread_pool.h"

namespace headrace {

class Machine {
  public:
    Machine(int num_threads, const std::string& isa);  // raises where the processor has no such instruction set

    const Kernels& kernels() const { return kernels_; }
    ThreadPool& pool() { return pool_; }
    LinearLoader& loader() { return loader_; }
    const std::shared_ptr<BlockCache>& memory() const { return memory_; }

    // Reads and writes values by their numbers.
    void run(const Operation& operation, const Matrix* values, const Step& step);

    // Fewer rows are computed sooner than they are shared out.
    bool is_shared(int num_rows) const { return num_rows >= kSharedRows && pool_.size() > 1; }

  private:
    static constexpr int kSharedRows = 8;

    void perform(const Embed&, const Matrix& x, const Matrix& y, const Matrix& out, const Step& step);
    void perform(const SelectRows&, const Matrix& x, const Matrix& y, const Matrix& out, const Step& step);
    void perform(const RmsNorm&, const Matrix& x, const Matrix& y, const Matrix& out, const Step& step);
    void perform(const Add&, const Matrix& x, const Matrix& y, const Matrix& out, const Step& step);
    void perform(const Project&, const Matrix& x, const Matrix& y, const Matrix& out, const Step& step);
    void perform(const GatedProject&, const Matrix& x, const Matrix& y, const Matrix& out, const Step& step);
    void perform(const RopeAndCache&, const Matrix& x, const Matrix& y, const Matrix& out, const Step& step);
    void perform(const Attend&, const Matrix& x, const Matrix& y, const Matrix& out, const Step& step);

    template <class RowWork>
    void for_rows(int num_rows, RowWork work);

    const Kernels& kernels_;
    ThreadPool pool_;
    LinearLoader loader_;
    RowProducts products_;
    std::shared_ptr<BlockCache> memory_;
    struct Part {  // of the context of rows that attend together, for one KV head
        const AttentionTile* tile;
        int kv_head, part;
    };
    void list_parts(const AttentionView& a, const Placement& placement, bool lists_all);

    // What is computed part by part before anything else, and where all those sums are found again: for each KV head and each of
    // the step's tiles, one for every part of its context, null where it is computed with the rest. All empty where nothing is.
    std::vector<Part> parts_;
    std::vector<const float*> known_;
    std::vector<int> first_known_;  // of each tile, of the first KV head
    Scratch attention_scratch_, attention_sums_;
};

}  // namespace headrace

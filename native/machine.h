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

    // So few rows are computed sooner than they are shared out.
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
    struct Part {  // of a pair's context
        int pair;      // of rows that attend together and a KV head
        int part;
    };
    std::vector<Part> parts_;
    Scratch attention_scratch_, attention_sums_;
};

}  // namespace headrace

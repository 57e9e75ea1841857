// Products of a step's rows with projections, shared out among threads.
//
// Knows how rows are prepared for the weights that they meet, who prepares them, and which thread computes which tiles. Does
// not know what a projection is for.
#pragma once

#include <functional>
#include <vector>

#include "kernels.h"
#include "linear.h"
#include "operation.h"
#include "tensor.h"
#include "thread_pool.h"

namespace headrace {

class RowProducts {
  public:
    RowProducts(const Kernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

    // to = norm(x) . weight, finished as `to` says.
    void linear(const Matrix& x, const Norm& norm, const Linear& weight, bool bf16, const Output& to);
    // to = activation(norm(x) . gate) * (norm(x) . up)
    void gated(const Matrix& x, const Norm& norm, const Linear& gate, const Linear& up, Gate activation, bool bf16,
               const Output& to);

  private:
    // What is wanted of the rows, and where it lies in the scratch memory.
    struct Preparation {
        Norm norm;
        bool int8, meet_minima, whole_int8, pairs, floats;
        int num_in, num_blocks, padded;
        size_t num_rows;

        size_t num_bytes() const;
        Activations laid_out(uint8_t* memory) const;
    };
    Preparation preparation(const Matrix& x, const Norm& norm, const Linear& weight, const Linear* other, bool bf16) const;
    // `normed`: room for one row.
    void prepare(const Matrix& x, int first_row, int end_row, const Preparation& how, float* normed, const Activations& to) const;
    void cut_into_groups(int num_rows);

    void linear_in_pairs(const Matrix& x, const Preparation& how, const LinearView& view, bool bf16, const Output& to);

    // Prepares the rows and calls what(prepared, item) for every item, on all threads.
    template <class What>
    void with_prepared(const Matrix& x, const Preparation& how, int num_items, What what);
    // The same with pieces of all groups and tiles: what(prepared, groups, number of groups, first tile, end tile).
    template <class What>
    void with_pieces(const Matrix& x, const Preparation& how, int num_tiles, What what);

    const Kernels& kernels_;
    ThreadPool& pool_;
    std::vector<RowGroup> groups_;
    std::vector<uint8_t> has_prepared_;
    Scratch scratch_, normed_;
};

}  // namespace headrace

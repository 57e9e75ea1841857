// A forward pass, recorded once and replayed with any number of rows.
//
// Knows operations, which of them need one another's results, and where results lie. Knows kernels, not models: what is
// appended is what the model called. Does not know threads or Python.
//
// What a replay computes has the same bits as the operations run one by one: what `finish` changes is only where and when
// rows are computed, never how. It
//  - selects rows as early as it can: an operation on single rows need not compute rows that nobody asks for afterwards;
//  - norms rows where they are prepared for a product, if nothing else needs the normed rows;
//  - gives every result a place for as long as it is needed. A place is so many floats per row, so that few rows lie close
//    together, in a cache, and many take no more than they need.
#pragma once

#include <memory>
#include <vector>

#include "machine.h"
#include "operation.h"
#include "tensor.h"

namespace headrace {

class Tape {
  public:
    // A result to come: a row for each token, or for each selected row.
    int add_value(bool is_selected, int columns, bool is_dense);
    void append(const Operation& operation);
    int columns_of(int value) const { return values_[size_t(value)].columns; }
    bool is_selected(int value) const { return values_[size_t(value)].is_selected; }

    // Nothing is appended afterwards. `result`: a value of selected rows.
    void finish(int result);

    // Writes the result's rows to `result`. Raises std::invalid_argument where the step does not fit the caches.
    void replay(Machine& machine, const Step& step, const Matrix& result);

    int result_columns() const { return columns_of(result_); }
    size_t num_operations() const { return operations_.size(); }
    size_t floats_per_token() const { return size_[0]; }

  private:
    struct Value {
        bool is_selected, is_dense;
        int columns;
        size_t offset = 0;  // floats per row

        size_t floats_per_row() const { return (size_t(row_stride(columns, is_dense)) + 15) / 16 * 16; }
    };

    int num_uses(int value) const;
    int producer_of(int value) const;
    int selected(int value, size_t before);
    bool select_earlier();
    void fuse_norms();
    void lay_out();

    std::vector<Value> values_;
    std::vector<Operation> operations_;
    int result_ = -1;
    size_t size_[2] = {0, 0};  // floats per token, per selected row
    Scratch scratch_[2];
    std::vector<Matrix> matrices_;
};

}  // namespace headrace

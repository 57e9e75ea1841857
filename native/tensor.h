// Activations: matrices of float32, and the memory that they live in.
//
// Knows how rows lie. Does not know what they hold.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "memory.h"

namespace headrace {

// [rows, columns]; rows lie `stride` apart. A view: the memory is somebody else's.
struct Matrix {
    float* data = nullptr;
    int rows = 0, columns = 0;
    int64_t stride = 0;

    float* row(int i) const { return data + size_t(i) * size_t(stride); }
};

// Floats from one row to the next. Dense rows are for kernels that index a whole matrix, and for numpy.
inline int64_t row_stride(int columns, bool is_dense) {
    if (is_dense) return columns;
    const int64_t stride = (columns + 15) / 16 * 16;
    return stride % 1024 == 0 ? stride + 16 : stride;  // rows a multiple of 4 KB apart would share few cache sets
}

// A matrix with memory of its own.
class Tensor {
  public:
    Tensor(std::shared_ptr<BlockCache> cache, int rows, int columns, bool is_dense = false) : cache_(std::move(cache)) {
        matrix = {nullptr, rows, columns, row_stride(columns, is_dense)};
        matrix.data = cache_->take(size_t(rows) * size_t(matrix.stride), size_class_);
    }
    ~Tensor() { cache_->give_back(matrix.data, size_class_); }
    Tensor(const Tensor&) = delete;
    Tensor& operator=(const Tensor&) = delete;

    Matrix matrix;

  private:
    std::shared_ptr<BlockCache> cache_;
    int size_class_ = 0;
};

}  // namespace headrace

// One layer's keys and values for every block.
//
// Knows where a block's pieces lie. Does not know whose blocks they are.
#pragma once

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "kernels.h"
#include "memory.h"

namespace headrace {

class Cache {
  public:
    // `shape` without its memory.
    explicit Cache(const AttentionView& shape) : view(shape), bytes_(num_elements() * element_bytes()) {
        view.keys = bytes_.data();
        view.values = bytes_.data() + view.key_head() * size_t(view.num_kv_heads) * element_bytes();
    }
    AttentionView view;

    size_t num_elements() const { return (view.key_head() + view.value_head()) * size_t(view.num_kv_heads); }
    size_t element_bytes() const { return view.is_bf16 ? 2 : 4; }

    void copy_block(int64_t from, int64_t to) {
        std::vector<uint8_t*> sources;
        for_block(from, [&](uint8_t* piece, size_t) { sources.push_back(piece); });
        size_t i = 0;
        for_block(to, [&](uint8_t* piece, size_t n) { std::memmove(piece, sources[i++], n); });
    }

    // Replaces what is not finite by zeros.
    void make_finite(int64_t block) {
        for_block(block, [&](uint8_t* piece, size_t n) {
            if (view.is_bf16) {
                uint16_t* x = (uint16_t*)piece;
                for (size_t i = 0; i < n / 2; ++i)
                    if ((x[i] & 0x7F80) == 0x7F80) x[i] = 0;
            } else {
                float* x = (float*)piece;
                for (size_t i = 0; i < n / 4; ++i)
                    if (!std::isfinite(x[i])) x[i] = 0.0f;
            }
        });
    }

  private:
    // Calls what(first byte, number of bytes) for each of a block's pieces.
    template <class What>
    void for_block(int64_t block, What what) {
        if (block < 0 || block >= view.num_blocks) throw std::invalid_argument("no such block");
        const size_t size = element_bytes(), pages = size_t(view.block_size / 16);
        for (int h = 0; h < view.num_kv_heads; ++h) {
            const size_t key = view.key_page() * pages * size, value = view.value_page() * pages * size;
            what((uint8_t*)view.keys + view.key_head() * size_t(h) * size + key * size_t(block), key);
            what((uint8_t*)view.values + view.value_head() * size_t(h) * size + value * size_t(block), value);
        }
    }

    UntouchedZeros bytes_;
};

}  // namespace headrace

// One layer's keys and values for every block.
//
// Knows where a block's pieces lie. Does not know whose blocks they are.
#pragma once

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"
#include "memory.h"

namespace headrace {

inline KVFormat kv_format_of(const std::string& name) {
    if (name == "float32") return KVFormat::F32;
    if (name == "bfloat16") return KVFormat::BF16;
    if (name == "int8") return KVFormat::INT8;
    if (name == "fp8_e4m3") return KVFormat::FP8;
    throw std::invalid_argument("no cache holds " + name);
}

class Cache {
  public:
    // `shape` without its memory.
    explicit Cache(const AttentionView& shape) : view(shape), bytes_(shape.num_bytes()) {
        if (view.block_size % kPageTokens) throw std::invalid_argument("blocks are of whole pages of 16 tokens");
        if (view.head_dim % 2 || view.head_dim > kMostHeadDim)
            throw std::invalid_argument("heads have an even number of dimensions, at most 1024");
        view.keys = bytes_.data();
        view.values = bytes_.data() + view.key_head() * size_t(view.num_kv_heads);
    }
    AttentionView view;

    void copy_block(int64_t from, int64_t to) {
        std::vector<uint8_t*> sources;
        for_block(from, [&](uint8_t* piece, size_t, size_t) { sources.push_back(piece); });
        size_t i = 0;
        for_block(to, [&](uint8_t* piece, size_t n, size_t) { std::memmove(piece, sources[i++], n); });
    }

    // Replaces what is not finite by zeros.
    void make_finite(int64_t block) {
        for_block(block, [&](uint8_t* piece, size_t n, size_t page) {
            if (view.format == KVFormat::BF16) {
                uint16_t* x = (uint16_t*)piece;
                for (size_t i = 0; i < n / 2; ++i)
                    if ((x[i] & 0x7F80) == 0x7F80) x[i] = 0;
            } else if (view.format == KVFormat::F32) {
                for (size_t i = 0; i < n; i += 4) clear_unless_finite(piece + i);
            } else {  // codes are finite; the scales stand behind each page's codes
                for (size_t end = page; end <= n; end += page)
                    for (size_t i = end - kPageTokens * 4; i < end; i += 4) clear_unless_finite(piece + i);
            }
        });
    }

  private:
    static void clear_unless_finite(uint8_t* p) {
        float x;
        std::memcpy(&x, p, 4);
        if (!std::isfinite(x)) std::memset(p, 0, 4);
    }

    // Calls what(first byte, number of bytes, bytes of a page) for each of a block's pieces.
    template <class What>
    void for_block(int64_t block, What what) {
        if (block < 0 || block >= view.num_blocks) throw std::invalid_argument("no such block");
        const size_t pages = size_t(view.block_size / kPageTokens), at = pages * size_t(block);
        for (size_t h = 0; h < size_t(view.num_kv_heads); ++h) {
            what(view.keys + view.key_head() * h + view.key_page() * at, view.key_page() * pages, view.key_page());
            what(view.values + view.value_head() * h + view.value_page() * at, view.value_page() * pages, view.value_page());
        }
    }

    UntouchedZeros bytes_;
};

}  // namespace headrace

// What is done to one row at a time: norms, sums, rotation and the writing of keys and values.
//
// Knows rows and the cache's layout. Does not know which rows, nor threads.
#pragma once

#include "kernels.h"
#include "kv_pages.h"
#include "simd.h"

namespace headrace {
namespace HEADRACE_ISA {

static INLINE float sum_of_squares(const float* x, int size) {
    F total = zero();
    int i = 0;
    for (; i + 16 <= size; i += 16) {
        const F v = load(x + i);
        total = fma(v, v, total);
    }
    if (i < size) {
        const F v = load_n(x + i, size - i);
        total = fma(v, v, total);
    }
    return sum_of_lanes(total);
}

static void rms_norm(const float* x, const float* weight, float eps, int size, float* out) {
    const F scale = set1(1.0f / std::sqrt(sum_of_squares(x, size) / float(size) + eps));
    int i = 0;
    for (; i + 16 <= size; i += 16) store(out + i, load(x + i) * scale * load(weight + i));
    if (i < size) store_n(out + i, load_n(x + i, size - i) * scale * load_n(weight + i, size - i), size - i);
}

static void add_scaled(const float* x, const float* y, float scale, int size, float* out) {
    const F s = set1(scale);
    int i = 0;
    for (; i + 16 <= size; i += 16) store(out + i, fma(load(y + i), s, load(x + i)));
    if (i < size) store_n(out + i, fma(load_n(y + i, size - i), s, load_n(x + i, size - i)), size - i);
}

// rotation: cos [rotary_dim / 2], then sin [rotary_dim / 2].
static INLINE void rotate(float* head, const float* rotation, int half) {
    int i = 0;
    for (; i + 16 <= half; i += 16) {
        const F x = load(head + i), y = load(head + half + i), c = load(rotation + i), s = load(rotation + half + i);
        store(head + i, x * c - y * s);
        store(head + half + i, y * c + x * s);
    }
    if (i < half) {
        const int n = half - i;
        const F x = load_n(head + i, n), y = load_n(head + half + i, n);
        const F c = load_n(rotation + i, n), s = load_n(rotation + half + i, n);
        store_n(head + i, x * c - y * s, n);
        store_n(head + half + i, y * c + x * s, n);
    }
}

// qkv: one row, used up. q: one row of the queries.
static void rope_and_cache(float* qkv, const AttentionView& a, const HeadNorm& norm, const float* rotation, int rotary_dim,
                           int64_t slot, float* q) {
    const int num_rotated = a.num_heads + a.num_kv_heads;
    for (int h = 0; h < num_rotated; ++h) {
        float* head = qkv + size_t(h) * a.head_dim;
        const float* weight = h < a.num_heads ? norm.query : norm.key;
        if (weight) rms_norm(head, weight, norm.eps, a.head_dim, head);
        if (rotation) rotate(head, rotation, rotary_dim / 2);
    }
    std::memcpy(q, qkv, size_t(a.num_heads) * a.head_dim * 4);
    for (int h = 0; h < a.num_kv_heads; ++h) {
        write_key(a, h, slot, qkv + size_t(a.num_heads + h) * a.head_dim);
        write_value(a, h, slot, qkv + size_t(num_rotated + h) * a.head_dim);
    }
}

// A token's key is a word in each line of its page: without this, writing waits for one line of memory after another.
static void expect_slot(const AttentionView& a, int64_t slot) {
    const size_t page = size_t(slot) / kPageTokens, token = size_t(slot) % kPageTokens;
    const size_t word = a.format == KVFormat::F32 ? 1 : a.format == KVFormat::BF16 ? 2 : 4;  // neighbours in 32 bits
    const size_t row = size_t(a.value_dim) * 4;
    for (int h = 0; h < a.num_kv_heads; ++h) {
        const uint8_t* keys = a.keys + a.key_head() * size_t(h) + a.key_page() * page;
        for (size_t i = 0; i < a.key_page(); i += 64) prefetch(keys + i);
        const uint8_t* values = a.values + a.value_head() * size_t(h) + a.value_page() * page + token / word * row;
        for (size_t i = 0; i < row; i += 64) prefetch(values + i);
    }
}

}  // namespace HEADRACE_ISA
}  // namespace headrace

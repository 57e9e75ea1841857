// Attention of a few neighbouring rows of one sequence, for one KV head, over its pages of keys and values.
//
// Knows pages and the softmax that is corrected as it goes (Milakov and Gimelshein, 2018). Does not know which rows, nor
// threads. Pages are taken in chunks of 64 tokens that start at multiples of 64, whatever rows share the pages: a row's sums
// are therefore formed in one order, and its bits do not depend on how its sequence was cut into steps.
#pragma once

#include "products.h"

namespace headrace {
namespace HEADRACE_ISA {

constexpr int kPageTokens = 16;
constexpr int kChunkPages = 4;
constexpr int kChunkTokens = kPageTokens * kChunkPages;

// scores[r][page * 16 ..]: R rows against kPages pages of keys.
template <class Sums, int R, int kPages>
static void score_pages(const typename Sums::Row* q, size_t q_stride, const typename Sums::Column* const* pages, int head_dim,
                        float* scores) {
    F sum[R][kPages];
    UNROLL for (int r = 0; r < R; ++r) {
        UNROLL for (int p = 0; p < kPages; ++p) sum[r][p] = zero();
    }
    const typename Sums::Column* keys[kPages];
    UNROLL for (int p = 0; p < kPages; ++p) keys[p] = pages[p];
    for (int d = 0; d < head_dim; d += 2) {
        typename Sums::Operand k[kPages];
        UNROLL for (int p = 0; p < kPages; ++p) k[p] = Sums::column(keys[p] + d * 16, 16);
        UNROLL for (int r = 0; r < R; ++r) {
            UNROLL for (int p = 0; p < kPages; ++p) sum[r][p] = Sums::add(sum[r][p], q + r * q_stride + d, k[p]);
        }
    }
    UNROLL for (int r = 0; r < R; ++r) {
        UNROLL for (int p = 0; p < kPages; ++p) store(scores + r * kChunkTokens + p * kPageTokens, sum[r][p]);
    }
}

// totals[r][dims] = totals[r][dims] * corrections[r] + weights[r] . values, for R rows and kVectors * 16 dimensions.
template <class Sums, int R, int kVectors>
static void sum_values(const typename Sums::Row* weights, const typename Sums::Column* const* pages, int num_pages,
                       int value_dim, int first_dim, const float* corrections, float* totals) {
    constexpr bool kInterleaved = sizeof(typename Sums::Column) == 2;
    F total[R][kVectors];
    UNROLL for (int r = 0; r < R; ++r) {
        UNROLL for (int v = 0; v < kVectors; ++v)
            total[r][v] = load(totals + size_t(r) * value_dim + first_dim + v * 16) * set1(corrections[r]);
    }
    for (int p = 0; p < num_pages; ++p) {
        const typename Sums::Column* values = pages[p] + first_dim * (kInterleaved ? 2 : 1);
        const typename Sums::Row* w = weights + p * kPageTokens;
        for (int t = 0; t < kPageTokens; t += 2, values += size_t(value_dim) * 2) {
            typename Sums::Operand column[kVectors];
            UNROLL for (int v = 0; v < kVectors; ++v)
                column[v] = Sums::column(values + v * (kInterleaved ? 32 : 16), size_t(value_dim));
            UNROLL for (int r = 0; r < R; ++r) {
                UNROLL for (int v = 0; v < kVectors; ++v)
                    total[r][v] = Sums::add(total[r][v], w + r * kChunkTokens + t, column[v]);
            }
        }
    }
    UNROLL for (int r = 0; r < R; ++r) {
        UNROLL for (int v = 0; v < kVectors; ++v) store(totals + size_t(r) * value_dim + first_dim + v * 16, total[r][v]);
    }
}

template <class Sums, int R>
static INLINE void score_rows(const typename Sums::Row* q, size_t q_stride, const typename Sums::Column* const* pages,
                              int num_pages, int head_dim, float* scores) {
    constexpr int kTogether = kMaxGroup == 16 ? (R <= 3 ? 4 : R <= 6 ? 2 : 1) : 1;
    int p = 0;
    for (; p + kTogether <= num_pages; p += kTogether)
        score_pages<Sums, R, kTogether>(q, q_stride, pages + p, head_dim, scores + p * kPageTokens);
    for (; p < num_pages; ++p) score_pages<Sums, R, 1>(q, q_stride, pages + p, head_dim, scores + p * kPageTokens);
}

template <class Sums, int R>
static INLINE void sum_rows(const typename Sums::Row* weights, const typename Sums::Column* const* pages, int num_pages,
                            int value_dim, const float* corrections, float* totals) {
    constexpr int kTogether = kMaxGroup == 16 ? (R <= 3 ? 4 : R <= 6 ? 2 : 1) : 1;
    int d = 0;
    for (; d + kTogether * 16 <= value_dim; d += kTogether * 16)
        sum_values<Sums, R, kTogether>(weights, pages, num_pages, value_dim, d, corrections, totals);
    for (; d < value_dim; d += 16) sum_values<Sums, R, 1>(weights, pages, num_pages, value_dim, d, corrections, totals);
}

// Calls what(first, std::integral_constant<int, R>) for pieces of [first, end).
template <class What>
static INLINE void in_pieces(int first, int end, What what) {
    constexpr int kMost = kMaxGroup == 16 ? 8 : 4;
    for (; first + kMost <= end; first += kMost) what(first, std::integral_constant<int, kMost>());
    switch (end - first) {
        case 7: what(first, std::integral_constant<int, 4>()); first += 4; [[fallthrough]];
        case 3: what(first, std::integral_constant<int, 3>()); break;
        case 6: what(first, std::integral_constant<int, kMaxGroup == 16 ? 6 : 4>()); break;
        case 5: what(first, std::integral_constant<int, 4>()); first += 4; [[fallthrough]];
        case 1: what(first, std::integral_constant<int, 1>()); break;
        case 4: what(first, std::integral_constant<int, 4>()); break;
        case 2: what(first, std::integral_constant<int, 2>()); break;
        default: break;
    }
}

static INLINE void to_rows(const float* x, int n, float* out) { std::memcpy(out, x, size_t(n) * 4); }
static INLINE void to_rows(const float* x, int n, uint16_t* out) {
#if defined(__AVX512BF16__)
    for (int i = 0; i < n; i += 16) {
        const __mmask16 lanes = n - i >= 16 ? __mmask16(0xFFFF) : __mmask16((1u << (n - i)) - 1);
        _mm256_mask_storeu_epi16(out + i, lanes, (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(lanes, x + i)));
    }
#else
    for (int i = 0; i < n; ++i) out[i] = float_to_bf16(x[i]);
#endif
}

// Floats that one tile needs.
static size_t attention_scratch(const AttentionView& a) {
    const size_t rows = size_t(kAttentionRows) * (a.num_heads / a.num_kv_heads);
    return rows * (a.head_dim + 16 + 2 * kChunkTokens + a.value_dim + 16 + 16) + 64;
}

template <class Sums>
static void attend(const AttentionView& a, const AttentionTile& tile, int kv_head, const float* q, float* out,
                   float* scratch) {
    typedef typename Sums::Row Row;
    typedef typename Sums::Column Column;
    const int group = a.num_heads / a.num_kv_heads, num_rows = tile.num_rows * group;
    const size_t width = size_t(a.num_heads) * a.head_dim, q_stride = size_t(a.head_dim + 1) / 2 * 2;

    float* scores = scratch;                                    // [rows][64]
    Row* weights = (Row*)(scores + num_rows * kChunkTokens);    // [rows][64]
    float* totals = scores + 2 * num_rows * kChunkTokens;       // [rows][value_dim]
    float* norms = totals + size_t(num_rows) * a.value_dim;     // [rows][16]: sums of weights, lane by lane
    float* greatest = norms + num_rows * 16;                    // [rows]
    float* corrections = greatest + num_rows;                   // [rows]
    Row* queries = (Row*)(corrections + num_rows + 14);         // [rows][q_stride]
    std::memset(totals, 0, (size_t(num_rows) * a.value_dim + size_t(num_rows) * 16) * 4);
    for (int row = 0; row < num_rows; ++row) {
        const size_t token = size_t(tile.first_row + row / group);
        to_rows(q + token * width + size_t(kv_head * group + row % group) * a.head_dim, a.head_dim, queries + row * q_stride);
        greatest[row] = -INFINITY;
    }

    const int last = tile.position + tile.num_rows - 1;  // the last position that attends
    const int first_seen = a.window ? std::max(0, tile.position - a.window + 1) : 0;
    const Column* keys = (const Column*)a.keys + a.key_head() * kv_head;
    const Column* values = (const Column*)a.values + a.value_head() * kv_head;
    const int pages_per_block = a.block_size / kPageTokens;
    const F scale = set1(a.scale);

    for (int start = first_seen / kChunkTokens * kChunkTokens; start <= last; start += kChunkTokens) {
        const Column *key_pages[kChunkPages], *value_pages[kChunkPages];
        const int num_pages = std::min(kChunkPages, (last - start) / kPageTokens + 1);
        for (int p = 0; p < num_pages; ++p) {
            const int token_page = start / kPageTokens + p;
            const size_t page = size_t(tile.block_ids[token_page / pages_per_block]) * pages_per_block +
                                size_t(token_page % pages_per_block);
            key_pages[p] = keys + a.key_page() * page;
            value_pages[p] = values + a.value_page() * page;
        }
        // The rows that see any of this chunk: not those before it, nor those whose window begins behind it.
        const int first_token = std::max(0, start - tile.position);
        const int end_token =
            a.window ? std::min(tile.num_rows, start + kChunkTokens + a.window - 1 - tile.position) : tile.num_rows;
        const int first = first_token * group, end = end_token * group;

        in_pieces(first, end, [&](int row, auto R) {
            score_rows<Sums, R.value>(queries + row * q_stride, q_stride, key_pages, num_pages, a.head_dim,
                                      scores + row * kChunkTokens);
        });
        for (int row = first; row < end; ++row) {
            const int position = tile.position + row / group;
            const int unmasked = a.window ? std::max(0, position - a.window + 1) : 0;
            F s[kChunkPages];
            F best = set1(greatest[row]);
            for (int p = 0; p < num_pages; ++p) {
                const int page_start = start + p * kPageTokens;
                s[p] = load(scores + row * kChunkTokens + p * kPageTokens) * scale;
                if (a.softcap != 0.0f) s[p] = set1(a.softcap) * tanh(s[p] / set1(a.softcap));
                const int from = std::min(16, std::max(0, unmasked - page_start));
                const int to = std::max(0, std::min(16, position + 1 - page_start));
                if (from > 0 || to < 16) s[p] = outside_to_minus_infinity(s[p], from, to);
                best = max(best, s[p]);
            }
            const float highest = max_of_lanes(best);
            const F shift = set1(highest);
            alignas(64) float weight[kChunkTokens];
            float correction[16];
            store(correction, exp(set1(greatest[row]) - shift));
            F norm = load(norms + row * 16) * set1(correction[0]);
            for (int p = 0; p < num_pages; ++p) {
                const F w = exp(s[p] - shift);
                norm = norm + w;
                store(weight + p * kPageTokens, w);
            }
            store(norms + row * 16, norm);
            to_rows(weight, num_pages * kPageTokens, weights + row * kChunkTokens);
            greatest[row] = highest;
            corrections[row] = correction[0];
        }
        in_pieces(first, end, [&](int row, auto R) {
            sum_rows<Sums, R.value>(weights + row * kChunkTokens, value_pages, num_pages, a.value_dim, corrections + row,
                                    totals + size_t(row) * a.value_dim);
        });
    }

    for (int row = 0; row < num_rows; ++row) {
        const F inverse = set1(1.0f / sum_of_lanes(load(norms + row * 16)));
        const size_t token = size_t(tile.first_row + row / group);
        float* to = out + token * width + size_t(kv_head * group + row % group) * a.head_dim;
        const float* total = totals + size_t(row) * a.value_dim;
        for (int d = 0; d < a.head_dim; d += 16) {
            const int n = std::min(16, a.head_dim - d);
            store_n(to + d, load(total + d) * inverse, n);
        }
    }
}

static void attention(const AttentionView& a, const AttentionTile& tile, int kv_head, const float* q, float* out,
                      float* scratch) {
    if (!a.is_bf16) attend<Float32Sums>(a, tile, kv_head, q, out, scratch);
    else attend<PairedSums>(a, tile, kv_head, q, out, scratch);
}

}  // namespace HEADRACE_ISA
}  // namespace headrace

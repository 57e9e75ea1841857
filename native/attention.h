// Attention of a few neighbouring rows of one sequence, for one KV head, over its pages of keys and values.
//
// Knows pages and the softmax that is corrected as it goes (Milakov and Gimelshein, 2018), and how the sums of several parts
// of a context are joined (Dao et al., "Flash-Decoding", 2023). Does not know which rows, nor threads. Pages are taken in
// chunks of 64 tokens that start at multiples of 64, and chunks in parts of kPartTokens, whatever rows share the pages: a
// row's sums are therefore formed in one order, and its bits do not depend on how its sequence was cut into steps, nor on
// what was computed beside it.
#pragma once

#include "attention_tiles.h"
#include "kv_pages.h"
#include "softmax.h"

namespace headrace {
namespace HEADRACE_ISA {

constexpr int kChunkPages = 4;
constexpr int kChunkTokens = kPageTokens * kChunkPages;
static_assert(kPartTokens % kChunkTokens == 0, "parts are of whole chunks");

// Rows that are computed together, and columns (in vectors of sixteen) that as many rows leave registers for: fewer where
// words are taken apart first. And up to how many rows what is read next is asked for early: with few rows, waiting for memory
// is what takes time. A prototype on AVX-512 lost by that where blocks lie in order, which the block pool sees to. There,
// pages of keys are read one behind the other: one stream of memory, which the processor runs ahead of, at twice the rate of
// four that take turns.
#if defined(__AVX512F__)
constexpr int kMostRows = 8, kRowsToPrefetchFor = 0;
template <class Words>
constexpr int columns_beside(int rows) { return rows <= 3 ? 4 : rows <= 6 ? 2 : 1; }
template <class Words>
constexpr int pages_beside(int) { return 1; }
#elif defined(__AVX2__)
constexpr int kMostRows = 6, kRowsToPrefetchFor = 4;
template <class Words>
constexpr int columns_beside(int rows) {
    if (Words::kParts == 1) return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
    return rows == 1 ? (Words::kParts == 2 ? 4 : 2) : rows == 2 ? 2 : 1;
}
template <class Words>
constexpr int pages_beside(int rows) { return columns_beside<Words>(rows); }
#else
constexpr int kMostRows = 4, kRowsToPrefetchFor = 0;
template <class Words>
constexpr int columns_beside(int) { return 1; }
template <class Words>
constexpr int pages_beside(int) { return 1; }
#endif
// From so many rows on, pages are turned into float32 once instead of once for each kMostRows rows.
constexpr int kRowsToExpandFor = 2 * kMostRows + 1;

// Calls what(first, std::integral_constant<int, R>) for pieces of [first, end).
template <class What>
static INLINE void in_pieces(int first, int end, What what) {
    for (; first + kMostRows <= end; first += kMostRows) what(first, std::integral_constant<int, kMostRows>());
    constexpr int kSix = kMostRows >= 6 ? 6 : 4;
    switch (end - first) {
        case 7: what(first, std::integral_constant<int, 4>()); first += 4; [[fallthrough]];
        case 3: what(first, std::integral_constant<int, 3>()); break;
        case 6: what(first, std::integral_constant<int, kSix>()); break;
        case 5: what(first, std::integral_constant<int, 4>()); first += 4; [[fallthrough]];
        case 1: what(first, std::integral_constant<int, 1>()); break;
        case 4: what(first, std::integral_constant<int, 4>()); break;
        case 2: what(first, std::integral_constant<int, 2>()); break;
        default: break;
    }
}

// scores[r][page * 16 ..]: R rows against kPages pages of keys. `ahead`: pages to be read next, or null.
template <class Words, int R, int kPages>
static void score_pages(const typename Words::Row* q, size_t q_stride, const uint8_t* const* pages,
                        const uint8_t* const* ahead, int key_dim, float* scores) {
    F sum[R][kPages];
    UNROLL for (int r = 0; r < R; ++r) {
        UNROLL for (int p = 0; p < kPages; ++p) sum[r][p] = zero();
    }
    const uint8_t* keys[kPages];
    UNROLL for (int p = 0; p < kPages; ++p) keys[p] = pages[p];
    for (int d = 0; d < key_dim; q += Words::kParts * Words::kElements, d += Words::kParts * Words::kElements) {
        UNROLL for (int p = 0; p < kPages; ++p) {
            const I words = load_words(keys[p]);
            if (R <= kRowsToPrefetchFor) prefetch(ahead[p] + (keys[p] - pages[p]));
            keys[p] += 64;
            UNROLL for (int i = 0; i < Words::kParts; ++i) {
                const typename Words::Operand k = Words::part(words, i);
                UNROLL for (int r = 0; r < R; ++r)
                    sum[r][p] = Words::add(sum[r][p], q + r * q_stride + i * Words::kElements, k);
            }
        }
    }
    UNROLL for (int r = 0; r < R; ++r) {
        UNROLL for (int p = 0; p < kPages; ++p) store(scores + r * kChunkTokens + p * kPageTokens, sum[r][p]);
    }
}

// totals[r][dims] = totals[r][dims] * corrections[r] + weights[r] . values, for R rows and kVectors * 16 dimensions.
template <class Words, int R, int kVectors>
static void sum_values(const typename Words::Row* weights, const uint8_t* const* pages, int num_pages, int value_dim,
                       int first_dim, const uint8_t* const* ahead, const float* corrections, float* totals,
                       size_t stride) {
    F total[R][kVectors];
    UNROLL for (int r = 0; r < R; ++r) {
        UNROLL for (int v = 0; v < kVectors; ++v)
            total[r][v] = load(totals + r * stride + first_dim + v * 16) * set1(corrections[r]);
    }
    constexpr int kTogether = Words::kParts * Words::kElements;
    for (int p = 0; p < num_pages; ++p) {
        const uint8_t* values = pages[p] + first_dim * 4;
        const typename Words::Row* w = weights + p * kPageTokens;
        for (int t = 0; t < kPageTokens; t += kTogether, w += kTogether, values += size_t(value_dim) * 4) {
            UNROLL for (int v = 0; v < kVectors; ++v) {
                const I words = load_words(values + v * 64);
                if (R <= kRowsToPrefetchFor) prefetch(ahead[p] + (values - pages[p]) + v * 64);
                UNROLL for (int i = 0; i < Words::kParts; ++i) {
                    const typename Words::Operand column = Words::part(words, i);
                    UNROLL for (int r = 0; r < R; ++r)
                        total[r][v] = Words::add(total[r][v], w + r * kChunkTokens + i * Words::kElements, column);
                }
            }
        }
    }
    UNROLL for (int r = 0; r < R; ++r) {
        UNROLL for (int v = 0; v < kVectors; ++v) store(totals + r * stride + first_dim + v * 16, total[r][v]);
    }
}

template <class Words, int R>
static INLINE void score_rows(const typename Words::Row* q, size_t q_stride, const uint8_t* const* pages,
                              const uint8_t* const* ahead, int num_pages, int key_dim, float* scores) {
    constexpr int kTogether = pages_beside<Words>(R);
    int p = 0;
    for (; p + kTogether <= num_pages; p += kTogether)
        score_pages<Words, R, kTogether>(q, q_stride, pages + p, ahead + p, key_dim, scores + p * kPageTokens);
    for (; p < num_pages; ++p) score_pages<Words, R, 1>(q, q_stride, pages + p, ahead + p, key_dim, scores + p * kPageTokens);
}

template <class Words, int R>
static INLINE void sum_rows(const typename Words::Row* weights, const uint8_t* const* pages, const uint8_t* const* ahead,
                            int num_pages, int value_dim, const float* corrections, float* totals, size_t stride) {
    constexpr int kTogether = columns_beside<Words>(R);
    int d = 0;
    for (; d + kTogether * 16 <= value_dim; d += kTogether * 16)
        sum_values<Words, R, kTogether>(weights, pages, num_pages, value_dim, d, ahead, corrections, totals, stride);
    for (; d < value_dim; d += 16)
        sum_values<Words, R, 1>(weights, pages, num_pages, value_dim, d, ahead, corrections, totals, stride);
}

template <class Words>
static void score_all(const typename Words::Row* q, size_t q_stride, const uint8_t* const* pages,
                      const uint8_t* const* ahead, int num_pages, int key_dim, int first, int end, float* scores) {
    in_pieces(first, end, [&](int row, auto R) {
        score_rows<Words, R.value>(q + row * q_stride, q_stride, pages, ahead, num_pages, key_dim, scores + row * kChunkTokens);
    });
}

template <class Words>
static void sum_all(const typename Words::Row* weights, const uint8_t* const* pages, const uint8_t* const* ahead,
                    int num_pages, int value_dim, int first, int end, const float* corrections, float* totals, size_t stride) {
    in_pieces(first, end, [&](int row, auto R) {
        sum_rows<Words, R.value>(weights + row * kChunkTokens, pages, ahead, num_pages, value_dim, corrections + row,
                                 totals + row * stride, stride);
    });
}

static INLINE void to_row(F x, float* out) { store(out, x); }
static INLINE void to_row(F x, uint16_t* out) { store_bf16(out, x); }

// A row's sums: value_dim totals, the greatest score, the sum of weights.
static INLINE size_t sums_stride(const AttentionView& a) { return size_t(a.value_dim) + 16; }
static INLINE int most_rows(const AttentionView& a) { return kAttentionRows * (a.num_heads / a.num_kv_heads); }
static INLINE int tile_rows(const AttentionView& a, const AttentionTile& tile) {
    return tile.num_rows * (a.num_heads / a.num_kv_heads);
}

static size_t attention_sums(const AttentionView& a) { return size_t(most_rows(a)) * sums_stride(a); }

static size_t part_scratch(const AttentionView& a) {
    const size_t rows = size_t(most_rows(a) + 15) / 16 * 16;
    const size_t floats =
        rows * (2 * kChunkTokens + size_t(a.key_dim) + 16 + 3) + 16 + size_t(kChunkTokens) * size_t(a.key_dim + a.value_dim);
#if defined(__AMX_BF16__)
    return std::max(floats, tiles_scratch(a));
#else
    return floats;
#endif
}

static size_t attention_scratch(const AttentionView& a) { return part_scratch(a) + 2 * attention_sums(a); }

template <class Words>
static void attend_part(const AttentionView& a, const AttentionTile& tile, int kv_head, int part, const float* q, float* sums,
                        float* scratch) {
    typedef typename Words::Row Row;
    const int group = a.num_heads / a.num_kv_heads, num_rows = tile_rows(a, tile);
    const size_t width = size_t(a.num_heads) * a.head_dim, q_stride = size_t(a.key_dim), stride = sums_stride(a);
    const size_t padded = size_t(num_rows + 15) / 16 * 16;

    float* expanded_keys = scratch;                                      // [64][key_dim], page by page
    float* expanded_values = expanded_keys + kChunkTokens * a.key_dim;   // [64][value_dim]
    float* scores = expanded_values + kChunkTokens * a.value_dim;        // [rows][64]
    Row* weights = (Row*)(scores + padded * kChunkTokens);               // [rows][64]
    float* norms = scores + 2 * padded * kChunkTokens;                   // [rows][16]: sums of weights, lane by lane
    float* greatest = norms + padded * 16;                               // [rows]
    float* highest = greatest + padded;                                  // [rows]: with this chunk
    float* corrections = highest + padded;                               // [rows]
    Row* queries = (Row*)(corrections + padded);                         // [rows][key_dim]
    std::memset(norms, 0, padded * 16 * 4);
    for (size_t row = 0; row < padded; ++row) greatest[row] = highest[row] = -INFINITY;
    for (int row = 0; row < num_rows; ++row) {
        const size_t token = tile.row(row / group);
        Row* query = queries + row * q_stride;
        const float* from = q + token * width + size_t(kv_head * group + row % group) * a.head_dim;
        for (int d = 0; d < a.head_dim; d += 16) {
            const int n = std::min(16, a.head_dim - d);
            to_row(n == 16 ? load(from + d) : load_n(from + d, n), query + d);  // zeros beyond; the next row begins there
        }
        std::memset(sums + row * stride, 0, size_t(a.value_dim) * 4);
    }

    const int last = std::min(tile.position + tile.num_rows, (part + 1) * kPartTokens) - 1;  // the last that is attended to
    const int first_seen = std::max(part * kPartTokens, a.window ? tile.position - a.window + 1 : 0);
    const uint8_t* keys = a.keys + a.key_head() * size_t(kv_head);
    const uint8_t* values = a.values + a.value_head() * size_t(kv_head);
    const int pages_per_block = a.block_size / kPageTokens;
    const F scale = set1(a.softcap != 0.0f ? a.scale * Words::kUnit : a.scale * Words::kUnit * kLog2OfE);

    for (int start = first_seen / kChunkTokens * kChunkTokens; start <= last; start += kChunkTokens) {
        const uint8_t *key_pages[kChunkPages], *value_pages[kChunkPages];
        const float *key_scales[kChunkPages], *value_scales[kChunkPages];
        const int num_pages = std::min(kChunkPages, (last - start) / kPageTokens + 1);
        for (int p = 0; p < num_pages; ++p) {
            const int token_page = start / kPageTokens + p;
            const size_t page = size_t(tile.block_ids[token_page / pages_per_block]) * size_t(pages_per_block) +
                                size_t(token_page % pages_per_block);
            key_pages[p] = keys + a.key_page() * page;
            value_pages[p] = values + a.value_page() * page;
            key_scales[p] = (const float*)(key_pages[p] + size_t(a.key_dim) * kPageTokens);
            value_scales[p] = (const float*)(value_pages[p] + size_t(a.value_dim) * kPageTokens);
        }
        const uint8_t* next_pages[kChunkPages];
        for (int p = 0; p < num_pages; ++p) {  // of keys, in the next chunk
            const int token_page = std::min(start / kPageTokens + kChunkPages + p, last / kPageTokens);
            const size_t page = size_t(tile.block_ids[token_page / pages_per_block]) * size_t(pages_per_block) +
                                size_t(token_page % pages_per_block);
            next_pages[p] = keys + a.key_page() * page;
        }
        // The rows that see any of this chunk: not those before it, nor those whose window begins behind it.
        const int first_token = std::max(0, start - tile.position);
        const int end_token =
            a.window ? std::min(tile.num_rows, start + kChunkTokens + a.window - 1 - tile.position) : tile.num_rows;
        const int first = first_token * group, end = end_token * group;
        const bool expands = Words::kElements == 1 && Words::kParts > 1 && end - first >= kRowsToExpandFor;

        if constexpr (Words::kElements == 1 && Words::kParts > 1) {
            if (expands) {
                for (int p = 0; p < num_pages; ++p) {
                    float* page = expanded_keys + size_t(p) * kPageTokens * a.key_dim;
                    expand_keys<Words>(key_pages[p], a.key_dim, page);
                    key_pages[p] = (const uint8_t*)page;
                }
                score_all<FloatWords>(queries, q_stride, key_pages, value_pages, num_pages, a.key_dim, first, end, scores);
            }
        }
        if (!expands) score_all<Words>(queries, q_stride, key_pages, value_pages, num_pages, a.key_dim, first, end, scores);

        F factors[kChunkPages], value_factors[kChunkPages];
        for (int p = 0; p < num_pages; ++p) {
            factors[p] = Words::kHasScales ? load(key_scales[p]) * scale : scale;
            if (Words::kHasScales) value_factors[p] = load(value_scales[p]) * set1(Words::kUnit);
        }
        // Whether every row sees all of these pages.
        const bool sees_all = start + num_pages * kPageTokens <= tile.position + 1 &&
                              (!a.window || tile.position + tile.num_rows - a.window <= start);
        for (int row = first; row < end; ++row) {
            float* at = scores + row * kChunkTokens;
            F best = set1(greatest[row]);
            for (int p = 0; p < num_pages; ++p) {
                F s = load(at + p * kPageTokens) * factors[p];
                if (a.softcap != 0.0f) s = set1(a.softcap * kLog2OfE) * tanh(s / set1(a.softcap));
                if (!sees_all) {
                    const int position = tile.position + row / group, page_start = start + p * kPageTokens;
                    s = only_between(s, a.window ? position - a.window + 1 - page_start : 0, position + 1 - page_start);
                }
                store(at + p * kPageTokens, s);
                best = max(best, s);
            }
            highest[row] = greatest_lane(best);
        }
        for (int row = first / 16 * 16; row < end; row += 16)  // rows that see nothing here keep theirs: 2^0 is 1
            store(corrections + row, exp2_of_negative(load(greatest + row) - load(highest + row)));
        for (int row = first; row < end; ++row) {
            const F shift = set1(highest[row]);
            const float* at = scores + row * kChunkTokens;
            F norm = load(norms + row * 16) * set1(corrections[row]);
            for (int p = 0; p < num_pages; ++p) {
                const F w = exp2_of_negative(load(at + p * kPageTokens) - shift);
                norm = norm + w;
                to_row(Words::kHasScales ? w * value_factors[p] : w, weights + row * kChunkTokens + p * kPageTokens);
            }
            store(norms + row * 16, norm);
            greatest[row] = highest[row];
        }

        if constexpr (Words::kElements == 1 && Words::kParts > 1) {
            if (expands) {
                for (int p = 0; p < num_pages; ++p) {
                    float* page = expanded_values + size_t(p) * kPageTokens * a.value_dim;
                    expand_values<Words>(value_pages[p], a.value_dim, page);
                    value_pages[p] = (const uint8_t*)page;
                }
                sum_all<FloatWords>(weights, value_pages, next_pages, num_pages, a.value_dim, first, end, corrections, sums, stride);
            }
        }
        if (!expands) sum_all<Words>(weights, value_pages, next_pages, num_pages, a.value_dim, first, end, corrections, sums, stride);
    }
    for (int row = 0; row < num_rows; ++row) {
        sums[row * stride + size_t(a.value_dim)] = greatest[row];
        sums[row * stride + size_t(a.value_dim) + 1] = sum_of_lanes(load(norms + row * 16));
    }
}

static void attention_part(const AttentionView& a, const AttentionTile& tile, int kv_head, int part, const float* q,
                           float* sums, float* scratch) {
    switch (a.format) {
        case KVFormat::F32: return attend_part<FloatWords>(a, tile, kv_head, part, q, sums, scratch);
        case KVFormat::INT8: return attend_part<Int8Words>(a, tile, kv_head, part, q, sums, scratch);
        case KVFormat::FP8: return attend_part<Fp8Words>(a, tile, kv_head, part, q, sums, scratch);
        case KVFormat::BF16:
#if defined(__AMX_BF16__)
            return attend_part_in_tiles(a, tile, kv_head, part, q, sums, scratch);
#else
            return attend_part<Bf16Products>(a, tile, kv_head, part, q, sums, scratch);
#endif
    }
}

// Adds the sums of a later part to those of all earlier ones.
static void join_part(const AttentionView& a, const AttentionTile& tile, int part, float* sums, const float* later) {
    const int group = a.num_heads / a.num_kv_heads, num_rows = tile_rows(a, tile), start = part * kPartTokens;
    const size_t stride = sums_stride(a), dim = size_t(a.value_dim);
    for (int row = 0; row < num_rows; ++row) {
        const int position = tile.position + row / group;
        const int unmasked = a.window ? std::max(0, position - a.window + 1) : 0;
        if (position < start || unmasked >= start + kPartTokens) continue;  // sees nothing of this part
        float* mine = sums + row * stride;
        const float* other = later + row * stride;
        if (unmasked >= start) {  // and nothing of those before
            std::memcpy(mine, other, stride * 4);
            continue;
        }
        const F highest = max(set1(mine[dim]), set1(other[dim]));
        const F correction = exp2_of_negative(set1(mine[dim]) - highest), weight = exp2_of_negative(set1(other[dim]) - highest);
        for (size_t d = 0; d < dim; d += 16) store(mine + d, load(mine + d) * correction + load(other + d) * weight);
        float two[16];
        store(two, set1(mine[dim + 1]) * correction + set1(other[dim + 1]) * weight);
        mine[dim + 1] = two[0];
        store(two, highest);
        mine[dim] = two[0];
    }
}

static void finish(const AttentionView& a, const AttentionTile& tile, int kv_head, const float* sums, float* out) {
    const int group = a.num_heads / a.num_kv_heads, num_rows = tile_rows(a, tile);
    const size_t width = size_t(a.num_heads) * a.head_dim, stride = sums_stride(a);
    for (int row = 0; row < num_rows; ++row) {
        const float* total = sums + row * stride;
        const F inverse = set1(1.0f / total[a.value_dim + 1]);
        const size_t token = tile.row(row / group);
        float* to = out + token * width + size_t(kv_head * group + row % group) * a.head_dim;
        for (int d = 0; d < a.head_dim; d += 16)
            store_n(to + d, load(total + d) * inverse, std::min(16, a.head_dim - d));
    }
}

static void attention(const AttentionView& a, const AttentionTile& tile, int kv_head, const float* q, const float* const* known,
                      float* out, float* scratch) {
    float *sums = scratch + part_scratch(a), *later = sums + attention_sums(a);
    const int first = first_part(a, tile), end = end_part(tile);
    const auto sums_of = [&](int part, float* room) {
        if (known && known[part - first]) return known[part - first];
        attention_part(a, tile, kv_head, part, q, room, scratch);
        return (const float*)room;
    };
    const float* of_first = sums_of(first, sums);
    if (of_first != sums) std::memcpy(sums, of_first, size_t(tile_rows(a, tile)) * sums_stride(a) * 4);
    for (int part = first + 1; part < end; ++part) join_part(a, tile, part, sums, sums_of(part, later));
    finish(a, tile, kv_head, sums, out);
}

}  // namespace HEADRACE_ISA
}  // namespace headrace

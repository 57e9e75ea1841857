// Attention over a BF16 cache in the processor's tile registers.
//
// Knows pages, tiles and one part of a context. Does not know how parts are joined, nor threads. Sixteen rows at a time take a
// whole part in two passes: all their scores, of which the greatest is then known, and then their weights and the values, so
// that no sum is ever corrected within a part. A page of keys is laid out as the processor wants its second factor, a pair of
// pages of values as well. Whether a row is alone in its tile or one of sixteen, its products are summed in one order: the
// same path serves prompts and single tokens, and a row's bits do not depend on its company.
#pragma once

#if defined(__AMX_BF16__)

#include "kv_pages.h"
#include "softmax.h"
#include "tiles.h"

namespace headrace {
namespace HEADRACE_ISA {

constexpr int kTileRows = 16;
constexpr int kPartPages = kPartTokens / kPageTokens;
constexpr int kTileDims = 32;                        // dimensions of one product of queries and keys
constexpr size_t kScoresStride = kPartTokens + 16;   // floats: rows do not fall into the same lines of the nearest cache
constexpr int kPagesTogether = 4, kColumnTiles = 4;  // as many sums as tiles are left for
static_assert(kPartPages % kPagesTogether == 0, "parts are of whole rounds");

constexpr TileShapes whole_tiles() {
    TileShapes shapes;
    for (int i = 0; i < 8; ++i) shapes.with(i, 16, 64);
    return shapes;
}

template <int kTile>
INLINE void clear_tile() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kTile>
INLINE void load_tile(const void* rows, size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
INLINE void store_tile(void* rows, size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
}
// sums += rows . columns. The products of all pairs' first are summed in order, those of their second likewise, and the sum
// of the two is added.
template <int kSums, int kRows, int kColumns>
INLINE void multiply_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kRows), "i"(kColumns));
}

static INLINE int key_steps(const AttentionView& a) { return (a.key_dim + kTileDims - 1) / kTileDims; }

// Floats. Behind the scores: the queries, one page of keys and two pages of values.
static INLINE size_t tiles_scratch(const AttentionView& a) {
    return kTileRows * kScoresStride + 2 * size_t(key_steps(a)) * 16 * kTileRows + size_t(a.value_dim) * 16 + 3 * kTileRows + 64;
}

// The scores of sixteen queries with one page of keys. kSteps: of dimensions, whose queries are in tiles from 4 on already;
// 0 where they are more than tiles are left for.
template <int kSums, int kSteps>
static INLINE void score_page(const uint16_t* queries, size_t query_bytes, const uint8_t* keys, int num_steps, float* scores) {
    clear_tile<kSums>();
    if constexpr (kSteps == 0) {
        for (int k = 0; k < num_steps; ++k) {
            load_tile<4>(queries + k * kTileDims, query_bytes);
            load_tile<6>(keys + size_t(k) * 1024, 64);
            multiply_bf16<kSums, 4, 6>();
        }
    } else {
        load_tile<6>(keys, 64);
        multiply_bf16<kSums, 4, 6>();
        if constexpr (kSteps == 2) {
            load_tile<7>(keys + 1024, 64);
            multiply_bf16<kSums, 5, 7>();
        }
    }
    store_tile<kSums>(scores, kScoresStride * 4);
}

// What a part of a context is for sixteen rows.
struct TilesOfPart {
    const AttentionView& a;
    const AttentionTile& tile;
    int kv_head;
    int first_page, num_pages;  // of the sequence; an even first one

    const uint8_t* page(const uint8_t* pages, size_t page_bytes, int i) const {
        const int per_block = a.block_size / kPageTokens, at = first_page + i;
        return pages + page_bytes * (size_t(tile.block_ids[at / per_block]) * size_t(per_block) + size_t(at % per_block));
    }
    const uint8_t* keys(int i) const { return page(a.keys + a.key_head() * size_t(kv_head), a.key_page(), i); }
    const uint8_t* values(int i) const { return page(a.values + a.value_head() * size_t(kv_head), a.value_page(), i); }
};

// Scores of all pages: [16][kScoresStride]. `is_first`: whether nobody has read this part a moment ago, so that memory is asked for
// its values meanwhile; others find them in the second cache. `spare`: room for a page of keys whose dimensions are no whole
// products.
template <int kSteps>
static void score_part(const TilesOfPart& part, const uint16_t* queries, size_t query_bytes, bool is_first, float* scores,
                       uint8_t* spare) {
    const int num_steps = key_steps(part.a);
    const bool is_whole = part.a.key_dim % kTileDims == 0;
    if (!is_whole) std::memset(spare, 0, size_t(num_steps) * 1024);
    if constexpr (kSteps > 0) load_tile<4>(queries, query_bytes);
    if constexpr (kSteps > 1) load_tile<5>(queries + kTileDims, query_bytes);
    const auto keys = [&](int i) {
        const uint8_t* page = part.keys(i);
        if (is_first) {
            const uint8_t* values = part.values(i);
            for (size_t at = 0; at < part.a.value_page(); at += 64) prefetch_to_second(values + at);
        }
        if (is_whole) return page;
        std::memcpy(spare, page, part.a.key_page());
        return (const uint8_t*)spare;
    };
    for (int p = 0; p < part.num_pages; p += kPagesTogether, scores += kPagesTogether * kPageTokens) {
        const int left = part.num_pages - p;
        score_page<0, kSteps>(queries, query_bytes, keys(p), num_steps, scores);
        if (left > 1) score_page<1, kSteps>(queries, query_bytes, keys(p + 1), num_steps, scores + 16);
        if (left > 2) score_page<2, kSteps>(queries, query_bytes, keys(p + 2), num_steps, scores + 32);
        if (left > 3) score_page<3, kSteps>(queries, query_bytes, keys(p + 3), num_steps, scores + 48);
    }
}

// Caps and masks a row's scores, minus infinity behind the last page where their number is odd, and returns the greatest.
static INLINE float greatest_score(const AttentionView& a, float* scores, int num_pages, int first_seen, int end_seen) {
    F best = set1(-INFINITY);
    if (num_pages % 2) store(scores + num_pages * kPageTokens, best);
    if (a.softcap != 0.0f) {
        const F cap = set1(a.softcap), to_base_2 = set1(a.softcap * kLog2OfE);
        for (int t = 0; t < num_pages * kPageTokens; t += 16) store(scores + t, to_base_2 * tanh(load(scores + t) / cap));
    }
    const auto mask = [&](int t) {
        const F s = only_between(load(scores + t), first_seen - t, end_seen - t);
        store(scores + t, s);
        best = max(best, s);
    };
    const int num_tokens = num_pages * kPageTokens, end = std::min(end_seen, num_tokens);
    int t = 0;
    for (; t < first_seen && t < num_tokens; t += 16) mask(t);
    F other = best;
    for (; t + 32 <= end; t += 32) {
        best = max(best, load(scores + t));
        other = max(other, load(scores + t + 16));
    }
    best = max(best, other);
    for (; t < num_tokens; t += 16) mask(t);
    return max_of_lanes(best);
}

// Two pages' scores become weights in BF16, [16][kScoresStride * 2], where the scores of earlier pages were.
static INLINE void weigh_pair(float* scores, int first_row, int end_row, int pair, const float* greatest) {
    for (int row = first_row; row < end_row; ++row) {
        const float* from = scores + size_t(row) * kScoresStride + pair * 32;
        const F shift = set1(greatest[row]);
        const F low = rough_exp2_of_negative(load(from) - shift), high = rough_exp2_of_negative(load(from + 16) - shift);
        uint16_t* to = (uint16_t*)(scores + size_t(row) * kScoresStride) + pair * 32;
        _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high.v, low.v));
    }
}

// totals[16][..] += weights . values for up to four times sixteen dimensions; tile 4: the sums of weights. between(i): what is
// done meanwhile, in four pieces.
template <int kColumns, bool kSumsWeights, class Between>
static INLINE void add_pair(const uint16_t* weights, const uint8_t* values, size_t value_bytes, Between between) {
    load_tile<5>(weights, kScoresStride * 4);
    load_tile<6>(values, value_bytes);
    between(0);
    if constexpr (kSumsWeights) multiply_bf16<4, 5, 7>();
    multiply_bf16<0, 5, 6>();
    between(1);
    if constexpr (kColumns > 1) {
        load_tile<6>(values + 64, value_bytes);
        multiply_bf16<1, 5, 6>();
    }
    between(2);
    if constexpr (kColumns > 2) {
        load_tile<6>(values + 128, value_bytes);
        multiply_bf16<2, 5, 6>();
    }
    between(3);
    if constexpr (kColumns > 3) {
        load_tile<6>(values + 192, value_bytes);
        multiply_bf16<3, 5, 6>();
    }
}

// The values of a pair of pages as rows of one tile after another: where they lie, if they are neighbours.
static INLINE const uint8_t* pair_of_values(const TilesOfPart& part, int pair, uint8_t* spare) {
    const size_t bytes = part.a.value_page();
    const uint8_t* first = part.values(2 * pair);
    const uint8_t* second = 2 * pair + 1 < part.num_pages ? part.values(2 * pair + 1) : nullptr;
    if (second == first + bytes) return first;
    std::memcpy(spare, first, bytes);
    if (second) std::memcpy(spare + bytes, second, bytes);
    else std::memset(spare + bytes, 0, bytes);
    return spare;
}

template <int kColumns, bool kWeighs>
static void sum_part(const TilesOfPart& part, float* scores, int num_rows, const float* greatest, int first_dim, float* sums,
                     uint8_t* spare) {
    const size_t value_bytes = size_t(part.a.value_dim) * 4, stride = (size_t(part.a.value_dim) + 16) * 4;
    const int num_pairs = (part.num_pages + 1) / 2;
    const uint16_t* weights = (const uint16_t*)scores;
    clear_tile<0>();
    if constexpr (kColumns > 1) clear_tile<1>();
    if constexpr (kColumns > 2) clear_tile<2>();
    if constexpr (kColumns > 3) clear_tile<3>();
    if constexpr (kWeighs) {
        alignas(64) uint32_t ones[16];  // pairs of BF16
        for (uint32_t& two : ones) two = 0x3F803F80u;
        clear_tile<4>();
        load_tile<7>(ones, 0);  // the same row sixteen times
    }
    const auto weigh = [&](int pair, int quarter) {
        if constexpr (kWeighs)
            weigh_pair(scores, std::min(num_rows, 4 * quarter), std::min(num_rows, 4 * quarter + 4), pair, greatest);
    };
    const auto add = [&](int pair, auto between) {
        const uint8_t* values = pair_of_values(part, pair, spare) + size_t(first_dim) * 4;
        add_pair<kColumns, kWeighs>(weights + pair * 32, values, value_bytes, between);
    };
    // One pair behind: what was stored a moment ago cannot be loaded as a tile yet.
    for (int quarter = 0; quarter < 4; ++quarter) weigh(0, quarter);
    for (int pair = 1; pair < num_pairs; ++pair) add(pair - 1, [&](int quarter) { weigh(pair, quarter); });
    add(num_pairs - 1, [](int) {});
    store_tile<0>(sums + first_dim, stride);
    if constexpr (kColumns > 1) store_tile<1>(sums + first_dim + 16, stride);
    if constexpr (kColumns > 2) store_tile<2>(sums + first_dim + 32, stride);
    if constexpr (kColumns > 3) store_tile<3>(sums + first_dim + 48, stride);
    if constexpr (kWeighs) store_tile<4>(sums + part.a.value_dim, stride);  // then the greatest score goes before them
}

template <bool kWeighs>
static INLINE void sum_columns(const TilesOfPart& part, float* scores, int num_rows, const float* greatest, int first_dim,
                               float* sums, uint8_t* spare) {
    switch (std::min(kColumnTiles, (part.a.value_dim - first_dim) / 16)) {
        case 1: return sum_part<1, kWeighs>(part, scores, num_rows, greatest, first_dim, sums, spare);
        case 2: return sum_part<2, kWeighs>(part, scores, num_rows, greatest, first_dim, sums, spare);
        case 3: return sum_part<3, kWeighs>(part, scores, num_rows, greatest, first_dim, sums, spare);
        default: return sum_part<4, kWeighs>(part, scores, num_rows, greatest, first_dim, sums, spare);
    }
}

// As attend_part, for a cache in BF16. sums: of sixteen rows more than there are, rounded up.
static void attend_part_in_tiles(const AttentionView& a, const AttentionTile& tile, int kv_head, int part, const float* q,
                                 float* sums, float* scratch) {
    static constexpr TileShapes kWhole = whole_tiles();
    const TilesInUse tiles(kWhole);
    const int group = a.num_heads / a.num_kv_heads, num_rows = tile.num_rows * group, steps = key_steps(a);
    const size_t width = size_t(a.num_heads) * a.head_dim, stride = size_t(a.value_dim) + 16;
    float* scores = scratch;
    uint16_t* queries = (uint16_t*)(scores + kTileRows * kScoresStride);
    uint8_t* spare_keys = (uint8_t*)(queries + size_t(kTileRows) * steps * kTileDims);
    uint8_t* spare_values = spare_keys + size_t(steps) * 1024;
    float* greatest = (float*)(spare_values + size_t(a.value_dim) * 64);
    const size_t query_bytes = size_t(steps) * kTileDims * 2;
    const F scale = set1(a.softcap != 0.0f ? a.scale : a.scale * kLog2OfE);

    for (int first_row = 0; first_row < num_rows; first_row += kTileRows, sums += kTileRows * stride) {
        const int rows = std::min(kTileRows, num_rows - first_row);
        for (int r = 0; r < rows; ++r) {
            const int row = first_row + r;
            const float* from = q + tile.row(row / group) * width + size_t(kv_head * group + row % group) * a.head_dim;
            uint16_t* query = queries + size_t(r) * steps * kTileDims;
            for (int d = 0; d < steps * kTileDims; d += 16) {
                const int n = std::max(0, std::min(16, a.head_dim - d));
                store_bf16(query + d, (n == 16 ? load(from + d) : load_n(from + d, n)) * scale);
            }
        }
        // What these rows see of the part: from the first's window to the last's own place.
        const int first_position = tile.position + first_row / group, last_position = tile.position + (first_row + rows - 1) / group;
        const int start = part * kPartTokens;
        const int seen_from = std::max(start, a.window ? first_position - a.window + 1 : 0);
        const int seen_to = std::min(last_position, start + kPartTokens - 1);
        const int first_page = seen_from / kPageTokens / 2 * 2;
        if (seen_to < seen_from) continue;  // nothing: who joins the parts leaves this one out for these rows
        const TilesOfPart pages{a, tile, kv_head, first_page, seen_to / kPageTokens - first_page + 1};
        const bool is_first = num_rows <= kTileRows || (tile.rows && first_row == 0);  // a prompt's tiles follow one another
        if (steps == 1) score_part<1>(pages, queries, query_bytes, is_first, scores, spare_keys);
        else if (steps == 2) score_part<2>(pages, queries, query_bytes, is_first, scores, spare_keys);
        else score_part<0>(pages, queries, query_bytes, is_first, scores, spare_keys);

        const int first_token = first_page * kPageTokens;
        for (int r = 0; r < rows; ++r) {
            const int position = tile.position + (first_row + r) / group;
            const float best = greatest_score(a, scores + size_t(r) * kScoresStride, pages.num_pages,
                                              a.window ? position - a.window + 1 - first_token : 0, position + 1 - first_token);
            greatest[r] = best == -INFINITY ? 0.0f : best;  // sees nothing here: all its weights are 0
        }
        sum_columns<true>(pages, scores, rows, greatest, 0, sums, spare_values);
        for (int d = kColumnTiles * 16; d < a.value_dim; d += kColumnTiles * 16)
            sum_columns<false>(pages, scores, rows, greatest, d, sums, spare_values);
        for (int r = 0; r < rows; ++r) {
            float* at = sums + size_t(r) * stride + a.value_dim;
            at[1] = at[0];  // the sum of the weights
            at[0] = greatest[r];
        }
    }
}

}  // namespace HEADRACE_ISA
}  // namespace headrace

#endif

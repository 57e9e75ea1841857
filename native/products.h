// Products of prepared rows with tiles of weights, and what follows a product: bias, residual, activation.
//
// Knows tiles and prepared rows. Does not know threads: it computes the tiles and row groups it is told to.
#pragma once

#include "group_products.h"
#include "kernels.h"
#include "simd.h"
#include "tile_pairs.h"
#include "tile_products.h"
#include "unpacked_products.h"

namespace headrace {
namespace HEADRACE_ISA {

static INLINE void write_row(const float* sums, const Tile& tile, const float* bias, int row, const Output& to) {
    const int n = tile.num_columns;
    F y = load(sums);
    if (bias) y = y + load_n(bias + tile.column, n);
    if (to.multiplier != 1.0f) y = y * set1(to.multiplier);
    if (to.softcap != 0.0f) y = set1(to.softcap) * tanh(y / set1(to.softcap));
    if (to.add) y = y + load_n(to.add + size_t(row) * to.add_stride + tile.column, n);
    float* out = to.out + size_t(row) * to.stride + tile.column;
    if (n == 16) store(out, y);
    else store_n(out, y, n);
}

// Asks for where the results of `count` groups go, which were last touched long ago.
static INLINE void expect_rows(const RowGroup* groups, int count, int column, const float* to, size_t stride) {
    for (int row = groups[0].first; row < groups[count - 1].first + groups[count - 1].num_rows; ++row)
        prefetch((const uint8_t*)(to + size_t(row) * stride + column));
}

// Calls what(tile, first group, number of groups) for pieces of groups that are multiplied together.
template <class Take, class What>
static INLINE void for_pieces(int num_groups, int first_tile, int end_tile, Take take, What what) {
    constexpr int kStripe = TileProducts::kStripe, kTogether = TileProducts::kGroupsTogether;
    for (int stripe = 0; stripe < num_groups; stripe += kStripe) {
        const int end = num_groups - stripe < kStripe ? num_groups : stripe + kStripe;
        for (int t = first_tile; t < end_tile; ++t) {
            take(t, stripe, end);
            for (int g = stripe; g < end; g += kTogether) what(t, g, end - g < kTogether ? end - g : kTogether);
        }
    }
}

constexpr int kSumsOfPiece = TileProducts::kGroupsTogether * kMaxGroup * 16;

static void linear(const LinearView& w, const Activations& x, bool bf16, const RowGroup* groups, int num_groups,
                   int first_tile, int end_tile, const Output& to) {
    alignas(64) float sums[kSumsOfPiece];
    ProductTiles tiles;
    TileProducts products(w, x, bf16, groups, num_groups, tiles, 0);
    for_pieces(
        num_groups, first_tile, end_tile, [&](int t, int first, int end) { products.take(w.tiles[t], first, end); },
        [&](int t, int first, int count) {
            expect_rows(groups + first, count, w.tiles[t].column, to.out, to.stride);
            if (to.add && to.add != to.out) expect_rows(groups + first, count, w.tiles[t].column, to.add, to.add_stride);
            products.multiply(first, count, sums);
            for (int g = 0; g < count; ++g) {
                const RowGroup& group = groups[first + g];
                for (int r = 0; r < group.num_rows; ++r)
                    write_row(sums + (g * kMaxGroup + r) * 16, w.tiles[t], w.bias, group.first + r, to);
            }
        });
}

#if defined(__AVX2__) && !defined(__AVX512F__)

static void linear_in_pairs(const LinearView& w, const Activations& x, bool bf16, int first_tile, int end_tile, int apart,
                            int end_of_all, const Output& to) {
    alignas(64) float sums[2][16];
    for (int t = first_tile; t < end_tile; ++t) {
        const Tile& tile = w.tiles[t];
        if (t + apart < end_of_all) {
            multiply_pair({tile, w.tiles[t + apart], sums[0], sums[1]}, w, x, bf16, 0);
            write_row(sums[1], w.tiles[t + apart], w.bias, 0, to);
        } else {
            tile_of<1>(tile, w, x, bf16, 0, sums[0]);
        }
        write_row(sums[0], tile, w.bias, 0, to);
    }
}
constexpr auto kLinearInPairs = linear_in_pairs;

#else

constexpr decltype(Kernels::linear_in_pairs) kLinearInPairs = nullptr;

#endif

static INLINE F erf(F x) {
    // Abramowitz and Stegun 7.1.26 is too coarse for float32; the library's own, lane by lane, is exact enough and rare.
    float lanes[16];
    store(lanes, x);
    for (int i = 0; i < 16; ++i) lanes[i] = std::erf(lanes[i]);
    return load(lanes);
}

static INLINE F activate(F x, Gate gate) {
    switch (gate) {
        case Gate::SILU: return x / (set1(1.0f) + exp(zero() - x));
        case Gate::GELU: return set1(0.5f) * x * (set1(1.0f) + erf(x * set1(0.70710678118654752f)));
        default: {
            const F inner = set1(0.79788456080286536f) * (x + set1(0.044715f) * x * x * x);
            return set1(0.5f) * x * (set1(1.0f) + tanh(inner));
        }
    }
}

static void gated(const LinearView& gate, const LinearView& up, Gate activation, const Activations& x, bool bf16,
                  const RowGroup* groups, int num_groups, int first_tile, int end_tile, const Output& to) {
    alignas(64) float gates[kSumsOfPiece], ups[kSumsOfPiece];
    ProductTiles tiles;
    TileProducts of_gate(gate, x, bf16, groups, num_groups, tiles, 0), of_up(up, x, bf16, groups, num_groups, tiles, 1);
    const auto take = [&](int t, int first, int end) {
        of_gate.take(gate.tiles[t], first, end);
        of_up.take(up.tiles[t], first, end);
    };
    for_pieces(num_groups, first_tile, end_tile, take, [&](int t, int first, int count) {
        const int n = gate.tiles[t].num_columns, column = gate.tiles[t].column;
        expect_rows(groups + first, count, column, to.out, to.stride);
        if (!multiplies_only_row({gate.tiles[t], up.tiles[t], gates, ups}, gate, x, bf16, groups, num_groups)) {
            of_gate.multiply(first, count, gates);
            of_up.multiply(first, count, ups);
        }
        for (int g = 0; g < count; ++g) {
            const RowGroup& group = groups[first + g];
            for (int r = 0; r < group.num_rows; ++r) {
                const int at = (g * kMaxGroup + r) * 16;
                F a = load(gates + at), b = load(ups + at);
                if (gate.bias) a = a + load_n(gate.bias + column, n);
                if (up.bias) b = b + load_n(up.bias + column, n);
                store_n(to.out + size_t(group.first + r) * to.stride + column, activate(a, activation) * b, n);
            }
        }
    });
}

}  // namespace HEADRACE_ISA
}  // namespace headrace

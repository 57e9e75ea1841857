// Products of prepared rows with tiles of weights, and what follows a product: bias, residual, activation.
//
// Knows tiles and prepared rows. Does not know threads: it computes the tiles and row groups it is told to.
#pragma once

#include "group_products.h"
#include "kernels.h"
#include "simd.h"
#include "tile_products.h"

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
            products.multiply(first, count, sums);
            for (int g = 0; g < count; ++g) {
                const RowGroup& group = groups[first + g];
                for (int r = 0; r < group.num_rows; ++r)
                    write_row(sums + (g * kMaxGroup + r) * 16, w.tiles[t], w.bias, group.first + r, to);
            }
        });
}

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
        of_gate.multiply(first, count, gates);
        of_up.multiply(first, count, ups);
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

// Rows made ready for products.

// Of block b of a row, its sixteen first and sixteen last numbers; zeros behind the row's end.
static INLINE void load_block(const float* x, int num_in, int b, F& low, F& high) {
    const int n = num_in - b * kBlock;
    const float* at = x + b * kBlock;
    low = n >= 16 ? load(at) : load_n(at, n > 0 ? n : 0);
    high = n >= 32 ? load(at + 16) : load_n(at + 16, n > 16 ? n - 16 : 0);
}

static void prepare_int8(const float* x, int num_in, int num_blocks, RowGroup group, int row, Activations to) {
    const int R = group.num_rows;
    for (int b = 0; b < num_blocks; ++b) {
        F low, high;
        load_block(x, num_in, b, low, high);
        const float greatest = max_magnitude(low, high);
        const size_t place = size_t(group.first) * num_blocks + size_t(b) * R + row;
        const float scale = greatest * (1.0f / 127.0f);
        const float inverse = greatest > 0.0f ? 127.0f / greatest : 0.0f;
        const HalfSums sums = quantize32(low, high, inverse, to.int8 + place * kBlock);
        to.scales[place] = scale;
        to.negative_sums[place] = -(sums.first + sums.second);
        to.first_sums[place] = -sums.first;
        to.scaled_sums[place] = scale * float(sums.first + sums.second);
    }
}

static void prepare_whole_int8(const float* x, int num_in, int num_blocks, RowGroup group, int row, Activations to) {
    float greatest = 0.0f;
    F low, high;
    for (int b = 0; b < num_blocks; ++b) {
        load_block(x, num_in, b, low, high);
        const float here = max_magnitude(low, high);
        if (!(here <= greatest)) greatest = here;  // and what is not a number stays
        if (greatest != greatest) break;
    }
    const float inverse = greatest > 0.0f ? 127.0f / greatest : 0.0f;
    int32_t sum = 0;
    for (int b = 0; b < num_blocks; ++b) {
        load_block(x, num_in, b, low, high);
        const size_t place = size_t(group.first) * num_blocks + size_t(b / 2 * group.num_rows + row) * 2 + size_t(b % 2);
        const HalfSums sums = quantize32(low, high, inverse, to.whole_int8 + place * kBlock);
        sum += sums.first + sums.second;
    }
    to.whole_scales[group.first + row] = greatest * (1.0f / 127.0f);
    to.whole_sums[group.first + row] = -sum;
}

static void prepare_floats(const float* x, int num_in, RowGroup group, int row, int padded, Activations to) {
    float* out = to.floats + size_t(group.first) * padded + row * 2;
    for (int k = 0; k < padded; k += 2, out += group.num_rows * 2) {
        out[0] = x[k];
        out[1] = k + 1 < num_in ? x[k + 1] : 0.0f;
    }
}

static void prepare_bf16(const float* x, int num_in, int num_blocks, RowGroup group, int row, Activations to) {
    uint16_t* out = to.bf16 + size_t(group.first) * num_blocks * kBlock;
#if defined(__AMX_TILE__)
    for (int b = 0; b < num_blocks; ++b) {
        F low, high;
        load_block(x, num_in, b, low, high);
        store_bf16(out + (b * group.num_rows + row) * kBlock, low);
        store_bf16(out + (b * group.num_rows + row) * kBlock + 16, high);
    }
#else
    out += row * 2;
    for (int k = 0; k < num_in; k += 2, out += group.num_rows * 2) {
        out[0] = float_to_bf16(x[k]);
        out[1] = k + 1 < num_in ? float_to_bf16(x[k + 1]) : 0;
    }
#endif
}

}  // namespace HEADRACE_ISA
}  // namespace headrace

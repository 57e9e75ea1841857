// What the units of each quantised format hold (`kernels.h` draws them), and how their integers are unpacked.
//
// Knows layouts of weights. Does not know rows.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace headrace {
namespace HEADRACE_ISA {

// How far ahead of what is read memory is asked for weights: with many rows; with few, which wait for memory and nothing else.
// Processors with AMX then read 1.4 times as much as without; Zen 4 less, its own prefetching does better (0: none). Zen 3 gains by it
// from two rows on: with AVX2 so much is computed for each line that few of those to come are in sight.
constexpr int kPrefetchBytes = 2048;
#if defined(__AMX_TILE__)
constexpr int kManyRows = 12, kFewRowsPrefetchBytes = 8192;
#elif defined(__AVX2__) && !defined(__AVX512F__)
constexpr int kManyRows = 2, kFewRowsPrefetchBytes = 0;
#else
constexpr int kManyRows = 12, kFewRowsPrefetchBytes = 0;
#endif

static INLINE void unpack_nibbles(const uint8_t* w, B* x) {
    UNROLL for (int j = 0; j < 4; ++j) {
        const B both = load_bytes(w + 64 * j);
        x[j] = low_nibbles(both);
        x[j + 4] = high_nibbles(both);
    }
}

static INLINE void unpack_fives(const uint8_t* w, B* x) {
    unpack_nibbles(w, x);
    const B fifth = load_bytes(w + 256);
    x[0] = with_bits<4, 16>(x[0], fifth);
    x[1] = with_bits<3, 16>(x[1], fifth);
    x[2] = with_bits<2, 16>(x[2], fifth);
    x[3] = with_bits<1, 16>(x[3], fifth);
    x[4] = with_bits<0, 16>(x[4], fifth);
    x[5] = with_bits<-1, 16>(x[5], fifth);
    x[6] = with_bits<-2, 16>(x[6], fifth);
    x[7] = with_bits<-3, 16>(x[7], fifth);
}

static INLINE void unpack_sixes(const uint8_t* w, B* x) {
    unpack_nibbles(w, x);
    UNROLL for (int half = 0; half < 2; ++half) {
        const B pairs = load_bytes(w + 256 + 64 * half);
        B* y = x + 4 * half;
        y[0] = with_bits<4, 48>(y[0], pairs);
        y[1] = with_bits<2, 48>(y[1], pairs);
        y[2] = with_bits<0, 48>(y[2], pairs);
        y[3] = with_bits<-2, 48>(y[3], pairs);
    }
}

static INLINE void unpack_bytes(const uint8_t* w, B* x) {
    UNROLL for (int j = 0; j < 8; ++j) x[j] = load_bytes(w + 64 * j);
}

// An offset that stands for the bias of whole bytes, which each instruction set deals with in its own way.
constexpr int kOfBytes = 1 << 16;

// What a format's units hold. Of block h: `unpack` gives the stored integers, of kBits bits and kOffset too great, `scale` what they
// are multiples of, `minimum` what is added to each of them (where kHasMinima).
template <Format kFormat>
struct Unit;

template <Format kFormat>
struct UnitLayout {
    static constexpr UnitShape kShape = unit_shape(kFormat);
    static constexpr int kBlocks = kShape.num_blocks, kBytes = kShape.num_bytes();
    static INLINE const uint8_t* integers(const uint8_t* w, int h) { return w + kShape.scale_bytes + kShape.block_bytes * h; }
};

template <Format kFormat>
struct PlainUnit : UnitLayout<kFormat> {
    static constexpr bool kHasMinima = false, kHasTwoScales = false, kIsSuper = false;
    static INLINE F scale(const uint8_t* w, int h) { return load_half((const uint16_t*)(w + 32 * h)); }
    static INLINE F minimum(const uint8_t* w, int) { return load_half((const uint16_t*)(w + 32)); }
};
template <>
struct Unit<Format::Q4_0> : PlainUnit<Format::Q4_0> {
    static constexpr int kBits = 4, kOffset = 8;
    static INLINE void unpack(const uint8_t* w, int h, B* x) { unpack_nibbles(integers(w, h), x); }
};
template <>
struct Unit<Format::Q4_1> : PlainUnit<Format::Q4_1> {
    static constexpr int kBits = 4, kOffset = 0;
    static constexpr bool kHasMinima = true;
    static INLINE void unpack(const uint8_t* w, int h, B* x) { unpack_nibbles(integers(w, h), x); }
};
template <>
struct Unit<Format::Q5_0> : PlainUnit<Format::Q5_0> {
    static constexpr int kBits = 5, kOffset = 16;
    static INLINE void unpack(const uint8_t* w, int h, B* x) { unpack_fives(integers(w, h), x); }
};
template <>
struct Unit<Format::Q5_1> : PlainUnit<Format::Q5_1> {
    static constexpr int kBits = 5, kOffset = 0;
    static constexpr bool kHasMinima = true;
    static INLINE void unpack(const uint8_t* w, int h, B* x) { unpack_fives(integers(w, h), x); }
};
template <>
struct Unit<Format::Q8_0> : PlainUnit<Format::Q8_0> {
    static constexpr int kBits = 8, kOffset = kOfBytes;
    static INLINE void unpack(const uint8_t* w, int h, B* x) { unpack_bytes(integers(w, h), x); }
};

template <Format kFormat>
struct SuperUnit : UnitLayout<kFormat> {
    static constexpr int kOffset = 0;
    static constexpr bool kHasMinima = true, kHasTwoScales = false, kIsSuper = true;
    static INLINE F scale(const uint8_t* w, int h) {
        return load_half((const uint16_t*)w) * load_unsigned_bytes(w + 64 + 16 * h);
    }
    static INLINE F minimum(const uint8_t* w, int h) {
        return zero() - load_half((const uint16_t*)(w + 32)) * load_unsigned_bytes(w + 192 + 16 * h);
    }
};
template <>
struct Unit<Format::Q4_K> : SuperUnit<Format::Q4_K> {
    static constexpr int kBits = 4;
    static INLINE void unpack(const uint8_t* w, int h, B* x) { unpack_nibbles(integers(w, h), x); }
};
template <>
struct Unit<Format::Q5_K> : SuperUnit<Format::Q5_K> {
    static constexpr int kBits = 5;
    static INLINE void unpack(const uint8_t* w, int h, B* x) { unpack_fives(integers(w, h), x); }
};
template <>
struct Unit<Format::Q6_K> : SuperUnit<Format::Q6_K> {
    static constexpr int kBits = 6, kOffset = 32;
    static constexpr bool kHasMinima = false, kHasTwoScales = true;
    static INLINE F scale(const uint8_t* w, int h) {
        return load_half((const uint16_t*)w) * load_signed_bytes(w + 64 + 32 * h);
    }
    static INLINE F second_scale(const uint8_t* w, int h) {
        return load_half((const uint16_t*)w) * load_signed_bytes(w + 80 + 32 * h);
    }
    static INLINE void unpack(const uint8_t* w, int h, B* x) { unpack_sixes(integers(w, h), x); }
};

static INLINE F load_scales(const uint8_t* p, ScaleType type) {
    if (type == ScaleType::F16) return load_half((const uint16_t*)p);
    if (type == ScaleType::BF16) return load_bf16((const uint16_t*)p);
    return load((const float*)p);
}

}  // namespace HEADRACE_ISA
}  // namespace headrace

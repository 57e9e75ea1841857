// Pages of sixteen tokens' keys or values: how each format of the cache is written, and read back as float32.
//
// Knows bits. Does not know attention, nor which page is whose. A page consists of rows of 32-bit words; a word holds 1 (F32),
// 2 (BF16) or 4 (INT8, FP8) neighbours along the dimension that attention sums over: a key's dimensions, or tokens.
//
//   keys    word [d / n][token]: dimensions d to d + n - 1 of one token
//   values  word [token / n][d]: one dimension of n tokens
//
// Behind the words of an INT8 or FP8 page stand its sixteen scales, one for each token, in float32. What is not finite makes
// its token's scale not finite, and so whatever reads it.
//
//   INT8  round(x / scale), scale = greatest / 127
//   FP8   E4M3 as in "FP8 Formats for Deep Learning" (Micikevicius et al., 2022) of x / scale, scale = greatest / 448
#pragma once

#include "kernels.h"
#include "simd.h"

namespace headrace {
namespace HEADRACE_ISA {

#if defined(__AVX512F__)
INLINE I load_words(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
INLINE I operator<<(I x, int n) { return {(__m512i)((__v16si)x.v << n)}; }
INLINE I operator>>(I x, int n) { return {(__m512i)((__v16si)x.v >> n)}; }  // the sign is kept
INLINE I operator&(I x, uint32_t mask) { return {_mm512_and_si512(x.v, _mm512_set1_epi32(int32_t(mask)))}; }
INLINE F bits_as_float(I x) { return {_mm512_castsi512_ps(x.v)}; }
#else
INLINE I load_words(const uint8_t* p) {
    I x;
    std::memcpy(&x.a, p, 32);
    std::memcpy(&x.b, p + 32, 32);
    return x;
}
INLINE I operator<<(I x, int n) { return {x.a << n, x.b << n}; }
INLINE I operator>>(I x, int n) { return {x.a >> n, x.b >> n}; }
INLINE I operator&(I x, uint32_t mask) {
    const Int8x32 m = Int8x32{} + int32_t(mask);
    return {x.a & m, x.b & m};
}
INLINE F bits_as_float(I x) { return {(Float8)x.a, (Float8)x.b}; }
#endif

// Byte i of each word as its highest, the others zero.
INLINE I byte_on_top(I x, int i) {
    if (i == 3) return x & 0xFF000000u;
#if defined(__AVX512BW__)
    const __m512i lanes = _mm512_set4_epi32(0x0C808080, 0x08808080, 0x04808080, 0x00808080);
    return {_mm512_shuffle_epi8(x.v, _mm512_add_epi8(lanes, _mm512_set1_epi32(i << 24)))};
#elif defined(__AVX2__)
    const Int8x32 lanes = {0x00808080, 0x04808080, 0x08808080, 0x0C808080, 0x00808080, 0x04808080, 0x08808080, 0x0C808080};
    const __m256i order = (__m256i)(lanes + (i << 24));
    return {(Int8x32)_mm256_shuffle_epi8((__m256i)x.a, order), (Int8x32)_mm256_shuffle_epi8((__m256i)x.b, order)};
#else
    return (x << (24 - 8 * i)) & 0xFF000000u;
#endif
}

// How the words of a format enter a sum. Each word has kParts operands of kElements neighbours; `add` takes one operand of
// sixteen columns and as many numbers of a row. What `part` returns is kUnit times smaller than the number meant, but for the
// token's scale.
struct FloatWords {
    typedef float Row;
    typedef F Operand;
    static constexpr int kParts = 1, kElements = 1;
    static constexpr bool kHasScales = false;
    static constexpr float kUnit = 1.0f;
    static INLINE F part(I x, int) { return bits_as_float(x); }
    static INLINE F add(F sum, const float* row, F column) { return fma(set1(*row), column, sum); }
};

struct Bf16Words : FloatWords {
    static constexpr int kParts = 2;
    static INLINE F part(I x, int i) { return bits_as_float(i == 0 ? x << 16 : x & 0xFFFF0000u); }
};

struct Int8Words : FloatWords {
    static constexpr int kParts = 4;
    static constexpr bool kHasScales = true;
    static constexpr float kUnit = 1.0f / 16777216;  // the byte is converted where it stands, on top
    static INLINE F part(I x, int i) { return to_float(byte_on_top(x, i)); }
};

struct Fp8Words : FloatWords {
    static constexpr int kParts = 4;
    static constexpr bool kHasScales = true;
    static INLINE F part(I x, int i) {
        // Sign, exponent and mantissa go to where a float32 has them; what that makes of the exponent's bias is undone by a
        // product, which is exact, numbers below the normal ones included.
        const I moved = ((i == 3 ? x : x << (24 - 8 * i)) >> 4) & 0x87F00000u;
        return bits_as_float(moved) * set1(1.329227995784916e36f);  // 2^120
    }
};

#if defined(__AVX512BF16__)
struct Bf16Products {  // rows in BF16 as well: the processor multiplies pairs
    typedef uint16_t Row;
    typedef __m512bh Operand;
    static constexpr int kParts = 1, kElements = 2;
    static constexpr bool kHasScales = false;
    static constexpr float kUnit = 1.0f;
    static INLINE Operand part(I x, int) { return (__m512bh)x.v; }
    static INLINE F add(F sum, const uint16_t* row, Operand column) {
        int32_t two;
        std::memcpy(&two, row, 4);
        return {_mm512_dpbf16_ps(sum.v, column, (__m512bh)_mm512_set1_epi32(two))};
    }
};
#else
typedef Bf16Words Bf16Products;
#endif

// Reading whole pages, for rows enough to make it worth while: as pages of F32, which give the same sums.

template <class Words>
static INLINE void expand_keys(const uint8_t* page, int key_dim, float* out) {
    for (int d = 0; d < key_dim; d += Words::kParts, page += 64, out += 16 * Words::kParts) {
        const I x = load_words(page);
        UNROLL for (int i = 0; i < Words::kParts; ++i) store(out + 16 * i, Words::part(x, i));
    }
}

template <class Words>
static INLINE void expand_values(const uint8_t* page, int value_dim, float* out) {
    for (int t = 0; t < kPageTokens; t += Words::kParts, out += size_t(value_dim) * Words::kParts) {
        for (int d = 0; d < value_dim; d += 16, page += 64) {
            const I x = load_words(page);
            UNROLL for (int i = 0; i < Words::kParts; ++i) store(out + size_t(value_dim) * i + d, Words::part(x, i));
        }
    }
}

// Writing one token.

static INLINE float greatest_of(const float* x, int n) {
    float greatest = 0.0f;
    for (int i = 0; i < n; i += 32) {
        const int left = n - i;
        const F low = left >= 16 ? load(x + i) : load_n(x + i, left);
        const F high = left >= 32 ? load(x + i + 16) : left > 16 ? load_n(x + i + 16, left - 16) : zero();
        const float here = max_magnitude(low, high);
        if (!(here <= greatest)) greatest = here;  // what is not a number stays
        if (greatest != greatest) break;
    }
    return greatest;
}

static INLINE void to_bf16(const float* x, int n, uint16_t* out) {
    int i = 0;
    for (; i + 16 <= n; i += 16) store_bf16(out + i, load(x + i));
    for (; i < n; ++i) out[i] = float_to_bf16(x[i]);
}

// |x| <= 448, to nearest, ties to even.
static INLINE uint8_t float_to_e4m3(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t sign = bits >> 24 & 0x80, magnitude = bits & 0x7FFFFFFF;
    if (magnitude < 0x3C800000u) {  // below 2^-6: multiples of 2^-9
        float positive;
        std::memcpy(&positive, &magnitude, 4);
        return uint8_t(sign | uint32_t(std::nearbyint(positive * 512.0f)));
    }
    const uint32_t rounded = magnitude + 0x7FFFF + (magnitude >> 20 & 1);
    return uint8_t(sign | ((rounded >> 20) - (120u << 3)));
}

// codes: [n], scale returned. Where the scale is not finite, the codes are zeros.
static INLINE float to_codes(KVFormat format, const float* x, int n, uint8_t* codes) {
    const float most = format == KVFormat::INT8 ? 127.0f : 448.0f, greatest = greatest_of(x, n);
    if (!(greatest > 0.0f) || !(greatest <= 3.4028235e38f)) {
        std::memset(codes, 0, size_t(n));
        return greatest;
    }
    // A greatest number so small that its quotient overflows is as good as none.
    const float inverse = std::min(most / greatest, 3.4028235e38f);
    for (int i = 0; i < n; ++i) {
        const float y = std::max(-most, std::min(most, x[i] * inverse));
        codes[i] = format == KVFormat::INT8 ? uint8_t(int8_t(std::nearbyint(y))) : float_to_e4m3(y);
    }
    return greatest / most;
}

static INLINE void write_key(const AttentionView& a, int head, int64_t slot, const float* key) {
    const int n = a.head_dim;
    const size_t token = size_t(slot) % kPageTokens;
    uint8_t* page = a.keys + a.key_head() * size_t(head) + a.key_page() * (size_t(slot) / kPageTokens);
    if (a.format == KVFormat::F32) {
        float* out = (float*)page + token;
        for (int d = 0; d < n; ++d, out += kPageTokens) *out = key[d];
    } else if (a.format == KVFormat::BF16) {
        alignas(64) uint16_t halves[kMostHeadDim];
        to_bf16(key, n, halves);
        page += token * 4;
        for (int d = 0; d < n; d += 2, page += 64) std::memcpy(page, halves + d, 4);
    } else {
        alignas(64) uint8_t codes[kMostHeadDim];
        const float scale = to_codes(a.format, key, n, codes);
        for (int d = n; d < a.key_dim; ++d) codes[d] = 0;
        for (int d = 0; d < a.key_dim; d += 4) std::memcpy(page + (size_t(d / 4) * 16 + token) * 4, codes + d, 4);
        std::memcpy(page + size_t(a.key_dim) * kPageTokens + token * 4, &scale, 4);
    }
}

static INLINE void write_value(const AttentionView& a, int head, int64_t slot, const float* value) {
    const int n = a.head_dim;
    const size_t token = size_t(slot) % kPageTokens, width = size_t(a.value_dim);
    uint8_t* page = a.values + a.value_head() * size_t(head) + a.value_page() * (size_t(slot) / kPageTokens);
    if (a.format == KVFormat::F32) {
        std::memcpy((float*)page + token * width, value, size_t(n) * 4);
    } else if (a.format == KVFormat::BF16) {
        alignas(64) uint16_t halves[kMostHeadDim];
        to_bf16(value, n, halves);
        uint16_t* out = (uint16_t*)page + token / 2 * width * 2 + token % 2;
        for (int d = 0; d < n; ++d) out[2 * d] = halves[d];
    } else {
        alignas(64) uint8_t codes[kMostHeadDim];
        const float scale = to_codes(a.format, value, n, codes);
        uint8_t* out = page + (token / 4 * width) * 4 + token % 4;
        for (int d = 0; d < n; ++d) out[size_t(d) * 4] = codes[d];
        std::memcpy(page + width * kPageTokens + token * 4, &scale, 4);
    }
}

}  // namespace HEADRACE_ISA
}  // namespace headrace

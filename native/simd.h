// Sixteen lanes of float32 and the few operations that kernels are written in, for one instruction set.
//
// Knows intrinsics. Does not know weights, attention or threads. The including file defines HEADRACE_ISA, the namespace
// that all of this is compiled into once per instruction set, and the compiler's flags decide which half below is taken.
//
// No operation depends on how the compiler contracts: `fma` is one rounding where the processor has it and two where not,
// everywhere the same. `max` returns its second argument when either is not a number, as the instruction does.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

#define INLINE inline __attribute__((always_inline))
#if defined(__AVX2__)
#define UNROLL _Pragma("GCC unroll 64")
#else
#define UNROLL  // where nothing is known of the registers, the compiler decides
#endif

namespace headrace {
namespace HEADRACE_ISA {

constexpr int kLanes = 16;

INLINE float half_to_float(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16;
    const uint32_t exponent = half >> 10 & 31, mantissa = half & 1023;
    uint32_t bits;
    if (exponent == 31) {
        bits = sign | 0x7F800000u | mantissa << 13;
    } else if (exponent == 0) {
        const float tiny = float(mantissa) * 5.9604644775390625e-8f;  // 2^-24
        std::memcpy(&bits, &tiny, 4);
        bits |= sign;
    } else {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    }
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

INLINE float bf16_to_float(uint16_t half) {
    const uint32_t bits = uint32_t(half) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// To nearest, ties to even; what is not a number stays so.
INLINE uint16_t float_to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return uint16_t(bits >> 16 | 64);
    return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

#if defined(__AVX512F__)

struct F {
    __m512 v;
};
struct I {
    __m512i v;
};

INLINE F load(const float* p) { return {_mm512_loadu_ps(p)}; }
INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x.v); }
INLINE F load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p)}; }
INLINE void store_n(float* p, F x, int n) { _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), x.v); }
INLINE F set1(float x) { return {_mm512_set1_ps(x)}; }
INLINE F zero() { return {_mm512_setzero_ps()}; }
INLINE F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
INLINE F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
INLINE F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
INLINE F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
INLINE F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
INLINE F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
INLINE F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
INLINE F zero_where_below(F x, float least, F y) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(least), _CMP_NLT_UQ), y.v)};
}
INLINE F round_nearest(F x) { return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
INLINE F times_power_of_two(F x, F n) { return {_mm512_scalef_ps(x.v, n.v)}; }
INLINE F outside_to_minus_infinity(F x, int first, int end) {
    const __mmask16 inside = __mmask16(((1u << end) - 1) & ~((1u << first) - 1));
    return {_mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), inside, x.v)};
}
INLINE F load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
INLINE F load_signed_bytes(const uint8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
INLINE F load_unsigned_bytes(const uint8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
INLINE F load_bf16(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
// To nearest, ties to even; what is not a number stays so.
INLINE void store_bf16(uint16_t* p, F x) {
#if defined(__AVX512BF16__)
    _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x.v));
#else
    const __m512i bits = _mm512_castps_si512(x.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_mov_epi32(rounded, is_nan, quiet);
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
#endif
}

// Sums and maxima across lanes, in one fixed order.
INLINE float sum_of_lanes(F x) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
    const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
INLINE float max_of_lanes(F x) {
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
    const __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    const __m128 d = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}
// The greatest magnitude; not a number counts as greater than all, so that it is not lost.
INLINE float max_magnitude(F x, F y) {
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    const __m512i a = _mm512_and_si512(_mm512_castps_si512(x.v), magnitude);
    const __m512i b = _mm512_and_si512(_mm512_castps_si512(y.v), magnitude);
    const int32_t bits = _mm512_reduce_max_epi32(_mm512_max_epi32(a, b));
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

INLINE I iset1(int32_t x) { return {_mm512_set1_epi32(x)}; }
INLINE F to_float(I x) { return {_mm512_cvtepi32_ps(x.v)}; }
INLINE I add(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }

// Not a number, or beyond what int8 holds, happens where the scale is not finite, and becomes 0: the scale tells of it.
INLINE __m512i rounded_to_bytes(F x, float inverse) {
    const __m512 scaled = _mm512_mul_ps(x.v, _mm512_set1_ps(inverse));
    const __mmask16 fits = _mm512_cmp_ps_mask(_mm512_abs_ps(scaled), _mm512_set1_ps(127.5f), _CMP_LT_OQ);
    return _mm512_maskz_cvtps_epi32(fits, scaled);
}

// 64 weight bytes: 16 columns of four neighbours along K.
struct B {
    __m512i v;
};
INLINE B load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
INLINE B low_nibbles(B x) { return {_mm512_and_si512(x.v, _mm512_set1_epi8(15))}; }
INLINE B high_nibbles(B x) { return {_mm512_and_si512(_mm512_srli_epi16(x.v, 4), _mm512_set1_epi8(15))}; }
// Each byte's bits above, moved up by kUp (down, if negative), where kMask has ones; the bytes of `low` elsewhere.
template <int kUp, int kMask>
INLINE B with_bits(B low, B above) {
    const __m512i moved = kUp >= 0 ? _mm512_slli_epi16(above.v, unsigned(kUp)) : _mm512_srli_epi16(above.v, unsigned(-kUp));
    return {_mm512_ternarylogic_epi32(low.v, moved, _mm512_set1_epi8(kMask), 0xF8)};  // low | moved & mask
}
INLINE I dot_nibbles(I sum, B weights, const int8_t* four) {
    int32_t a;
    std::memcpy(&a, four, 4);
    return {_mm512_dpbusd_epi32(sum.v, weights.v, _mm512_set1_epi32(a))};
}
// The stored byte is the weight plus 128: what that adds is taken off where the sum starts.
constexpr int32_t kByteBias = 128;
INLINE I dot_biased_bytes(I sum, B weights, const int8_t* four) { return dot_nibbles(sum, weights, four); }

INLINE void prefetch(const uint8_t* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
INLINE void prefetch_to_second(const uint8_t* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }  // not to the nearest cache

#else

typedef float Float8 __attribute__((vector_size(32)));
typedef int32_t Int8x32 __attribute__((vector_size(32)));

struct F {
    Float8 a, b;
};
struct I {
    Int8x32 a, b;
};

INLINE F load(const float* p) {
    F x;
    std::memcpy(&x.a, p, 32);
    std::memcpy(&x.b, p + 8, 32);
    return x;
}
INLINE void store(float* p, F x) {
    std::memcpy(p, &x.a, 32);
    std::memcpy(p + 8, &x.b, 32);
}
INLINE F load_n(const float* p, int n) {
    float lanes[16] = {};
    std::memcpy(lanes, p, size_t(n) * 4);
    return load(lanes);
}
INLINE void store_n(float* p, F x, int n) {
    float lanes[16];
    store(lanes, x);
    std::memcpy(p, lanes, size_t(n) * 4);
}
INLINE Float8 broadcast8(float x) { return Float8{x, x, x, x, x, x, x, x}; }
INLINE F set1(float x) { return {broadcast8(x), broadcast8(x)}; }
INLINE F zero() { return set1(0.0f); }
#if defined(__FMA__)
INLINE Float8 fma8(Float8 a, Float8 b, Float8 c) { return (Float8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#else
INLINE Float8 fma8(Float8 a, Float8 b, Float8 c) { return a * b + c; }
#endif
INLINE F fma(F a, F b, F c) { return {fma8(a.a, b.a, c.a), fma8(a.b, b.b, c.b)}; }
INLINE F operator+(F a, F b) { return {a.a + b.a, a.b + b.b}; }
INLINE F operator-(F a, F b) { return {a.a - b.a, a.b - b.b}; }
INLINE F operator*(F a, F b) { return {a.a * b.a, a.b * b.b}; }
INLINE F operator/(F a, F b) { return {a.a / b.a, a.b / b.b}; }
INLINE F max(F a, F b) { return {a.a > b.a ? a.a : b.a, a.b > b.b ? a.b : b.b}; }
INLINE F min(F a, F b) { return {a.a < b.a ? a.a : b.a, a.b < b.b ? a.b : b.b}; }
INLINE F zero_where_below(F x, float least, F y) {
    const F t = set1(least), none = zero();
    return {x.a < t.a ? none.a : y.a, x.b < t.b ? none.b : y.b};
}
INLINE F round_nearest(F x) {  // |x| < 2^22: the addition rounds as the processor does, to nearest even
    const F magic = set1(12582912.0f);
    return (x + magic) - magic;
}
INLINE Float8 power_of_two8(Float8 n) {
    return (Float8)((__builtin_convertvector(n, Int8x32) + 127) << 23);
}
INLINE F times_power_of_two(F x, F n) { return {x.a * power_of_two8(n.a), x.b * power_of_two8(n.b)}; }
INLINE F outside_to_minus_infinity(F x, int first, int end) {
    float lanes[16];
    store(lanes, x);
    for (int i = 0; i < 16; ++i)
        if (i < first || i >= end) lanes[i] = -INFINITY;
    return load(lanes);
}
INLINE F load_half(const uint16_t* p) {
#if defined(__F16C__)
    return {(Float8)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
            (Float8)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
#else
    float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = half_to_float(p[i]);
    return load(lanes);
#endif
}
#if defined(__AVX2__)
INLINE F load_signed_bytes(const uint8_t* p) {
    const __m128i x = _mm_loadu_si128((const __m128i*)p);
    return {(Float8)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)), (Float8)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}
INLINE F load_unsigned_bytes(const uint8_t* p) {
    const __m128i x = _mm_loadu_si128((const __m128i*)p);
    return {(Float8)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)), (Float8)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))};
}
INLINE F load_bf16(const uint16_t* p) {
    const __m128i x = _mm_loadu_si128((const __m128i*)p), y = _mm_loadu_si128((const __m128i*)(p + 8));
    return {(Float8)_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16), (Float8)_mm256_slli_epi32(_mm256_cvtepu16_epi32(y), 16)};
}
#else
INLINE F load_signed_bytes(const uint8_t* p) {
    float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = float(int8_t(p[i]));
    return load(lanes);
}
INLINE F load_unsigned_bytes(const uint8_t* p) {
    float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = float(p[i]);
    return load(lanes);
}
INLINE F load_bf16(const uint16_t* p) {
    float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = bf16_to_float(p[i]);
    return load(lanes);
}
#endif
typedef uint16_t Short8 __attribute__((vector_size(16)));
INLINE void store_bf16_8(uint16_t* p, Float8 x) {
    typedef uint32_t Bits8 __attribute__((vector_size(32)));
    const Bits8 bits = (Bits8)x, rounded = bits + 0x7FFF + (bits >> 16 & 1);
    const Bits8 kept = x != x ? bits | 0x400000 : rounded;
    const Short8 upper = __builtin_convertvector(kept >> 16, Short8);
    std::memcpy(p, &upper, 16);
}
INLINE void store_bf16(uint16_t* p, F x) {
    store_bf16_8(p, x.a);
    store_bf16_8(p + 8, x.b);
}
INLINE float sum_of_lanes(F x) {
    const Float8 h = x.a + x.b;
    const float q0 = h[0] + h[4], q1 = h[1] + h[5], q2 = h[2] + h[6], q3 = h[3] + h[7];
    return (q0 + q2) + (q1 + q3);
}
INLINE float max_of_lanes(F x) {
    const Float8 h = x.a > x.b ? x.a : x.b;
    float best = h[0];
    for (int i = 1; i < 8; ++i) best = best > h[i] ? best : h[i];
    return best;
}
INLINE float max_magnitude(F x, F y) {
    const Int8x32 magnitude = Int8x32{} + 0x7FFFFFFF;
    const Int8x32 p = (Int8x32)x.a & magnitude, q = (Int8x32)x.b & magnitude;
    const Int8x32 r = (Int8x32)y.a & magnitude, s = (Int8x32)y.b & magnitude;
    const Int8x32 t = p > q ? p : q, u = r > s ? r : s, w = t > u ? t : u;
    int32_t bits = w[0];
    for (int i = 1; i < 8; ++i) bits = bits > w[i] ? bits : w[i];
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

INLINE I iset1(int32_t x) { return {Int8x32{} + x, Int8x32{} + x}; }
INLINE F to_float(I x) { return {__builtin_convertvector(x.a, Float8), __builtin_convertvector(x.b, Float8)}; }
INLINE I add(I a, I b) { return {a.a + b.a, a.b + b.b}; }

// The sums of sixteen numbers and of the sixteen behind them.
struct HalfSums {
    int32_t first, second;
};
// 32 floats to int8 by `inverse`, their sums returned.
#if defined(__AVX2__)
// Not a number, or beyond what int8 holds, happens where the scale is not finite, and becomes 0: the scale tells of it.
INLINE __m256i rounded_to_bytes(Float8 x, float inverse) {
    const __m256 scaled = (__m256)(x * (Float8{} + inverse)), limit = _mm256_set1_ps(127.5f);
    const __m256 above = _mm256_cmp_ps(scaled, _mm256_sub_ps(_mm256_setzero_ps(), limit), _CMP_GE_OQ);
    const __m256 fits = _mm256_and_ps(above, _mm256_cmp_ps(scaled, limit, _CMP_LE_OQ));
    const __m256i rounded = _mm256_min_epi32(_mm256_cvtps_epi32(scaled), _mm256_set1_epi32(127));
    return _mm256_and_si256(rounded, _mm256_castps_si256(fits));
}
INLINE int32_t sum_of(__m256i x, __m256i y) {
    const __m256i both = _mm256_add_epi32(x, y);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
}
// 32 integers, which are known to fit.
INLINE __m256i packed_bytes(__m256i a, __m256i b, __m256i c, __m256i d) {
    // Packing works on each half by itself and leaves runs of four out of order.
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
INLINE HalfSums quantize32(F x, F y, float inverse, int8_t* out) {
    const __m256i a = rounded_to_bytes(x.a, inverse), b = rounded_to_bytes(x.b, inverse);
    const __m256i c = rounded_to_bytes(y.a, inverse), d = rounded_to_bytes(y.b, inverse);
    _mm256_storeu_si256((__m256i*)out, packed_bytes(a, b, c, d));
    return {sum_of(a, b), sum_of(c, d)};
}
#else
INLINE HalfSums quantize32(F x, F y, float inverse, int8_t* out) {
    float lanes[32];
    store(lanes, x);
    store(lanes + 16, y);
    int32_t sums[2] = {0, 0};
    for (int i = 0; i < 32; ++i) {
        const float scaled = lanes[i] * inverse;
        // Not a number, or beyond what int8 holds, happens where the scale is not finite: the scale tells of it.
        const int32_t q = scaled >= -127.5f && scaled <= 127.5f ? int32_t(std::nearbyint(scaled)) : 0;
        out[i] = int8_t(q);
        sums[i / 16] += q;
    }
    return {sums[0], sums[1]};
}
#endif

#if defined(__AVX2__)
struct B {
    __m256i a, b;
};
INLINE B load_bytes(const uint8_t* p) {
    return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
INLINE B low_nibbles(B x) {
    const __m256i m = _mm256_set1_epi8(15);
    return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
INLINE B high_nibbles(B x) {
    const __m256i m = _mm256_set1_epi8(15);
    return {_mm256_and_si256(_mm256_srli_epi16(x.a, 4), m), _mm256_and_si256(_mm256_srli_epi16(x.b, 4), m)};
}
template <int kUp, int kMask>
INLINE __m256i with_bits32(__m256i low, __m256i above) {
    const __m256i moved = kUp >= 0 ? _mm256_slli_epi16(above, kUp >= 0 ? kUp : 0) : _mm256_srli_epi16(above, kUp >= 0 ? 0 : -kUp);
    return _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(kMask)));
}
template <int kUp, int kMask>
INLINE B with_bits(B low, B above) {
    return {with_bits32<kUp, kMask>(low.a, above.a), with_bits32<kUp, kMask>(low.b, above.b)};
}
INLINE Int8x32 dot32(Int8x32 sum, __m256i unsigned_bytes, __m256i signed_bytes) {
    const __m256i pairs = _mm256_maddubs_epi16(unsigned_bytes, signed_bytes);
    return sum + (Int8x32)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
// Pairs of full bytes would overflow 16 bits, so the weight's sign moves to the activation: |w| * (sign(w) * a).
constexpr int32_t kByteBias = 0;
INLINE I dot_biased_bytes(I sum, B weights, const int8_t* four) {
    int32_t word;
    std::memcpy(&word, four, 4);
    const __m256i a = _mm256_set1_epi32(word), bias = _mm256_set1_epi8(-128);
    const __m256i w0 = _mm256_xor_si256(weights.a, bias), w1 = _mm256_xor_si256(weights.b, bias);
    return {dot32(sum.a, _mm256_abs_epi8(w0), _mm256_sign_epi8(a, w0)),
            dot32(sum.b, _mm256_abs_epi8(w1), _mm256_sign_epi8(a, w1))};
}
#else
struct B {
    uint8_t v[64];
};
INLINE B load_bytes(const uint8_t* p) {
    B x;
    std::memcpy(x.v, p, 64);
    return x;
}
INLINE B low_nibbles(B x) {
    for (int i = 0; i < 64; ++i) x.v[i] &= 15;
    return x;
}
INLINE B high_nibbles(B x) {
    for (int i = 0; i < 64; ++i) x.v[i] >>= 4;
    return x;
}
template <int kUp, int kMask>
INLINE B with_bits(B low, B above) {
    for (int i = 0; i < 64; ++i)
        low.v[i] |= (kUp >= 0 ? above.v[i] << (kUp >= 0 ? kUp : 0) : above.v[i] >> (kUp >= 0 ? 0 : -kUp)) & kMask;
    return low;
}
INLINE I dot_nibbles(I sum, B weights, const int8_t* four) {
    int32_t lanes[16];
    std::memcpy(lanes, &sum, 64);
    for (int c = 0; c < 16; ++c)
        lanes[c] += weights.v[4 * c] * four[0] + weights.v[4 * c + 1] * four[1] + weights.v[4 * c + 2] * four[2] +
                    weights.v[4 * c + 3] * four[3];
    std::memcpy(&sum, lanes, 64);
    return sum;
}
constexpr int32_t kByteBias = 128;
INLINE I dot_biased_bytes(I sum, B weights, const int8_t* four) { return dot_nibbles(sum, weights, four); }
#endif

INLINE void prefetch(const uint8_t* p) { __builtin_prefetch(p); }

#endif

#if defined(__AVX2__) && !defined(__AVX512F__)
INLINE __m256i four_everywhere(const int8_t* four) {
    int32_t word;
    std::memcpy(&word, four, 4);
    return _mm256_set1_epi32(word);
}
// What is computed of x is computed here. Were sums formed in another order, which gives the same, more would be alive than there are
// registers; and where they are elements of an array, the array must not be what is named here: it would be kept in memory.
INLINE __m256i here(__m256i x) {
    asm volatile("" : "+x"(x));
    return x;
}
// To be read from memory wherever they are used next: so many take all registers, and come from memory at no cost.
template <size_t N>
INLINE void leave_in_memory(B (&x)[N]) {
    asm volatile("" : "+m"(x));
}
template <int kTimes>
INLINE I iset1_times(int32_t x) {  // multiplied in all lanes: a broadcast from memory is cheap, one from a register is not
    const Int8x32 y = (Int8x32)here(_mm256_set1_epi32(x)) * kTimes;
    return {y, y};
}
#else
template <int kTimes>
INLINE I iset1_times(int32_t x) {
    return iset1(x * kTimes);
}
template <size_t N>
INLINE void leave_in_memory(B (&)[N]) {}
#endif

// sums[i] += x[0..N) . row i, for R rows of which each lies `apart` bytes behind the one before. The weights are stored in
// kBits bits; with 8 they are biased.
template <int kBits, int N, int R>
INLINE void dot_rows(I* sums, const B* x, const int8_t* a, size_t apart) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i ones = _mm256_set1_epi16(1);
    if constexpr (kBits < 8) {
        // Sums of two products take 16 bits; of such short weights several of them fit in as well: 2 * 8 * 15 * 128 < 2^15.
        constexpr int kFit = kBits == 4 ? 8 : kBits == 5 ? 4 : 2, kTogether = kFit < N ? kFit : N;
        static_assert(N % kTogether == 0);
        UNROLL for (int first = 0; first < N; first += kTogether) {
            __m256i low[R], high[R];
            UNROLL for (int j = 0; j < kTogether; ++j) {
                const __m256i w0 = x[first + j].a, w1 = x[first + j].b;
                UNROLL for (int i = 0; i < R; ++i) {
                    const __m256i four = four_everywhere(a + size_t(i) * apart + 4 * (first + j));
                    const __m256i p = _mm256_maddubs_epi16(w0, four), q = _mm256_maddubs_epi16(w1, four);
                    low[i] = here(j == 0 ? p : _mm256_add_epi16(low[i], p));
                    high[i] = here(j == 0 ? q : _mm256_add_epi16(high[i], q));
                }
            }
            UNROLL for (int i = 0; i < R; ++i) {
                sums[i].a += (Int8x32)_mm256_madd_epi16(low[i], ones);
                sums[i].b += (Int8x32)_mm256_madd_epi16(high[i], ones);
            }
        }
    } else {
        const __m256i bias = _mm256_set1_epi8(-128);
        UNROLL for (int j = 0; j < N; ++j) {
            const __m256i w0 = _mm256_xor_si256(x[j].a, bias), w1 = _mm256_xor_si256(x[j].b, bias);
            const __m256i u0 = _mm256_abs_epi8(w0), u1 = _mm256_abs_epi8(w1);
            UNROLL for (int i = 0; i < R; ++i) {
                const __m256i four = four_everywhere(a + size_t(i) * apart + 4 * j);
                const __m256i p = _mm256_maddubs_epi16(u0, _mm256_sign_epi8(four, w0));
                const __m256i q = _mm256_maddubs_epi16(u1, _mm256_sign_epi8(four, w1));
                sums[i].a = (Int8x32)here(_mm256_add_epi32((__m256i)sums[i].a, _mm256_madd_epi16(p, ones)));
                sums[i].b = (Int8x32)here(_mm256_add_epi32((__m256i)sums[i].b, _mm256_madd_epi16(q, ones)));
            }
        }
    }
#else
    UNROLL for (int j = 0; j < N; ++j) {
        UNROLL for (int i = 0; i < R; ++i) {
            const int8_t* four = a + size_t(i) * apart + 4 * j;
            sums[i] = kBits == 8 ? dot_biased_bytes(sums[i], x[j], four) : dot_nibbles(sums[i], x[j], four);
        }
    }
#endif
}

// e^x to about two units in the last place; exactly 1 at 0, and 0 below e^-87, so that what is masked vanishes.
INLINE F exp(F x) {
    const F clamped = max(set1(-88.0f), min(set1(88.0f), x));
    const F n = round_nearest(clamped * set1(1.44269504088896341f));
    F r = fma(n, set1(-0.693359375f), clamped);
    r = fma(n, set1(2.12194440e-4f), r);
    F p = fma(set1(1.9875691500e-4f), r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    p = fma(p * r, r, r) + set1(1.0f);
    return zero_where_below(x, -87.0f, times_power_of_two(p, n));
}

INLINE F tanh(F x) {  // 1 - 2 / (e^2x + 1)
    return set1(1.0f) - set1(2.0f) / (exp(x + x) + set1(1.0f));
}

// Two neighbours along the summed dimension for each of 16 columns, in BF16, as two vectors of float32.
struct Pair {
    F even, odd;
};
INLINE Pair load_pair(const uint16_t* p) {
#if defined(__AVX512F__)
    const __m512i both = _mm512_loadu_si512(p);
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))},
            {_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(int32_t(0xFFFF0000))))}};
#else
    I both;
    std::memcpy(&both.a, p, 32);  // in halves: a copy of the whole goes by way of the stack
    std::memcpy(&both.b, p + 16, 32);
    const Int8x32 high = Int8x32{} + int32_t(0xFFFF0000);
    return {{(Float8)(both.a << 16), (Float8)(both.b << 16)}, {(Float8)(both.a & high), (Float8)(both.b & high)}};
#endif
}

}  // namespace HEADRACE_ISA
}  // namespace headrace

// What softmax needs of sixteen scores: masks, powers of two, the greatest.
//
// Knows lanes. Does not know rows or pages. Softmax in base 2 (scores are multiplied with log2 e) spares a reduction with two
// constants.
#pragma once

#include "simd.h"

namespace headrace {
namespace HEADRACE_ISA {

constexpr float kLog2OfE = 1.44269504088896341f;

// Lanes [first, end) of x, and minus infinity elsewhere; either may lie outside 0 to 16.
static INLINE F only_between(F x, int first, int end) {
#if defined(__AVX512F__)
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __mmask16 inside = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(first)) &
                             _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(end));
    return {_mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), inside, x.v)};
#else
    const Int8x32 lane = {0, 1, 2, 3, 4, 5, 6, 7};
    const Float8 nothing = broadcast8(-INFINITY);
    return {(lane >= first) & (lane < end) ? x.a : nothing, (lane + 8 >= first) & (lane + 8 < end) ? x.b : nothing};
#endif
}

// 2^x for x <= 0, to about two units in the last place; 1 at 0, and 0 below -126, so that what is masked vanishes. What is
// not a number stays so.
static INLINE F exp2_of_negative(F x) {
    const F clamped = max(set1(-126.0f), x);
    const F n = round_nearest(clamped), r = clamped - n;
    F p = fma(set1(0.0013264727f), r, set1(0.009671513f));
    p = fma(p, r, set1(0.055507336f));
    p = fma(p, r, set1(0.24022242f));
    p = fma(p, r, set1(0.693147f));
    p = fma(p, r, set1(1.0f));
    return zero_where_below(x, -126.0f, times_power_of_two(p, n));
}

static INLINE float greatest_lane(F x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    const __m256 h = _mm256_max_ps((__m256)x.a, (__m256)x.b);
    const __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    const __m128 d = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
#else
    return max_of_lanes(x);
#endif
}

#if defined(__AVX512F__)
// 2^x for x <= 0, to 9e-5 of itself, 1 at 0: what is rounded to BF16 afterwards needs no more.
static INLINE F rough_exp2_of_negative(F x) {
    const F r = {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
    F p = fma(set1(0.07706719636917114f), r, set1(0.22764481604099274f));
    p = fma(p, r, set1(0.6951168179512024f));
    p = fma(p, r, set1(1.0f));
    return {_mm512_scalef_ps(p.v, x.v)};
}
#endif

}  // namespace HEADRACE_ISA
}  // namespace headrace

// Rows made ready for products: rounded to int8 by blocks or as a whole, to BF16, or as they are; `kernels.h` says where they lie.
//
// Knows one row at a time. Does not know what it is multiplied with.
#pragma once

#include "kernels.h"
#include "simd.h"
#include "tiles.h"

namespace headrace {
namespace HEADRACE_ISA {

// Of block b of a row, its sixteen first and sixteen last numbers; zeros behind the row's end.
static INLINE void load_block(const float* x, int num_in, int b, F& low, F& high) {
    const int n = num_in - b * kBlock;
    const float* at = x + b * kBlock;
    low = n >= 16 ? load(at) : load_n(at, n > 0 ? n : 0);
    high = n >= 32 ? load(at + 16) : load_n(at + 16, n > 16 ? n - 16 : 0);
}

#if defined(__AVX512F__)

// Lane i: all lanes of v[i] combined. Four rounds, each of which halves both the vectors and what is left of each.
template <class Combine>
static INLINE __m512i across(const __m512i* v, Combine combine) {
    __m512i x[8], y[4], z[2];
    UNROLL for (int i = 0; i < 8; ++i)
        x[i] = combine(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
    UNROLL for (int i = 0; i < 4; ++i)
        y[i] = combine(_mm512_unpacklo_epi64(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_epi64(x[2 * i], x[2 * i + 1]));
    const auto halves = [&](__m512i p, __m512i q) {
        return combine(_mm512_shuffle_i32x4(p, q, 0x88), _mm512_shuffle_i32x4(p, q, 0xDD));
    };
    UNROLL for (int i = 0; i < 2; ++i) z[i] = halves(y[2 * i], y[2 * i + 1]);
    return halves(z[0], z[1]);
}

// The magnitudes' bits, whose order is that of the numbers; what is not a number is greater than all.
static INLINE __m512i greatest_bits(F low, F high) {
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    return _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(low.v), magnitude),
                            _mm512_and_si512(_mm512_castps_si512(high.v), magnitude));
}

// Two blocks' integers, which are known to fit, as bytes.
static INLINE void store_two_blocks(__m512i low, __m512i high, __m512i next_low, __m512i next_high, int8_t* to, int8_t* next_to) {
    const __m512i packed = _mm512_packs_epi16(_mm512_packs_epi32(low, high), _mm512_packs_epi32(next_low, next_high));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i in_order = _mm512_permutexvar_epi32(order, packed);
    _mm256_storeu_si256((__m256i*)to, _mm512_castsi512_si256(in_order));
    _mm256_storeu_si256((__m256i*)next_to, _mm512_extracti64x4_epi64(in_order, 1));
}

// Sixteen blocks at a time, so that what goes across lanes is done for all of them at once. Without kWithSums the scales only.
template <bool kWithSums>
static void prepare_blocks(const float* x, int num_in, int num_blocks, RowGroup group, int row, const Activations& to) {
    constexpr int kTogether = 16;
    const auto greater = [](__m512i p, __m512i q) { return _mm512_max_epi32(p, q); };
    const auto sum = [](__m512i p, __m512i q) { return _mm512_add_epi32(p, q); };
    const int R = group.num_rows;
    for (int start = 0; start < num_blocks; start += kTogether) {
        const int count = num_blocks - start < kTogether ? num_blocks - start : kTogether;  // an even number
        const size_t place = size_t(group.first) * num_blocks + size_t(start) * R + row;
        __m512i firsts[kTogether], seconds[kTogether];
        for (int i = 0; i < kTogether; ++i) {
            firsts[i] = seconds[i] = _mm512_setzero_si512();
            if (i >= count) continue;
            F low, high;
            load_block(x, num_in, start + i, low, high);
            firsts[i] = greatest_bits(low, high);
        }
        const __m512 greatest = _mm512_castsi512_ps(across(firsts, greater)), limit = _mm512_set1_ps(127.0f);
        const __mmask16 is_positive = _mm512_cmp_ps_mask(greatest, _mm512_setzero_ps(), _CMP_GT_OQ);
        const __m512 scale = _mm512_mul_ps(greatest, _mm512_set1_ps(1.0f / 127.0f));
        const __m512 inverse = _mm512_maskz_div_ps(is_positive, limit, greatest);
        alignas(64) float scales[kTogether], inverses[kTogether], scaled_sums[kTogether];
        alignas(64) int32_t first_sums[kTogether], negative_sums[kTogether];
        _mm512_store_ps(scales, scale);
        _mm512_store_ps(inverses, inverse);
        // Finite blocks with finite inverses have no number that does not fit.
        const __m512 most = _mm512_set1_ps(3.4028235e38f);
        const bool all_fit = (_mm512_cmp_ps_mask(greatest, most, _CMP_LE_OQ) & _mm512_cmp_ps_mask(inverse, most, _CMP_LE_OQ)) == 0xFFFF;
        const auto rounded = [&](int i) {
            F low, high;
            load_block(x, num_in, start + i, low, high);
            if (all_fit) {
                const __m512 by = _mm512_set1_ps(inverses[i]);
                firsts[i] = _mm512_cvtps_epi32(_mm512_mul_ps(low.v, by));
                seconds[i] = _mm512_cvtps_epi32(_mm512_mul_ps(high.v, by));
            } else {
                firsts[i] = rounded_to_bytes(low, inverses[i]);
                seconds[i] = rounded_to_bytes(high, inverses[i]);
            }
        };
        for (int i = 0; i < count; i += 2) {
            rounded(i);
            rounded(i + 1);
            int8_t* out = to.int8 + (place + size_t(i) * R) * kBlock;
            store_two_blocks(firsts[i], seconds[i], firsts[i + 1], seconds[i + 1], out, out + R * kBlock);
            to.scales[place + size_t(i) * R] = scales[i];
            to.scales[place + size_t(i + 1) * R] = scales[i + 1];
        }
        if constexpr (kWithSums) {
            const __m512i none = _mm512_setzero_si512(), first = across(firsts, sum), whole = sum(first, across(seconds, sum));
            _mm512_store_si512(first_sums, _mm512_sub_epi32(none, first));
            _mm512_store_si512(negative_sums, _mm512_sub_epi32(none, whole));
            _mm512_store_ps(scaled_sums, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(whole)));
            for (int i = 0; i < count; ++i) {
                const size_t at = place + size_t(i) * R;
                to.negative_sums[at] = negative_sums[i];
                to.first_sums[at] = first_sums[i];
                to.scaled_sums[at] = scaled_sums[i];
            }
        }
    }
}

static void prepare_int8(const float* x, int num_in, int num_blocks, RowGroup group, int row, Activations to) {
#if defined(__AMX_TILE__)
    if (group.num_rows >= kFewestTileRows && !to.meet_minima)  // signed integers meet signed ones: no sum is asked for
        return prepare_blocks<false>(x, num_in, num_blocks, group, row, to);
#endif
    prepare_blocks<true>(x, num_in, num_blocks, group, row, to);
}

static void prepare_whole_int8(const float* x, int num_in, int num_blocks, RowGroup group, int row, Activations to) {
    __m512i bits = _mm512_setzero_si512(), sums = _mm512_setzero_si512();
    F low, high;
    for (int b = 0; b < num_blocks; ++b) {
        load_block(x, num_in, b, low, high);
        bits = _mm512_max_epi32(bits, greatest_bits(low, high));
    }
    const float greatest = max_magnitude({_mm512_castsi512_ps(bits)}, zero());
    const float inverse = greatest > 0.0f ? 127.0f / greatest : 0.0f;
    for (int b = 0; b < num_blocks; ++b) {
        load_block(x, num_in, b, low, high);
        const __m512i p = rounded_to_bytes(low, inverse), q = rounded_to_bytes(high, inverse);
        const size_t place = size_t(group.first) * num_blocks + size_t(b / 2 * group.num_rows + row) * 2 + size_t(b % 2);
        int8_t* out = to.whole_int8 + place * kBlock;
        _mm_storeu_si128((__m128i*)out, _mm512_cvtepi32_epi8(p));
        _mm_storeu_si128((__m128i*)(out + 16), _mm512_cvtepi32_epi8(q));
        sums = _mm512_add_epi32(sums, _mm512_add_epi32(p, q));
    }
    to.whole_scales[group.first + row] = greatest * (1.0f / 127.0f);
    to.whole_sums[group.first + row] = -_mm512_reduce_add_epi32(sums);
}

#else

#if defined(__AVX2__)

// Lane i: the greatest lane of v[i], as integers.
static INLINE __m256i greatest_lanes(const __m256i* v) {
    __m256i x[4], y[2];
    UNROLL for (int i = 0; i < 4; ++i)
        x[i] = _mm256_max_epi32(_mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]), _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
    UNROLL for (int i = 0; i < 2; ++i)
        y[i] = _mm256_max_epi32(_mm256_unpacklo_epi64(x[2 * i], x[2 * i + 1]), _mm256_unpackhi_epi64(x[2 * i], x[2 * i + 1]));
    return _mm256_max_epi32(_mm256_permute2x128_si256(y[0], y[1], 0x20), _mm256_permute2x128_si256(y[0], y[1], 0x31));
}

// Eight blocks at a time, so that what goes across lanes is done for all of them at once.
static void prepare_int8(const float* x, int num_in, int num_blocks, RowGroup group, int row, Activations to) {
    constexpr int kTogether = 8;
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    const int R = group.num_rows;
    for (int start = 0; start < num_blocks; start += kTogether) {
        const int count = num_blocks - start < kTogether ? num_blocks - start : kTogether;
        const size_t place = size_t(group.first) * num_blocks + size_t(start) * R + row;
        __m256i v[kTogether];  // the magnitudes' bits, whose order is that of the numbers; what is not a number is greater than all
        for (int i = 0; i < kTogether; ++i) {
            v[i] = _mm256_setzero_si256();
            if (i >= count) continue;
            F low, high;
            load_block(x, num_in, start + i, low, high);
            const auto bits = [&](Float8 part) { return _mm256_and_si256((__m256i)part, magnitude); };
            v[i] = _mm256_max_epi32(_mm256_max_epi32(bits(low.a), bits(low.b)), _mm256_max_epi32(bits(high.a), bits(high.b)));
        }
        const __m256 greatest = _mm256_castsi256_ps(greatest_lanes(v));
        const __m256 is_positive = _mm256_cmp_ps(greatest, _mm256_setzero_ps(), _CMP_GT_OQ);
        const __m256 scale = _mm256_mul_ps(greatest, _mm256_set1_ps(1.0f / 127.0f));
        const __m256 inverse = _mm256_and_ps(is_positive, _mm256_div_ps(_mm256_set1_ps(127.0f), greatest));
        alignas(32) float scales[kTogether], inverses[kTogether], scaled_sums[kTogether];
        alignas(32) int32_t first_sums[kTogether], negative_sums[kTogether];
        _mm256_store_ps(scales, scale);
        _mm256_store_ps(inverses, inverse);
        // Finite blocks with finite inverses have no number that does not fit.
        const __m256 most = _mm256_set1_ps(3.4028235e38f);
        const bool all_fit =
            _mm256_movemask_ps(_mm256_and_ps(_mm256_cmp_ps(greatest, most, _CMP_LE_OQ), _mm256_cmp_ps(inverse, most, _CMP_LE_OQ))) == 255;
        for (int i = 0; i < kTogether; ++i) {
            v[i] = _mm256_setzero_si256();
            if (i >= count) continue;
            F low, high;
            load_block(x, num_in, start + i, low, high);
            const __m256 by = _mm256_set1_ps(inverses[i]);
            const auto rounded = [&](Float8 part) {
                return all_fit ? _mm256_cvtps_epi32(_mm256_mul_ps((__m256)part, by)) : rounded_to_bytes(part, inverses[i]);
            };
            const __m256i bytes = packed_bytes(rounded(low.a), rounded(low.b), rounded(high.a), rounded(high.b));
            _mm256_storeu_si256((__m256i*)(to.int8 + (place + size_t(i) * R) * kBlock), bytes);
            v[i] = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));  // sums of four
        }
        const auto sums_of_four_blocks = [&](int i) {  // of their first halves, then of the others
            return _mm256_hadd_epi32(_mm256_hadd_epi32(v[i], v[i + 1]), _mm256_hadd_epi32(v[i + 2], v[i + 3]));
        };
        const __m256i p = sums_of_four_blocks(0), q = sums_of_four_blocks(4), none = _mm256_setzero_si256();
        const __m256i first = _mm256_permute2x128_si256(p, q, 0x20);
        const __m256i whole = _mm256_add_epi32(first, _mm256_permute2x128_si256(p, q, 0x31));
        _mm256_store_si256((__m256i*)first_sums, _mm256_sub_epi32(none, first));
        _mm256_store_si256((__m256i*)negative_sums, _mm256_sub_epi32(none, whole));
        _mm256_store_ps(scaled_sums, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(whole)));
        for (int i = 0; i < count; ++i) {
            const size_t at = place + size_t(i) * R;
            to.scales[at] = scales[i];
            to.negative_sums[at] = negative_sums[i];
            to.first_sums[at] = first_sums[i];
            to.scaled_sums[at] = scaled_sums[i];
        }
    }
}

#else

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

#endif

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

#endif

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

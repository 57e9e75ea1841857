// Passes over a whole row of logits: its greatest number, what a form allows of it, and the weights that a token is drawn by.
//
// Knows one row. Does not know filters or draws. What is computed is the same for every instruction set, bit by bit.
#pragma once

#include "kernels.h"

#include <cmath>
#include <cstring>

namespace headrace {
namespace HEADRACE_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
typedef float Numbers __attribute__((vector_size(kVectorBytes)));
typedef int32_t Whole __attribute__((vector_size(kVectorBytes)));
constexpr int kPerVector = kVectorBytes / 4, kVectors = 16 / kPerVector;

static inline Numbers numbers_at(const float* p) {
    Numbers x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

// -1 if the row has a NaN, or if its greatest number is not finite.
static int64_t greatest(const float* row, int64_t size) {
    Numbers best[kVectors];
    Whole is_nan[kVectors] = {};
    for (Numbers& lanes : best) lanes = Numbers{} - INFINITY;
    int64_t i = 0;
    for (; i + 16 <= size; i += 16) {
        for (int v = 0; v < kVectors; ++v) {
            const Numbers x = numbers_at(row + i + v * kPerVector);
            best[v] = x > best[v] ? x : best[v];
            is_nan[v] |= x != x;
        }
    }
    float most = -INFINITY;
    bool has_nan = false;
    for (int v = 0; v < kVectors; ++v) {
        for (int lane = 0; lane < kPerVector; ++lane) {
            if (best[v][lane] > most) most = best[v][lane];
            has_nan |= is_nan[v][lane] != 0;
        }
    }
    for (; i < size; ++i) {
        has_nan |= row[i] != row[i];
        if (row[i] > most) most = row[i];
    }
    if (has_nan || !std::isfinite(most)) return -1;
    for (i = 0; i + 16 <= size; i += 16) {
        Whole found{};
        for (int v = 0; v < kVectors; ++v) found |= numbers_at(row + i + v * kPerVector) == most;
        int64_t halves[kVectorBytes / 8], any = 0;
        std::memcpy(halves, &found, sizeof found);
        for (int64_t half : halves) any |= half;
        if (any) break;
    }
    while (row[i] != most) ++i;
    return i;
}

// Of those that have a bit, as `restrict_to` has them: the index of the greatest number, the first among equals; -1 where none
// is above minus infinity. The row has no NaN.
static int64_t greatest_allowed(const float* row, int64_t size, const int32_t* allowed) {
    constexpr int kVectorsPerWord = 32 / kPerVector;
    Whole bit[kVectorsPerWord], word_of_best[kVectorsPerWord] = {};
    Numbers best[kVectorsPerWord];
    for (int i = 0; i < 32; ++i) bit[i / kPerVector][i % kPerVector] = int32_t(1u << i);
    for (Numbers& lanes : best) lanes = Numbers{} - INFINITY;
    const int64_t num_words = size / 32;
    for (int64_t word = 0; word < num_words; ++word) {
        if (allowed[word] == 0) continue;
        for (int v = 0; v < kVectorsPerWord; ++v) {
            const Numbers x = numbers_at(row + word * 32 + v * kPerVector);
            const Whole is_better = ((bit[v] & allowed[word]) != 0) & (x > best[v]);
            best[v] = is_better ? x : best[v];
            word_of_best[v] = is_better ? Whole{} + int32_t(word) : word_of_best[v];
        }
    }
    float most = -INFINITY;
    int64_t found = -1;
    for (int i = 0; i < 32; ++i) {
        const float x = best[i / kPerVector][i % kPerVector];
        const int64_t index = int64_t(word_of_best[i / kPerVector][i % kPerVector]) * 32 + i;
        if (x > most || (x == most && x > -INFINITY && index < found)) most = x, found = index;
    }
    for (int64_t i = num_words * 32; i < size; ++i)
        if (uint32_t(allowed[num_words]) >> (i % 32) & 1 && row[i] > most) most = row[i], found = i;
    return found;
}

// Minus infinity where a bit is 0; allowed: one bit for each number, the lowest of each word first.
static void restrict_to(float* row, int64_t size, const int32_t* allowed) {
    Whole bit[32 / kPerVector];
    for (int i = 0; i < 32; ++i) bit[i / kPerVector][i % kPerVector] = int32_t(1u << i);
    int64_t i = 0;
    for (; i + 32 <= size; i += 32, ++allowed) {
        if (*allowed == -1) continue;
        for (int v = 0; v < 32 / kPerVector; ++v) {
            const Whole is_allowed = (bit[v] & *allowed) != 0;
            const Numbers kept = is_allowed ? numbers_at(row + i + v * kPerVector) : Numbers{} - INFINITY;
            std::memcpy(row + i + v * kPerVector, &kept, sizeof kept);
        }
    }
    for (int64_t lane = 0; i + lane < size; ++lane)
        if (!(uint32_t(*allowed) >> lane & 1)) row[i + lane] = -INFINITY;
}

// e^x for x <= 0, within two units of the last place; 0 below -87.
static inline Numbers exp_of_negative(Numbers x) {
    const Whole is_small = x < -87.0f;
    x = is_small ? Numbers{} - 87.0f : x;
    const Numbers whole = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f;  // to nearest
    const Numbers r = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;        // ln 2 in two parts (Cody and Waite)
    Numbers p = Numbers{} + 1.9875691500e-4f;                                      // Cephes' polynomial
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const Whole exponent = (__builtin_convertvector(whole, Whole) + 127) << 23;
    Numbers power;
    std::memcpy(&power, &exponent, sizeof power);
    return is_small ? Numbers{} : p * power;
}

// weights = exp((row - greatest) / temperature), and zeros up to a whole stretch; stretches: their sums. Gives the sum of all.
static double weigh(const float* row, int64_t size, float greatest, float temperature, float* weights, double* stretches) {
    double total = 0.0;
    for (int64_t start = 0; start < size; start += kStretch) {
        Numbers sums[kVectors] = {};
        for (int64_t i = start; i < start + kStretch; i += 16) {
            alignas(64) float edge[16];
            const float* from = row + i;
            if (i + 16 > size) {  // beyond the row: weights of zero
                for (int64_t lane = 0; lane < 16; ++lane) edge[lane] = i + lane < size ? row[i + lane] : -INFINITY;
                from = edge;
            }
            for (int v = 0; v < kVectors; ++v) {
                const Numbers weight = exp_of_negative((numbers_at(from + v * kPerVector) - greatest) / temperature);
                std::memcpy(weights + i + v * kPerVector, &weight, sizeof weight);
                sums[v] += weight;
            }
        }
        double stretch = 0.0;
        for (int v = 0; v < kVectors; ++v)
            for (int lane = 0; lane < kPerVector; ++lane) stretch += double(sums[v][lane]);
        stretches[start / kStretch] = stretch;
        total += stretch;
    }
    return total;
}

}  // namespace HEADRACE_ISA
}  // namespace headrace

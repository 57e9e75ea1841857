// How a checkpoint holds the numbers of a quantised block: 32 integers at a time, and what they are multiples of.
//
// Knows the bytes of a file; `headrace/engine/ops/dequantize.py` states the same in Python. Does not know tiles, nor what becomes of
// the numbers. A block of 256 numbers has eight parts of 32, a block of 32 has one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "kernels.h"

namespace headrace {

// How a row lies in a file: blocks of so many numbers in so many bytes, behind a head.
struct Storage {
    const char* name;
    Format format;
    int block_numbers, block_bytes, head_bytes;

    // Raises std::invalid_argument where such rows would not be whole blocks.
    size_t row_bytes(int num_in) const;
};

// By the name that `STORAGE_BLOCKS` gives it; null where no kernel takes it.
const Storage* find_storage(const std::string& name);

// 32 nibbles in two planes: byte k holds number k below and number k + 16 above.
inline void read_nibbles(const uint8_t* packed, uint8_t* integers) {
    for (int k = 0; k < 16; ++k) {
        integers[k] = packed[k] & 15;
        integers[k + 16] = packed[k] >> 4;
    }
}

// 32 bits in reading order.
inline void add_fifth_bits(const uint8_t* bits, uint8_t* integers) {
    for (int k = 0; k < kBlock; ++k) integers[k] |= uint8_t((bits[k / 8] >> k % 8 & 1) << 4);
}

// Q4_K: d, dmin: half; 12 bytes of multipliers; nibbles, of which 32 bytes hold a part below and the next one above. Q5_K: before the
// nibbles 32 bytes of fifth bits, a part to a plane.
inline void read_part_of_q45_k(const uint8_t* block, bool has_fifths, int part, uint8_t* integers) {
    const uint8_t *fifths = block + 16, *nibbles = block + (has_fifths ? 48 : 16) + part / 2 * 32;
    for (int k = 0; k < kBlock; ++k) {
        integers[k] = nibbles[k] >> part % 2 * 4 & 15;
        if (has_fifths) integers[k] |= uint8_t((fifths[k] >> part & 1) << 4);
    }
}

// Q6_K: 128 bytes of nibbles, 64 of upper pairs, 16 signed bytes that multiply the scale, d: half. Either half of the parts has 64
// bytes of nibbles, its first two below and its last two above, and 32 bytes of pairs, a part to a plane.
inline void read_part_of_q6_k(const uint8_t* block, int part, uint8_t* integers) {
    const int half = part / 4, plane = part % 4;
    const uint8_t *nibbles = block + half * 64 + plane % 2 * 32, *pairs = block + 128 + half * 32;
    for (int k = 0; k < kBlock; ++k)
        integers[k] = uint8_t((nibbles[k] >> plane / 2 * 4 & 15) | (pairs[k] >> plane * 2 & 3) << 4);
}

// The integers of one part as they are stored: too great by what the format says, or, of Q8_0, signed.
inline void read_integers(Format format, const uint8_t* block, int part, uint8_t* integers) {
    switch (format) {
        case Format::Q4_0: return read_nibbles(block + 2, integers);  // behind d: half
        case Format::Q4_1: return read_nibbles(block + 4, integers);  // behind d, m: half
        case Format::Q5_0:
            read_nibbles(block + 6, integers);
            return add_fifth_bits(block + 2, integers);
        case Format::Q5_1:
            read_nibbles(block + 8, integers);
            return add_fifth_bits(block + 4, integers);
        case Format::Q8_0: std::memcpy(integers, block + 2, kBlock); return;
        case Format::Q4_K: return read_part_of_q45_k(block, false, part, integers);
        case Format::Q5_K: return read_part_of_q45_k(block, true, part, integers);
        case Format::Q6_K: return read_part_of_q6_k(block, part, integers);
        default: return;  // no format of blocks
    }
}

// What multiplies d and dmin of Q4_K and Q5_K in one part: six bits each. The first four of either kind lie below the upper pairs of
// the last four, whose low nibbles share the last four bytes.
struct SixBitMultipliers {
    uint8_t scale, minimum;
};
inline SixBitMultipliers six_bit_multipliers(const uint8_t* packed, int part) {
    if (part < 4) return {uint8_t(packed[part] & 63), uint8_t(packed[part + 4] & 63)};
    return {uint8_t((packed[part + 4] & 15) | packed[part - 4] >> 6 << 4), uint8_t(packed[part + 4] >> 4 | packed[part] >> 6 << 4)};
}

}  // namespace headrace

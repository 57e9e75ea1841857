#include "packing.h"

#include <algorithm>
#include <cstring>

#include "half.h"

namespace headrace {

int padded_blocks(int num_in) { return (num_in + 2 * kBlock - 1) / (2 * kBlock) * 2; }

namespace {

float read_float(const uint8_t* p) {
    float x;
    std::memcpy(&x, p, 4);
    return x;
}

// To nearest even where float16 holds it exactly; what it does not hold exactly comes back as something else.
uint16_t to_half(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    const int exponent = int(bits >> 23 & 255) - 112;
    const uint32_t mantissa = bits & 0x7FFFFF;
    if (exponent >= 1 && exponent <= 30) return uint16_t(sign | exponent << 10 | mantissa >> 13);
    if (exponent < 1 && exponent > -10) return uint16_t(sign | (mantissa | 0x800000) >> (14 - exponent));
    return sign;
}

}  // namespace

TileKind tile_kind(const Storage& storage, const uint8_t* rows, size_t num_rows, int num_in) {
    TileKind kind{storage.format};
    if (storage.format != Format::I4) return kind;
    kind.group_blocks = uint8_t(storage.block_numbers / kBlock);
    const size_t num_groups = num_rows * size_t(num_in / storage.block_numbers);
    bool fits_half = true, fits_bf16 = true;
    for (size_t g = 0; g < num_groups; ++g) {
        const uint8_t* group = rows + g * size_t(storage.block_bytes);
        const float scale = read_float(group);
        uint32_t bits;
        std::memcpy(&bits, &scale, 4);
        fits_bf16 &= (bits & 0xFFFF) == 0;
        fits_half &= half_to_float(to_half(scale)) == scale;
        if (group[4] != 8) kind.format = Format::I4_Z;
    }
    kind.scale_type = fits_half ? ScaleType::F16 : fits_bf16 ? ScaleType::BF16 : ScaleType::F32;
    return kind;
}

size_t tile_bytes(const TileKind& kind, int num_in) {
    const size_t blocks = size_t(padded_blocks(num_in)), pairs = size_t(num_in + 1) / 2;
    switch (kind.format) {
        case Format::I4:
        case Format::I4_Z: {
            const size_t groups = (blocks + kind.group_blocks - 1) / kind.group_blocks;
            return blocks * 256 + groups * ((kind.scale_type == ScaleType::F32 ? 64 : 32) + (kind.format == Format::I4_Z ? 16 : 0));
        }
        case Format::I8: return blocks * 512 + 64;
        case Format::F16: return pairs * 64;
        case Format::BF16: return blocks * (kBlock / 2) * 64;
        case Format::F32: return pairs * 128;
        default: {
            const UnitShape unit = unit_shape(kind.format);
            return blocks / size_t(unit.num_blocks) * size_t(unit.num_bytes());
        }
    }
}

namespace {

// One column of a block: 32 integers into the bytes, nibbles and bits that `kernels.h` describes.

void place_nibbles(const uint8_t* integers, int column, uint8_t* to) {
    for (int k = 0; k < 16; ++k) to[k / 4 * 64 + column * 4 + k % 4] = uint8_t((integers[k] & 15) | (integers[k + 16] & 15) << 4);
}

void place_fives(const uint8_t* integers, int column, uint8_t* to) {
    place_nibbles(integers, column, to);
    for (int k = 0; k < kBlock; ++k) to[256 + column * 4 + k % 4] |= uint8_t((integers[k] >> 4 & 1) << k / 4);
}

void place_sixes(const uint8_t* integers, int column, uint8_t* to) {
    place_nibbles(integers, column, to);
    for (int k = 0; k < kBlock; ++k)
        to[256 + k / 16 * 64 + column * 4 + k % 4] |= uint8_t((integers[k] >> 4 & 3) << k % 16 / 4 * 2);
}

void place_bytes(const uint8_t* integers, int column, uint8_t* to) {
    for (int k = 0; k < kBlock; ++k) to[k / 4 * 64 + column * 4 + k % 4] = uint8_t(integers[k] ^ 0x80);
}

void place_integers(Format format, const uint8_t* integers, int column, uint8_t* to) {
    switch (format) {
        case Format::Q5_0:
        case Format::Q5_1:
        case Format::Q5_K: return place_fives(integers, column, to);
        case Format::Q6_K: return place_sixes(integers, column, to);
        case Format::Q8_0: return place_bytes(integers, column, to);
        default: return place_nibbles(integers, column, to);
    }
}

// One column's scales of block h of a unit, from part `part` of a stored block.
void place_scales(Format format, const uint8_t* block, int part, int h, int column, uint8_t* unit) {
    const auto copy_half = [&](int to, int from) { std::memcpy(unit + to + column * 2, block + from, 2); };
    switch (format) {
        case Format::Q4_1:
        case Format::Q5_1:
            copy_half(0, 0);
            return copy_half(32, 2);
        case Format::Q4_K:
        case Format::Q5_K: {
            if (h == 0) copy_half(0, 0), copy_half(32, 2);
            const SixBitMultipliers multipliers = six_bit_multipliers(block + 4, part);
            unit[64 + h * 16 + column] = multipliers.scale;
            unit[192 + h * 16 + column] = multipliers.minimum;
            return;
        }
        case Format::Q6_K:
            if (h == 0) copy_half(0, 208);
            unit[64 + h * 32 + column] = block[192 + part * 2];
            unit[80 + h * 32 + column] = block[193 + part * 2];
            return;
        default: return copy_half(h * 32, 0);
    }
}

void pack_row_of_units(const Storage& storage, const uint8_t* row, int num_in, int column, uint8_t* tile) {
    const UnitShape shape = unit_shape(storage.format);
    const int num_parts = storage.block_numbers / kBlock;
    uint8_t integers[kBlock];
    for (int b = 0; b < num_in / kBlock; ++b) {
        const uint8_t* block = row + size_t(b / num_parts) * size_t(storage.block_bytes);
        uint8_t* unit = tile + size_t(b / shape.num_blocks) * size_t(shape.num_bytes());
        const int part = b % num_parts, h = b % shape.num_blocks;
        read_integers(storage.format, block, part, integers);
        place_integers(storage.format, integers, column, unit + shape.scale_bytes + h * shape.block_bytes);
        place_scales(storage.format, block, part, h, column, unit);
    }
}

// Of every group a scale, a zero point, and nibbles as Q4_0 has them.
void pack_row_of_groups(const Storage& storage, const TileKind& kind, const uint8_t* row, int num_in, int column, uint8_t* tile) {
    const size_t num_blocks = size_t(padded_blocks(num_in)), num_groups = (num_blocks + kind.group_blocks - 1) / kind.group_blocks;
    const size_t scale_size = kind.scale_type == ScaleType::F32 ? 4 : 2;
    uint8_t *scales = tile + num_blocks * 256, *zeros = scales + num_groups * kTileColumns * scale_size;
    uint8_t integers[kBlock];
    for (size_t g = 0; g < size_t(num_in / storage.block_numbers); ++g) {
        const uint8_t* group = row + g * size_t(storage.block_bytes);
        const size_t at = g * kTileColumns + size_t(column);
        const uint16_t half = to_half(read_float(group));
        if (kind.scale_type == ScaleType::F16) std::memcpy(scales + at * scale_size, &half, 2);
        else if (kind.scale_type == ScaleType::BF16) std::memcpy(scales + at * scale_size, group + 2, 2);  // the upper half
        else std::memcpy(scales + at * scale_size, group, 4);
        if (kind.format == Format::I4_Z) zeros[at] = group[4];
        for (size_t h = 0; h < kind.group_blocks; ++h) {
            read_nibbles(group + 5 + h * 16, integers);
            place_nibbles(integers, column, tile + (g * kind.group_blocks + h) * 256);
        }
    }
}

// A scale, and a signed byte for every number.
void pack_row_of_bytes(const uint8_t* row, int num_in, int column, uint8_t* tile) {
    const int num_blocks = padded_blocks(num_in);
    std::memcpy(tile + size_t(num_blocks) * 512 + size_t(column) * 4, row, 4);
    for (int b = 0; b < num_blocks; ++b) {
        uint8_t integers[kBlock] = {};
        std::memcpy(integers, row + 4 + b * kBlock, size_t(std::max(0, std::min(kBlock, num_in - b * kBlock))));
        place_bytes(integers, column, tile + size_t(b) * 512);
    }
}

// Numbers of so many bytes as they are: [num_in / num_together][16][num_together].
void pack_row_of_numbers(const uint8_t* row, int num_in, size_t num_bytes, size_t num_together, int column, uint8_t* tile) {
    for (size_t k = 0; k < size_t(num_in); ++k) {
        const size_t at = (k / num_together * kTileColumns + size_t(column)) * num_together + k % num_together;
        std::memcpy(tile + at * num_bytes, row + k * num_bytes, num_bytes);
    }
}

}  // namespace

void pack_row(const Storage& storage, const TileKind& kind, const uint8_t* row, int num_in, int column, uint8_t* tile) {
    switch (kind.format) {
        case Format::BF16: return pack_row_of_numbers(row, num_in, 2, 2, column, tile);
        case Format::F16: return pack_row_of_numbers(row, num_in, 2, 1, column, tile);
        case Format::F32: return pack_row_of_numbers(row, num_in, 4, 1, column, tile);
        case Format::I8: return pack_row_of_bytes(row, num_in, column, tile);
        case Format::I4:
        case Format::I4_Z: return pack_row_of_groups(storage, kind, row, num_in, column, tile);
        default: return pack_row_of_units(storage, row, num_in, column, tile);
    }
}

bool needs_blocks(Format format) {
    return format != Format::I8 && format != Format::F16 && format != Format::BF16 && format != Format::F32;
}

}  // namespace headrace

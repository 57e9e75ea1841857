#include "packing.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "half.h"

namespace headrace {


int padded_blocks(int num_in) { return (num_in + 2 * kBlock - 1) / (2 * kBlock) * 2; }

size_t Storage::row_bytes(int num_in) const {
    if (num_in % block_numbers) throw std::invalid_argument("rows of " + std::string(name) + " are whole blocks");
    return size_t(head_bytes) + size_t(num_in / block_numbers) * size_t(block_bytes);
}

const Storage& storage_of(const std::string& name) {
    static const Storage kStorages[] = {
        {"Q4_0", Format::Q4_0, 32, 18, 0},         {"Q4_1", Format::Q4_1, 32, 20, 0},
        {"Q5_0", Format::Q5_0, 32, 22, 0},         {"Q5_1", Format::Q5_1, 32, 24, 0},
        {"Q8_0", Format::Q8_0, 32, 34, 0},         {"Q4_K", Format::Q4_K, 256, 144, 0},
        {"Q5_K", Format::Q5_K, 256, 176, 0},       {"Q6_K", Format::Q6_K, 256, 210, 0},
        {"INT4_G32", Format::I4, 32, 5 + 16, 0},   {"INT4_G64", Format::I4, 64, 5 + 32, 0},
        {"INT4_G128", Format::I4, 128, 5 + 64, 0}, {"INT8_CHANNEL", Format::I8, 1, 1, 4},
        {"F16", Format::F16, 1, 2, 0},             {"BF16", Format::BF16, 1, 2, 0},
        {"F32", Format::F32, 1, 4, 0},
    };
    for (const Storage& storage : kStorages)
        if (name == storage.name) return storage;
    throw std::invalid_argument("no kernel for " + name);
}

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
        case Format::Q4_0: return blocks / 2 * 576;
        case Format::Q4_1: return blocks * 320;
        case Format::Q5_0: return blocks / 2 * 704;
        case Format::Q5_1: return blocks * 384;
        case Format::Q8_0: return blocks / 2 * 1088;
        case Format::Q4_K: return blocks / 8 * (320 + 8 * 256);
        case Format::Q5_K: return blocks / 8 * (320 + 8 * 320);
        case Format::Q6_K: return blocks / 8 * (320 + 8 * 384);
        case Format::I4:
        case Format::I4_Z: {
            const size_t groups = (blocks + kind.group_blocks - 1) / kind.group_blocks;
            return blocks * 256 + groups * ((kind.scale_type == ScaleType::F32 ? 64 : 32) + (kind.format == Format::I4_Z ? 16 : 0));
        }
        case Format::I8: return blocks * 512 + 64;
        case Format::F16: return pairs * 64;
        case Format::BF16: return blocks * (kBlock / 2) * 64;
        case Format::F32: return pairs * 128;
    }
    return 0;
}

namespace {

// One column of a tile of blocks: 32 integers into the bytes, nibbles and bits that `kernels.h` describes.

void place_nibbles(const uint8_t* values, int column, uint8_t* to) {
    for (int k = 0; k < 16; ++k) to[k / 4 * 64 + column * 4 + k % 4] = uint8_t((values[k] & 15) | (values[k + 16] & 15) << 4);
}

void place_fives(const uint8_t* values, int column, uint8_t* to) {
    place_nibbles(values, column, to);
    for (int k = 0; k < kBlock; ++k) to[256 + column * 4 + k % 4] |= uint8_t((values[k] >> 4 & 1) << k / 4);
}

void place_sixes(const uint8_t* values, int column, uint8_t* to) {
    place_nibbles(values, column, to);
    for (int k = 0; k < kBlock; ++k)
        to[256 + k / 16 * 64 + column * 4 + k % 4] |= uint8_t((values[k] >> 4 & 3) << k % 16 / 4 * 2);
}

void place_bytes(const uint8_t* values, int column, uint8_t* to) {
    for (int k = 0; k < kBlock; ++k) to[k / 4 * 64 + column * 4 + k % 4] = uint8_t(values[k] ^ 0x80);
}

void split_nibbles(const uint8_t* packed, uint8_t* values) {  // byte k holds k below and k + 16 above
    for (int k = 0; k < 16; ++k) {
        values[k] = packed[k] & 15;
        values[k + 16] = packed[k] >> 4;
    }
}

void add_fifth_bits(const uint8_t* bits, uint8_t* values) {
    for (int k = 0; k < kBlock; ++k) values[k] |= uint8_t((bits[k / 8] >> k % 8 & 1) << 4);
}

// The six-bit multipliers of Q4_K and Q5_K: of block h, of its scale and of its minimum.
void six_bit_multipliers(const uint8_t* packed, int h, uint8_t& scale, uint8_t& minimum) {
    if (h < 4) {
        scale = packed[h] & 63;
        minimum = packed[h + 4] & 63;
    } else {
        scale = uint8_t((packed[h + 4] & 15) | (packed[h - 4] >> 6) << 4);
        minimum = uint8_t(packed[h + 4] >> 4 | (packed[h] >> 6) << 4);
    }
}

}  // namespace

void pack_row(const Storage& storage, const TileKind& kind, const uint8_t* row, int num_in, int column, uint8_t* tile) {
    uint8_t v[kBlock];
    const int num_blocks = num_in / storage.block_numbers;
    const auto copy_half = [&](uint8_t* to, const uint8_t* from) { std::memcpy(to + column * 2, from, 2); };
    switch (kind.format) {
        case Format::BF16:
            for (int k = 0; k < num_in; ++k) std::memcpy(tile + (size_t(k / 2) * 32 + size_t(column) * 2 + size_t(k % 2)) * 2, row + size_t(k) * 2, 2);
            return;
        case Format::F16:
            for (int k = 0; k < num_in; ++k) std::memcpy(tile + (size_t(k) * 16 + size_t(column)) * 2, row + size_t(k) * 2, 2);
            return;
        case Format::F32:
            for (int k = 0; k < num_in; ++k) std::memcpy(tile + (size_t(k) * 16 + size_t(column)) * 4, row + size_t(k) * 4, 4);
            return;
        case Format::I8: {
            const int blocks = padded_blocks(num_in);
            std::memcpy(tile + size_t(blocks) * 512 + size_t(column) * 4, row, 4);
            for (int b = 0; b < blocks; ++b) {
                const int n = std::max(0, std::min(kBlock, num_in - b * kBlock));
                std::memset(v, 0, kBlock);
                std::memcpy(v, row + 4 + b * kBlock, size_t(n));
                place_bytes(v, column, tile + size_t(b) * 512);
            }
            return;
        }
        case Format::I4:
        case Format::I4_Z: {
            const size_t blocks = size_t(padded_blocks(num_in)), groups = (blocks + kind.group_blocks - 1) / kind.group_blocks;
            const size_t scale_size = kind.scale_type == ScaleType::F32 ? 4 : 2;
            uint8_t *scales = tile + blocks * 256, *zeros = scales + groups * 16 * scale_size;
            for (int g = 0; g < num_blocks; ++g) {
                const uint8_t* group = row + size_t(g) * size_t(storage.block_bytes);
                const float scale = read_float(group);
                uint8_t* to = scales + (size_t(g) * 16 + size_t(column)) * scale_size;
                const uint16_t half = to_half(scale);
                if (kind.scale_type == ScaleType::F16) std::memcpy(to, &half, 2);
                else if (kind.scale_type == ScaleType::BF16) std::memcpy(to, group + 2, 2);  // the upper half
                else std::memcpy(to, group, 4);
                if (kind.format == Format::I4_Z) zeros[size_t(g) * 16 + size_t(column)] = group[4];
                for (int h = 0; h < kind.group_blocks; ++h) {
                    split_nibbles(group + 5 + h * 16, v);
                    place_nibbles(v, column, tile + size_t(g * kind.group_blocks + h) * 256);
                }
            }
            return;
        }
        default: break;
    }
    for (int b = 0; b < num_blocks; ++b) {
        const uint8_t* block = row + size_t(b) * size_t(storage.block_bytes);
        switch (kind.format) {
            case Format::Q4_0: {
                uint8_t* unit = tile + size_t(b / 2) * 576;
                copy_half(unit + b % 2 * 32, block);
                split_nibbles(block + 2, v);
                place_nibbles(v, column, unit + 64 + b % 2 * 256);
                break;
            }
            case Format::Q4_1: {
                uint8_t* unit = tile + size_t(b) * 320;
                copy_half(unit, block);
                copy_half(unit + 32, block + 2);
                split_nibbles(block + 4, v);
                place_nibbles(v, column, unit + 64);
                break;
            }
            case Format::Q5_0: {
                uint8_t* unit = tile + size_t(b / 2) * 704;
                copy_half(unit + b % 2 * 32, block);
                split_nibbles(block + 6, v);
                add_fifth_bits(block + 2, v);
                place_fives(v, column, unit + 64 + b % 2 * 320);
                break;
            }
            case Format::Q5_1: {
                uint8_t* unit = tile + size_t(b) * 384;
                copy_half(unit, block);
                copy_half(unit + 32, block + 2);
                split_nibbles(block + 8, v);
                add_fifth_bits(block + 4, v);
                place_fives(v, column, unit + 64);
                break;
            }
            case Format::Q8_0: {
                uint8_t* unit = tile + size_t(b / 2) * 1088;
                copy_half(unit + b % 2 * 32, block);
                place_bytes(block + 2, column, unit + 64 + b % 2 * 512);
                break;
            }
            case Format::Q4_K:
            case Format::Q5_K: {
                // d, dmin: half; multipliers in 12 bytes; for Q5_K 256 fifth bits in eight planes; 256 nibbles, of which
                // 32 bytes hold a block below and the next above.
                const bool is_five = kind.format == Format::Q5_K;
                const size_t quant_bytes = is_five ? 320 : 256;
                uint8_t* unit = tile + size_t(b) * (320 + 8 * quant_bytes);
                copy_half(unit, block);
                copy_half(unit + 32, block + 2);
                for (int h = 0; h < 8; ++h) {
                    six_bit_multipliers(block + 4, h, unit[64 + h * 16 + column], unit[192 + h * 16 + column]);
                    const uint8_t* nibbles = block + (is_five ? 48 : 16) + h / 2 * 32;
                    for (int k = 0; k < kBlock; ++k) {
                        v[k] = nibbles[k] >> h % 2 * 4 & 15;
                        if (is_five) v[k] |= uint8_t((block[16 + k] >> h & 1) << 4);
                    }
                    if (is_five) place_fives(v, column, unit + 320 + size_t(h) * quant_bytes);
                    else place_nibbles(v, column, unit + 320 + size_t(h) * quant_bytes);
                }
                break;
            }
            default: {  // Q6_K: 128 bytes of nibbles, 64 of pairs, 16 int8 multipliers, d: half
                uint8_t* unit = tile + size_t(b) * (320 + 8 * 384);
                copy_half(unit, block + 208);
                for (int h = 0; h < 8; ++h) {
                    unit[64 + h * 32 + column] = block[192 + h * 2];
                    unit[80 + h * 32 + column] = block[193 + h * 2];
                    // Either half of 128 numbers has 64 bytes of nibbles, 0 to 63 below and 64 to 127 above, and 32 bytes of
                    // pairs, 32 numbers to a plane.
                    const uint8_t *nibbles = block + h / 4 * 64 + h % 2 * 32, *pairs = block + 128 + h / 4 * 32;
                    for (int k = 0; k < kBlock; ++k)
                        v[k] = uint8_t((nibbles[k] >> h % 4 / 2 * 4 & 15) | (pairs[k] >> h % 4 * 2 & 3) << 4);
                    place_sixes(v, column, unit + 320 + size_t(h) * 384);
                }
                break;
            }
        }
    }
}

bool needs_blocks(Format format) {
    return format != Format::I8 && format != Format::F16 && format != Format::BF16 && format != Format::F32;
}

}  // namespace headrace

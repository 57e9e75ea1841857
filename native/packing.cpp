#include "packing.h"

#include <cstring>
#include <stdexcept>

namespace headrace {

Format format_of(const std::string& storage) {
    if (storage == "Q4_0") return Format::Q4_0;
    if (storage == "Q4_1") return Format::Q4_1;
    if (storage == "Q8_0") return Format::Q8_0;
    if (storage == "BF16") return Format::BF16;
    if (storage == "F32") return Format::F32;
    throw std::invalid_argument("no kernel for " + storage);
}

bool is_quantized(Format format) { return format != Format::BF16 && format != Format::F32; }

int padded_blocks(int num_in) { return (num_in + 2 * kBlock - 1) / (2 * kBlock) * 2; }

size_t row_bytes(Format format, int num_in) {
    const size_t n = size_t(num_in);
    switch (format) {
        case Format::Q4_0: return n / 32 * 18;
        case Format::Q4_1: return n / 32 * 20;
        case Format::Q8_0: return n / 32 * 34;
        case Format::BF16: return n * 2;
        default: return n * 4;
    }
}

size_t tile_bytes(Format format, int num_in) {
    const size_t blocks = size_t(padded_blocks(num_in)), pairs = size_t(num_in + 1) / 2;
    switch (format) {
        case Format::Q4_0: return blocks / 2 * 576;
        case Format::Q4_1: return blocks * 320;
        case Format::Q8_0: return blocks / 2 * 1088;
        case Format::BF16: return pairs * 64;
        default: return pairs * 128;
    }
}

void pack_row(Format format, const uint8_t* row, int num_in, int column, uint8_t* tile) {
    const int num_blocks = num_in / kBlock;
    if (format == Format::BF16 || format == Format::F32) {
        const size_t size = format == Format::BF16 ? 2 : 4;
        for (int k = 0; k < num_in; ++k) {
            const size_t at = format == Format::BF16 ? size_t(k / 2) * 32 + size_t(column) * 2 + size_t(k % 2)
                                                     : size_t(k) * 16 + size_t(column);
            std::memcpy(tile + at * size, row + size_t(k) * size, size);
        }
        return;
    }
    for (int b = 0; b < num_blocks; ++b) {
        uint8_t *scale, *quants;
        const uint8_t* block;
        if (format == Format::Q4_1) {
            block = row + size_t(b) * 20;
            scale = tile + size_t(b) * 320 + column * 2;
            std::memcpy(scale + 32, block + 2, 2);
            quants = tile + size_t(b) * 320 + 64;
        } else {
            const size_t quant_bytes = format == Format::Q4_0 ? 256 : 512, pair = 64 + 2 * quant_bytes;
            block = row + size_t(b) * (format == Format::Q4_0 ? 18 : 34);
            scale = tile + size_t(b / 2) * pair + (b % 2) * 32 + column * 2;
            quants = tile + size_t(b / 2) * pair + 64 + (b % 2) * quant_bytes;
        }
        std::memcpy(scale, block, 2);
        const uint8_t* values = block + (format == Format::Q4_1 ? 4 : 2);
        if (format == Format::Q8_0) {
            for (int k = 0; k < kBlock; ++k) quants[k / 4 * 64 + column * 4 + k % 4] = uint8_t(values[k] ^ 0x80);
        } else {  // the file's byte k holds k below and k + 16 above, as the tile does
            for (int k = 0; k < 16; ++k) quants[k / 4 * 64 + column * 4 + k % 4] = values[k];
        }
    }
}

}  // namespace headrace

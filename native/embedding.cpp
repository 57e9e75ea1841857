#include "embedding.h"

#include <cstring>
#include <stdexcept>

#include "half.h"

namespace headrace {

namespace {

uint16_t bits_at(const uint8_t* p) {
    uint16_t bits;
    std::memcpy(&bits, p, 2);
    return bits;
}

// What the integers of one part of a block are multiples of, in its first half and in its second, and what is added to them.
struct Scales {
    float first, second, minimum;
};

template <Format kFormat>
Scales scales_of(const uint8_t* block, int part) {
    const auto half = [block](int at) { return half_to_float(bits_at(block + at)); };
    if constexpr (kFormat == Format::Q4_K || kFormat == Format::Q5_K) {
        const SixBitMultipliers multipliers = six_bit_multipliers(block + 4, part);
        const float scale = half(0) * float(multipliers.scale);
        return {scale, scale, -(half(2) * float(multipliers.minimum))};
    } else if constexpr (kFormat == Format::Q6_K) {
        const auto scale = [&](int at) { return half(208) * float(int8_t(block[192 + part * 2 + at])); };
        return {scale(0), scale(1), 0.0f};
    } else if constexpr (kFormat == Format::Q4_1 || kFormat == Format::Q5_1) {
        return {half(0), half(0), half(2)};
    } else {
        return {half(0), half(0), 0.0f};
    }
}

template <Format kFormat>
int signed_integer(uint8_t stored) {
    if constexpr (kFormat == Format::Q4_0) return int(stored) - 8;
    else if constexpr (kFormat == Format::Q5_0) return int(stored) - 16;
    else if constexpr (kFormat == Format::Q6_K) return int(stored) - 32;
    else if constexpr (kFormat == Format::Q8_0) return int8_t(stored);
    else return stored;
}

template <Format kFormat, bool kHasMinima>
void read_blocks(const Storage& storage, const uint8_t* row, int n, float* out) {
    const int num_parts = storage.block_numbers / kBlock;
    uint8_t integers[kBlock];
    for (int b = 0; b < n / kBlock; ++b, out += kBlock) {
        const uint8_t* block = row + size_t(b / num_parts) * size_t(storage.block_bytes);
        read_integers(kFormat, block, b % num_parts, integers);
        const Scales scales = scales_of<kFormat>(block, b % num_parts);
        for (int i = 0; i < kBlock; ++i) {
            out[i] = float(signed_integer<kFormat>(integers[i])) * (i < kBlock / 2 ? scales.first : scales.second);
            if (kHasMinima) out[i] += scales.minimum;  // without any, it would make zeros of negative zeros
        }
    }
}

void read_f16(const Storage&, const uint8_t* row, int n, float* out) {
    for (int i = 0; i < n; ++i) out[i] = half_to_float(bits_at(row + 2 * i));
}

void read_bf16(const Storage&, const uint8_t* row, int n, float* out) {
    for (int i = 0; i < n; ++i) {
        const uint32_t bits = uint32_t(bits_at(row + 2 * i)) << 16;
        std::memcpy(out + i, &bits, 4);
    }
}

void read_f32(const Storage&, const uint8_t* row, int n, float* out) { std::memcpy(out, row, size_t(n) * 4); }

}  // namespace

EmbeddingTable::Reader EmbeddingTable::reader_of(Format format) {
    switch (format) {
        case Format::Q4_0: return read_blocks<Format::Q4_0, false>;
        case Format::Q4_1: return read_blocks<Format::Q4_1, true>;
        case Format::Q5_0: return read_blocks<Format::Q5_0, false>;
        case Format::Q5_1: return read_blocks<Format::Q5_1, true>;
        case Format::Q8_0: return read_blocks<Format::Q8_0, false>;
        case Format::Q4_K: return read_blocks<Format::Q4_K, true>;
        case Format::Q5_K: return read_blocks<Format::Q5_K, true>;
        case Format::Q6_K: return read_blocks<Format::Q6_K, false>;
        case Format::F16: return read_f16;
        case Format::BF16: return read_bf16;
        case Format::F32: return read_f32;
        default: return nullptr;
    }
}

bool EmbeddingTable::knows(const std::string& storage) {
    const Storage* found = find_storage(storage);
    return found && reader_of(found->format);
}

EmbeddingTable::EmbeddingTable(const std::string& storage, const uint8_t* data, size_t num_bytes, int num_columns)
    : data(data), num_columns(num_columns) {
    if (!knows(storage)) throw std::invalid_argument("rows of " + storage + " are not read here");
    storage_ = find_storage(storage);
    reader_ = reader_of(storage_->format);
    row_bytes = storage_->row_bytes(num_columns);
    if (!row_bytes || num_bytes % row_bytes) throw std::invalid_argument("these bytes are no whole rows");
    num_rows = int64_t(num_bytes / row_bytes);
}

void EmbeddingTable::read_row(int64_t id, float multiplier, float* out) const {
    reader_(*storage_, data + size_t(id) * row_bytes, num_columns, out);
    if (multiplier != 1.0f)
        for (int i = 0; i < num_columns; ++i) out[i] *= multiplier;
}

}  // namespace headrace

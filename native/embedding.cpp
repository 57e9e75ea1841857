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

void read_q4_0(const uint8_t* row, int n, float* out) {
    for (int b = 0; b < n / 32; ++b, row += 18, out += 32) {
        const float d = half_to_float(bits_at(row));
        for (int i = 0; i < 16; ++i) {
            out[i] = float(int(row[2 + i] & 15) - 8) * d;
            out[i + 16] = float(int(row[2 + i] >> 4) - 8) * d;
        }
    }
}

void read_q4_1(const uint8_t* row, int n, float* out) {
    for (int b = 0; b < n / 32; ++b, row += 20, out += 32) {
        const float d = half_to_float(bits_at(row)), m = half_to_float(bits_at(row + 2));
        for (int i = 0; i < 16; ++i) {
            out[i] = float(row[4 + i] & 15) * d + m;
            out[i + 16] = float(row[4 + i] >> 4) * d + m;
        }
    }
}

void read_q8_0(const uint8_t* row, int n, float* out) {
    for (int b = 0; b < n / 32; ++b, row += 34, out += 32) {
        const float d = half_to_float(bits_at(row));
        for (int i = 0; i < 32; ++i) out[i] = float(int8_t(row[2 + i])) * d;
    }
}

void read_f16(const uint8_t* row, int n, float* out) {
    for (int i = 0; i < n; ++i) out[i] = half_to_float(bits_at(row + 2 * i));
}

void read_bf16(const uint8_t* row, int n, float* out) {
    for (int i = 0; i < n; ++i) {
        const uint32_t bits = uint32_t(bits_at(row + 2 * i)) << 16;
        std::memcpy(out + i, &bits, 4);
    }
}

void read_f32(const uint8_t* row, int n, float* out) { std::memcpy(out, row, size_t(n) * 4); }

}  // namespace

EmbeddingTable::Reader EmbeddingTable::reader_of(const std::string& storage, int num_columns, size_t& row_bytes) {
    const size_t n = size_t(num_columns);
    const auto blocks = [&](size_t num_bytes, Reader reader) {
        row_bytes = n % 32 ? 0 : n / 32 * num_bytes;
        return reader;
    };
    const auto plain = [&](size_t num_bytes, Reader reader) {
        row_bytes = n * num_bytes;
        return reader;
    };
    if (storage == "Q4_0") return blocks(18, read_q4_0);
    if (storage == "Q4_1") return blocks(20, read_q4_1);
    if (storage == "Q8_0") return blocks(34, read_q8_0);
    if (storage == "F16") return plain(2, read_f16);
    if (storage == "BF16") return plain(2, read_bf16);
    if (storage == "F32") return plain(4, read_f32);
    return nullptr;
}

bool EmbeddingTable::knows(const std::string& storage) {
    size_t row_bytes;
    return reader_of(storage, 32, row_bytes) != nullptr;
}

EmbeddingTable::EmbeddingTable(const std::string& storage, const uint8_t* data, size_t num_bytes, int num_columns)
    : data(data), row_bytes(0), num_columns(num_columns), reader_(reader_of(storage, num_columns, row_bytes)) {
    if (!reader_) throw std::invalid_argument("rows of " + storage + " are not read here");
    if (!row_bytes || num_bytes % row_bytes) throw std::invalid_argument("these bytes are no whole rows");
    num_rows = int64_t(num_bytes / row_bytes);
}

void EmbeddingTable::read_row(int64_t id, float multiplier, float* out) const {
    reader_(data + size_t(id) * row_bytes, num_columns, out);
    if (multiplier != 1.0f)
        for (int i = 0; i < num_columns; ++i) out[i] *= multiplier;
}

}  // namespace headrace

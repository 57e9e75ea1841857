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

// 32 nibbles, and the fifth bit of each: both in reading order once the nibbles' two planes are laid one behind the other.
int five_bits(const uint8_t* nibbles, uint32_t fifths, int i) {
    const int low = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
    return low | int(fifths >> i & 1) << 4;
}

uint32_t word_at(const uint8_t* p) {
    uint32_t word;
    std::memcpy(&word, p, 4);
    return word;
}

void read_q5_0(const uint8_t* row, int n, float* out) {
    for (int b = 0; b < n / 32; ++b, row += 22, out += 32) {
        const float d = half_to_float(bits_at(row));
        for (int i = 0; i < 32; ++i) out[i] = float(five_bits(row + 6, word_at(row + 2), i) - 16) * d;
    }
}

void read_q5_1(const uint8_t* row, int n, float* out) {
    for (int b = 0; b < n / 32; ++b, row += 24, out += 32) {
        const float d = half_to_float(bits_at(row)), m = half_to_float(bits_at(row + 2));
        for (int i = 0; i < 32; ++i) out[i] = float(five_bits(row + 8, word_at(row + 4), i)) * d + m;
    }
}

// Eight six-bit scales and minima in 12 bytes: the first four of each lie below the upper pairs of the last four, whose low
// nibbles share the last four bytes.
int six_bit_scale(const uint8_t* packed, int i) {
    return i < 4 ? packed[i] & 63 : (packed[i + 4] & 15) | (packed[i - 4] >> 2 & 48);
}
int six_bit_minimum(const uint8_t* packed, int i) {
    return i < 4 ? packed[i + 4] & 63 : packed[i + 4] >> 4 | (packed[i] >> 2 & 48);
}

// Super-blocks of 256: d, dmin, 12 bytes of scales and minima, with kFive 32 bytes of fifth bits in eight planes, nibbles.
template <bool kFive>
void read_q45_k(const uint8_t* row, int n, float* out) {
    for (int b = 0; b < n / 256; ++b, row += kFive ? 176 : 144) {
        const float d = half_to_float(bits_at(row)), dmin = half_to_float(bits_at(row + 2));
        const uint8_t* fifths = row + 16;
        const uint8_t* nibbles = row + (kFive ? 48 : 16);
        for (int part = 0; part < 8; ++part, out += 32) {
            const float scale = d * float(six_bit_scale(row + 4, part)), minimum = dmin * float(six_bit_minimum(row + 4, part));
            for (int i = 0; i < 32; ++i) {
                int q = nibbles[part / 2 * 32 + i] >> part % 2 * 4 & 15;
                if (kFive) q |= (fifths[i] >> part & 1) << 4;
                out[i] = float(q) * scale - minimum;
            }
        }
    }
}

// Super-blocks of 256: nibbles, upper pairs, 16 scales of a byte, d.
void read_q6_k(const uint8_t* row, int n, float* out) {
    for (int b = 0; b < n / 256; ++b, row += 210) {
        const float d = half_to_float(bits_at(row + 208));
        for (int part = 0; part < 8; ++part, out += 32) {
            const int half = part / 4, plane = part % 4;
            const uint8_t* nibbles = row + half * 64 + plane % 2 * 32;
            const uint8_t* pairs = row + 128 + half * 32;
            for (int i = 0; i < 32; ++i) {
                const int q = (nibbles[i] >> plane / 2 * 4 & 15) | (pairs[i] >> plane * 2 & 3) << 4;
                out[i] = float(q - 32) * (d * float(int8_t(row[192 + part * 2 + i / 16])));
            }
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
    const auto blocks = [&](size_t num_bytes, Reader reader, size_t num_numbers = 32) {
        row_bytes = n % num_numbers ? 0 : n / num_numbers * num_bytes;
        return reader;
    };
    const auto plain = [&](size_t num_bytes, Reader reader) {
        row_bytes = n * num_bytes;
        return reader;
    };
    if (storage == "Q4_0") return blocks(18, read_q4_0);
    if (storage == "Q4_1") return blocks(20, read_q4_1);
    if (storage == "Q5_0") return blocks(22, read_q5_0);
    if (storage == "Q5_1") return blocks(24, read_q5_1);
    if (storage == "Q8_0") return blocks(34, read_q8_0);
    if (storage == "Q4_K") return blocks(144, read_q45_k<false>, 256);
    if (storage == "Q5_K") return blocks(176, read_q45_k<true>, 256);
    if (storage == "Q6_K") return blocks(210, read_q6_k, 256);
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

// BLAKE2b (RFC 7693) with a digest of 16 bytes and no key: what names blocks of tokens.
//
// Knows bytes. Little-endian machines only, as all that the kernels are compiled for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headrace {

class Blake2b {
  public:
    static constexpr size_t DIGEST_BYTES = 16;

    Blake2b() {
        std::memcpy(state_, IV, sizeof state_);
        state_[0] ^= 0x01010000 ^ DIGEST_BYTES;
    }

    void update(const void* data, size_t size) {
        const auto* bytes = static_cast<const uint8_t*>(data);
        while (size > 0) {
            if (filled_ == BLOCK) compress(false);
            const size_t taken = size < BLOCK - filled_ ? size : BLOCK - filled_;
            std::memcpy(block_ + filled_, bytes, taken);
            filled_ += taken;
            bytes += taken;
            size -= taken;
        }
    }

    // More will come for certain: what is a whole block already need not wait for it, and copies share the work.
    void expect_more() {
        if (filled_ == BLOCK) compress(false);
    }

    // Ends it.
    void digest(uint8_t* out) {
        std::memset(block_ + filled_, 0, BLOCK - filled_);
        compress(true);
        std::memcpy(out, state_, DIGEST_BYTES);
    }

  private:
    static constexpr size_t BLOCK = 128;
    static constexpr uint64_t IV[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
                                       0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
    static constexpr uint8_t SIGMA[12][16] = {
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
        {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
        {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
        {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
        {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3}};

    static uint64_t turned(uint64_t x, int bits) { return (x >> bits) | (x << (64 - bits)); }

    static void mix(uint64_t& a, uint64_t& b, uint64_t& c, uint64_t& d, uint64_t x, uint64_t y) {
        a += b + x;
        d = turned(d ^ a, 32);
        c += d;
        b = turned(b ^ c, 24);
        a += b + y;
        d = turned(d ^ a, 16);
        c += d;
        b = turned(b ^ c, 63);
    }

    void compress(bool is_last) {
        num_bytes_ += filled_;
        filled_ = 0;
        uint64_t m[16], v[16];
        std::memcpy(m, block_, sizeof m);
        std::memcpy(v, state_, sizeof state_);
        std::memcpy(v + 8, IV, sizeof IV);
        v[12] ^= num_bytes_;
        if (is_last) v[14] = ~v[14];
#pragma GCC unroll 12
        for (const auto& s : SIGMA) {
            mix(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]);
            mix(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]);
            mix(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]);
            mix(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]);
            mix(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]);
            mix(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]);
            mix(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]);
            mix(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]);
        }
        for (int i = 0; i < 8; ++i) state_[i] ^= v[i] ^ v[i + 8];
    }

    uint64_t state_[8];
    uint64_t num_bytes_ = 0;
    size_t filled_ = 0;
    uint8_t block_[BLOCK];
};

}  // namespace headrace

// What the kernels are given, whatever instruction set they were compiled for.
//
// Knows layouts. Does not know threads, Python or how weights were stored in a file.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

// How a tile of sixteen output columns is held: units of blocks of 32 along K, one behind another. `packing.h` makes them.
//   Q4_0  two blocks: 2 x 16 half scales, then 2 x nibbles
//   Q4_1  a block: 16 half scales, 16 half minima, nibbles
//   Q5_0  two blocks: 2 x 16 half scales, then 2 x (nibbles, fifth bits)
//   Q5_1  a block: 16 half scales, 16 half minima, nibbles, fifth bits
//   Q8_0  two blocks: 2 x 16 half scales, then 2 x bytes
//   Q4_K  eight blocks: 16 half scales, 16 half minima, 8 x 16 bytes that multiply the scales, 8 x 16 that multiply the
//         minima (six bits each in the file), then 8 x nibbles
//   Q5_K  as Q4_K, then 8 x (nibbles, fifth bits)
//   Q6_K  eight blocks: 16 half scales, 32 bytes unused, 8 x 2 x 16 signed bytes that multiply the scales (of either half of
//         a block), then 8 x (nibbles, two of pairs)
//   I4    a block: nibbles; behind all blocks, for each group of blocks, 16 scales in two or four bytes
//   I4_Z  as I4, and behind the scales 16 bytes of zero points for each group
//   I8    a block: bytes; behind all blocks 16 float32 scales, of whole columns
//   F16, F32  [K][16]
//   BF16  [K / 2][16][2], K padded with zeros to whole pairs of blocks
// Of a block's 512 numbers the byte (j * 16 + column) * 4 + i holds k = 4 j + i: all eight bits of it, biased by 128 (bytes,
// 512 of them); its low four bits (nibbles, 256 bytes: j + 4 shares a byte with j and lies above it); bit j of 64 bytes
// is its fifth bit; bits 2 (j % 4) of 64 bytes, another 64 from j = 4 on, are its fifth and sixth (pairs).
enum class Format : uint8_t { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, I4, I4_Z, I8, F16, BF16, F32 };

enum class ScaleType : uint8_t { F16, BF16, F32 };

// Of a format of units: how many blocks one holds, and in how many bytes their scales, and the integers of each.
struct UnitShape {
    int num_blocks, scale_bytes, block_bytes;

    constexpr int num_bytes() const { return scale_bytes + num_blocks * block_bytes; }
};
constexpr UnitShape unit_shape(Format format) {
    switch (format) {
        case Format::Q4_0: return {2, 64, 256};
        case Format::Q4_1: return {1, 64, 256};
        case Format::Q5_0: return {2, 64, 320};
        case Format::Q5_1: return {1, 64, 320};
        case Format::Q8_0: return {2, 64, 512};
        case Format::Q4_K: return {8, 320, 256};
        case Format::Q5_K: return {8, 320, 320};
        case Format::Q6_K: return {8, 320, 384};
        default: return {0, 0, 0};  // not held in units
    }
}

constexpr int kTileColumns = 16;
constexpr int kBlock = 32;

struct Tile {
    const uint8_t* data;
    int32_t column;       // the first output column
    int16_t num_columns;  // 1 to 16
    Format format;
    uint8_t group_blocks;  // I4: blocks of a group, 1, 2 or 4
    ScaleType scale_type;  // I4: of a group
};

struct LinearView {
    const Tile* tiles;
    int32_t num_tiles;
    int32_t num_in;
    int32_t num_blocks;  // of the padded K
    const float* bias;   // or null
};

// One projection's input rows, prepared once and read by every tile. Rows are cut into groups of at most
// Kernels::max_group rows; a group that starts at row g and has R rows holds, for block b and its row r:
//   int8    (g * num_blocks + b * R + r) * 32: 32 bytes, of which `scales` says what they are multiples of;
//           scales, negative_sums, first_sums (minus the sum of the first sixteen), scaled_sums at g * num_blocks + b * R + r
//   whole_int8  (g * num_blocks + (p * R + r) * 2) * 32: 64 bytes, of a pair of blocks p; multiples of one scale for the whole
//           row: whole_scales, whole_sums (negative) at g + r
//   bf16    from g * num_blocks * 32 on (j * R + r) * 2: two neighbours along K; with AMX (b * R + r) * 32: a block
//   floats  g * num_in_padded + k * R + r
struct Activations {
    int8_t* int8;
    float* scales;
    int32_t* negative_sums;
    int32_t* first_sums;
    float* scaled_sums;
    int8_t* whole_int8;
    float* whole_scales;
    int32_t* whole_sums;
    float* floats;
    uint16_t* bf16;
    bool meet_minima;  // whether int8 meets weights that have minima; with AMX groups of nine rows and more have no sums unless they do
};

struct RowGroup {
    int32_t first, num_rows;
};

struct Output {
    float* out;
    size_t stride;
    const float* add;  // or null: added last
    size_t add_stride;
    float multiplier;
    float softcap;  // 0: none
};

enum class Gate : uint8_t { SILU, GELU, GELU_TANH };

// How keys and values are held; `kv_pages.h` has the layout of each.
enum class KVFormat : uint8_t { F32, BF16, INT8, FP8 };

constexpr int kPageTokens = 16;
constexpr int kMostHeadDim = 1024;

struct AttentionView {
    int32_t num_heads, num_kv_heads, head_dim;
    int32_t key_dim, value_dim;  // head_dim, padded to fours and to whole vectors
    int32_t block_size, num_blocks;
    float scale, softcap;  // softcap 0: none
    int32_t window;        // 0: none
    KVFormat format;
    // Per KV head, block after block: pages of 16 tokens.
    uint8_t* keys;
    uint8_t* values;
    // Bytes of one page and of all of one head.
    size_t key_page() const { return page(key_dim); }
    size_t value_page() const { return page(value_dim); }
    size_t key_head() const { return key_page() * size_t(block_size / kPageTokens) * size_t(num_blocks); }
    size_t value_head() const { return value_page() * size_t(block_size / kPageTokens) * size_t(num_blocks); }
    size_t num_bytes() const { return (key_head() + value_head()) * size_t(num_kv_heads); }
    bool has_scales() const { return format == KVFormat::INT8 || format == KVFormat::FP8; }

  private:
    size_t page(int32_t dim) const {
        const size_t size = format == KVFormat::F32 ? 4 : format == KVFormat::BF16 ? 2 : 1;
        return size_t(dim) * kPageTokens * size + (has_scales() ? kPageTokens * 4 : 0);
    }
};

struct HeadNorm {
    const float* query;  // null: no norm
    const float* key;
    float eps;
};

// Rows of the step that attend together to the same blocks: [first_row, first_row + num_rows), one sequence's, from `position`
// on. Or, where all of them see a part of the context whole, those that `rows` lists, of several sequences; `position` is then
// that part's last.
struct AttentionTile {
    int32_t first_row, num_rows, position;
    const int32_t* block_ids;
    const int32_t* rows = nullptr;

    size_t row(int i) const { return size_t(rows ? rows[i] : first_row + i); }
};

// A context is summed in parts of so many tokens, which begin at its multiples, and the parts are joined in order: always, so
// that the bits are the same whether the parts of one context are shared out among threads or not.
constexpr int kPartTokens = 512;
inline int first_part(const AttentionView& a, const AttentionTile& tile) {
    const int first_seen = tile.position - a.window + 1;
    return a.window && first_seen > 0 ? first_seen / kPartTokens : 0;
}
inline int end_part(const AttentionTile& tile) { return (tile.position + tile.num_rows - 1) / kPartTokens + 1; }

struct Kernels {
    const char* name;
    int max_group;
    int rows_apart;  // with so many for each, threads share the rows of a product; with fewer its tiles, to unpack each once
    bool has_bf16_products;

    void (*prepare_int8)(const float* x, int num_in, int num_blocks, RowGroup group, int row, Activations to);
    void (*prepare_whole_int8)(const float* x, int num_in, int num_blocks, RowGroup group, int row, Activations to);
    void (*prepare_floats)(const float* x, int num_in, RowGroup group, int row, int padded, Activations to);
    void (*prepare_bf16)(const float* x, int num_in, int num_blocks, RowGroup group, int row, Activations to);
    void (*linear)(const LinearView&, const Activations&, bool bf16, const RowGroup*, int, int first_tile, int end_tile,
                   const Output&);
    void (*gated)(const LinearView& gate, const LinearView& up, Gate, const Activations&, bool bf16, const RowGroup*, int,
                  int first_tile, int end_tile, const Output&);
    // Of a step's only row: each of the tiles together with the one that lies `apart` behind it, if that is below `end_of_all`.
    // Null where reading from two places at once gains nothing.
    void (*linear_in_pairs)(const LinearView&, const Activations&, bool bf16, int first_tile, int end_tile, int apart,
                            int end_of_all, const Output&);
    void (*rms_norm)(const float* x, const float* weight, float eps, int size, float* out);
    void (*add_scaled)(const float* x, const float* y, float scale, int size, float* out);
    void (*rope_and_cache)(float* qkv, const AttentionView&, const HeadNorm&, const float* rotation, int rotary_dim,
                           int64_t slot, float* q);
    void (*expect_slot)(const AttentionView&, int64_t slot);  // fetches what writing there will touch
    // Floats that attention needs for itself, and that one part's sums take, for tiles of kAttentionRows tokens.
    size_t (*attention_scratch)(const AttentionView&);
    size_t (*attention_sums)(const AttentionView&);
    // The sums of one part: so many floats for each of the tile's rows, in order.
    void (*attention_part)(const AttentionView&, const AttentionTile&, int kv_head, int part, const float* q, float* sums,
                           float* scratch);
    // Of one sequence's rows. known: for each part from the first on, its sums if they are computed already, else null; or null.
    void (*attention)(const AttentionView&, const AttentionTile&, int kv_head, const float* q, const float* const* known,
                      float* out, float* scratch);

    // Sampling: see sampling_rows.h.
    int64_t (*greatest)(const float* row, int64_t size);
    int64_t (*greatest_allowed)(const float* row, int64_t size, const int32_t* allowed);
    void (*restrict_to)(float* row, int64_t size, const int32_t* allowed);
    double (*weigh)(const float* row, int64_t size, float greatest, float temperature, float* weights, double* stretches);
};

constexpr int kStretch = 512;  // tokens of a row of logits whose weights are summed together

constexpr int kAttentionRows = 16;  // tokens of one sequence that attend together

// The best that this processor runs, or the one of that name; null if it has none such.
const Kernels* find_kernels(const char* name);

// Whether the processor has AMX with products of int8 and BF16, and the system grants it to this process; asked for once.
bool has_tiles();

}  // namespace headrace

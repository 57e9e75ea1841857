// The Python extension: tensors, weights, caches and the operations on them, shared out among threads.
//
// Knows which thread computes what. Does not know models; `headrace/engine/ops/protocol.py` says what each operation means.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"
#include "kv_cache.h"
#include "memory.h"
#include "thread_pool.h"

namespace nb = nanobind;

namespace headrace {
namespace {

// [rows, columns] of float32; rows lie `stride` apart.
class Tensor {
  public:
    Tensor(std::shared_ptr<BlockCache> cache, int rows, int columns, bool is_dense = false)
        : rows(rows), columns(columns), cache_(std::move(cache)) {
        stride = is_dense ? columns : (columns + 15) / 16 * 16;
        if (!is_dense && stride % 1024 == 0) stride += 16;  // rows a multiple of 4 KB apart would share few cache sets
        data = cache_->take(size_t(rows) * size_t(stride), size_class_);
    }
    ~Tensor() { cache_->give_back(data, size_class_); }
    Tensor(const Tensor&) = delete;
    Tensor& operator=(const Tensor&) = delete;

    float* row(int i) const { return data + size_t(i) * size_t(stride); }

    int rows, columns;
    int64_t stride;
    float* data;

  private:
    std::shared_ptr<BlockCache> cache_;
    int size_class_ = 0;
};

int padded_blocks(int num_in) { return (num_in + 2 * kBlock - 1) / (2 * kBlock) * 2; }

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

// One row's share of a tile, from how the file has it.
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

Format format_of(const std::string& storage) {
    if (storage == "Q4_0") return Format::Q4_0;
    if (storage == "Q4_1") return Format::Q4_1;
    if (storage == "Q8_0") return Format::Q8_0;
    if (storage == "BF16") return Format::BF16;
    if (storage == "F32") return Format::F32;
    throw std::invalid_argument("no kernel for " + storage);
}

bool is_quantized(Format format) { return format != Format::BF16 && format != Format::F32; }

class Linear {
  public:
    int num_in = 0, num_out = 0;
    std::vector<Tile> tiles;
    std::vector<float> bias;
    bool has_quantized = false, has_bf16 = false, has_floats = false;

    LinearView view() const {
        return {tiles.data(), int32_t(tiles.size()), num_in, padded_blocks(num_in), bias.empty() ? nullptr : bias.data()};
    }
};

typedef nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> Bytes;
typedef nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu> Floats;
typedef nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> Rows;

// Where the step's tokens stand.
class Placement {
  public:
    std::vector<int32_t> positions;
    std::vector<int64_t> slots;
    std::vector<int32_t> block_ids;  // of all sequences
    std::vector<AttentionTile> tiles;
};

struct Gated {
    const Linear *gate, *up;
};

class Engine {
  public:
    Engine(int num_threads, const std::string& isa) : pool_(std::max(1, num_threads)), regions_(size_t(pool_.size())) {
        kernels_ = find_kernels(isa.c_str());
        if (!kernels_) throw std::invalid_argument("this processor has no instruction set called " + isa);
        cache_ = std::make_shared<BlockCache>();
    }

    std::string isa() const { return kernels_->name; }
    int num_threads() const { return pool_.size(); }
    void wake() { pool_.wake(); }
    void sleep() { pool_.sleep(); }

    // parts: (storage, the file's bytes, order of its rows or empty for their own).
    std::unique_ptr<Linear> load_linear(const std::vector<std::string>& storages, const std::vector<Bytes>& parts,
                                        const std::vector<Rows>& orders, int num_in, const Floats& bias) {
        auto linear = std::make_unique<Linear>();
        linear->num_in = num_in;
        struct Source {
            Format format;
            const uint8_t* row;
        };
        std::vector<Source> rows;
        for (size_t p = 0; p < parts.size(); ++p) {
            const Format format = format_of(storages[p]);
            (is_quantized(format) ? linear->has_quantized : format == Format::BF16 ? linear->has_bf16 : linear->has_floats) = true;
            const size_t n = size_t(num_in);
            const size_t row_bytes = format == Format::Q4_0   ? n / 32 * 18
                                     : format == Format::Q4_1 ? n / 32 * 20
                                     : format == Format::Q8_0 ? n / 32 * 34
                                     : format == Format::BF16 ? n * 2
                                                              : n * 4;
            if (row_bytes == 0 || parts[p].size() % row_bytes) throw std::invalid_argument("these bytes are no whole rows");
            const size_t num_rows = parts[p].size() / row_bytes;
            if (orders[p].size() && orders[p].size() != num_rows) throw std::invalid_argument("an order names every row once");
            for (size_t r = 0; r < num_rows; ++r) {
                const size_t from = orders[p].size() ? size_t(orders[p].data()[r]) : r;
                if (from >= num_rows) throw std::invalid_argument("an order names a row that is not there");
                rows.push_back({format, parts[p].data() + from * row_bytes});
            }
        }
        linear->num_out = int(rows.size());
        if (bias.size()) {
            if (bias.size() != rows.size()) throw std::invalid_argument("a bias has a number for each output");
            linear->bias.assign(bias.data(), bias.data() + bias.size());
        }
        for (size_t at = 0; at < rows.size();) {
            size_t n = 1;
            while (n < kTileColumns && at + n < rows.size() && rows[at + n].format == rows[at].format) ++n;
            linear->tiles.push_back({nullptr, int32_t(at), int16_t(n), rows[at].format});
            at += n;
        }
        // Each thread's share of few rows lies in a region of its own, in the order of use.
        const int num_tiles = int(linear->tiles.size());
        for (int thread = 0; thread < pool_.size(); ++thread) {
            for (int t = pool_.share(num_tiles, thread); t < pool_.share(num_tiles, thread + 1); ++t)
                linear->tiles[size_t(t)].data = regions_[size_t(thread)].take(tile_bytes(linear->tiles[size_t(t)].format, num_in));
        }
        nb::gil_scoped_release release;
        pool_.run(num_tiles, [&](int, int t) {
            const Tile& tile = linear->tiles[size_t(t)];
            uint8_t* data = const_cast<uint8_t*>(tile.data);
            std::memset(data, 0, tile_bytes(tile.format, num_in));
            for (int c = 0; c < tile.num_columns; ++c)
                pack_row(tile.format, rows[size_t(tile.column + c)].row, num_in, c, data);
        });
        return linear;
    }

    // format: float32, bfloat16, int8 or fp8_e4m3. bf16: products are of BF16 where both sides are and the processor has them.
    std::unique_ptr<Cache> allocate_kv(int num_heads, int num_kv_heads, int head_dim, float scale, float softcap, int window,
                                       int num_blocks, int block_size, const std::string& format, bool bf16) {
        return std::make_unique<Cache>(AttentionView{num_heads, num_kv_heads, head_dim, (head_dim + 3) / 4 * 4,
                                                     (head_dim + 15) / 16 * 16, block_size, num_blocks, scale, softcap,
                                                     window, kv_format_of(format), bf16, nullptr, nullptr});
    }

    // spans: sequences of (num_computed_tokens, num_tokens, block_ids).
    std::unique_ptr<Placement> place(const std::vector<std::pair<int, int>>& spans, nb::list block_ids, int block_size) {
        auto placement = std::make_unique<Placement>();
        std::vector<size_t> starts;
        for (size_t s = 0; s < spans.size(); ++s) {
            starts.push_back(placement->block_ids.size());
            nb::object fast = nb::steal(PySequence_Fast(block_ids[s].ptr(), "block ids are a sequence"));
            if (!fast.is_valid()) throw nb::python_error();
            const int end = spans[s].first + spans[s].second, needed = (end + block_size - 1) / block_size;
            if (PySequence_Fast_GET_SIZE(fast.ptr()) < needed) throw std::invalid_argument("the blocks do not cover the tokens");
            PyObject** items = PySequence_Fast_ITEMS(fast.ptr());
            for (int b = 0; b < needed; ++b) {
                const long id = PyLong_AsLong(items[b]);
                if (id == -1 && PyErr_Occurred()) throw nb::python_error();
                placement->block_ids.push_back(int32_t(id));
            }
        }
        for (size_t s = 0; s < spans.size(); ++s) {
            const int32_t* ids = placement->block_ids.data() + starts[s];
            const int computed = spans[s].first, num_tokens = spans[s].second;
            for (int i = 0; i < num_tokens; i += kAttentionRows) {
                placement->tiles.push_back({int32_t(placement->positions.size()) + i, std::min(kAttentionRows, num_tokens - i),
                                            computed + i, ids});
            }
            for (int i = 0; i < num_tokens; ++i) {
                const int position = computed + i;
                placement->positions.push_back(position);
                placement->slots.push_back(int64_t(ids[position / block_size]) * block_size + position % block_size);
            }
        }
        // The longest first: what is left for the end is short.
        std::stable_sort(placement->tiles.begin(), placement->tiles.end(), [](const AttentionTile& a, const AttentionTile& b) {
            return int64_t(a.position + a.num_rows) * a.num_rows > int64_t(b.position + b.num_rows) * b.num_rows;
        });
        return placement;
    }

    Tensor* from_array(nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu> array) {
        Tensor* tensor = make(int(array.shape(0)), int(array.shape(1)));
        for (int r = 0; r < tensor->rows; ++r)
            std::memcpy(tensor->row(r), array.data() + size_t(r) * array.shape(1), array.shape(1) * 4);
        return tensor;
    }

    Tensor* select_rows(const Tensor& x, const std::vector<int>& rows) {
        Tensor* y = make(int(rows.size()), x.columns);
        for (size_t i = 0; i < rows.size(); ++i) std::memcpy(y->row(int(i)), x.row(rows[i]), size_t(x.columns) * 4);
        return y;
    }

    Tensor* rms_norm(const Tensor& x, const Floats& weight, float eps) {
        if (int(weight.size()) != x.columns) throw std::invalid_argument("the norm's weight has another size");
        Tensor* y = make(x.rows, x.columns);
        const float* w = weight.data();
        for_rows(x.rows, [&](int r) { kernels_->rms_norm(x.row(r), w, eps, x.columns, y->row(r)); });
        return y;
    }

    Tensor* add(const Tensor& x, const Tensor& y, float scale) {
        if (x.rows != y.rows || x.columns != y.columns) throw std::invalid_argument("sums are of tensors of one shape");
        Tensor* z = make(x.rows, x.columns);
        for_rows(x.rows, [&](int r) { kernels_->add_scaled(x.row(r), y.row(r), scale, x.columns, z->row(r)); });
        return z;
    }

    Tensor* linear(const Tensor& x, const Linear& weight, const Tensor* add_to, bool bf16) {
        check_input(x, weight);
        if (add_to && (add_to->rows != x.rows || add_to->columns != weight.num_out))
            throw std::invalid_argument("what is added to has another shape");
        Tensor* y = make(x.rows, weight.num_out);
        product(x, weight, bf16, {y->data, size_t(y->stride), add_to ? add_to->data : nullptr,
                                  add_to ? size_t(add_to->stride) : 0, 1.0f, 0.0f});
        return y;
    }

    Tensor* logits(const Tensor& x, const Linear& weight, float multiplier, float softcap, bool bf16) {
        check_input(x, weight);
        Tensor* y = new Tensor(cache_, x.rows, weight.num_out, true);
        product(x, weight, bf16, {y->data, size_t(y->stride), nullptr, 0, multiplier, softcap});
        return y;
    }

    Tensor* gated_linear(const Tensor& x, const Linear& gate, const Linear& up, int activation, bool bf16) {
        check_input(x, gate);
        check_input(x, up);
        if (gate.num_out != up.num_out || gate.tiles.size() != up.tiles.size())
            throw std::invalid_argument("gate and up have one shape");
        Tensor* y = make(x.rows, gate.num_out);
        const Output to{y->data, size_t(y->stride), nullptr, 0, 1.0f, 0.0f};
        const LinearView gate_view = gate.view(), up_view = up.view();
        nb::gil_scoped_release release;
        with_prepared(x, gate, &up, bf16, int(gate.tiles.size()),
                      [&](const Activations& prepared, const RowGroup* groups, int num_groups, int first, int end) {
                          kernels_->gated(gate_view, up_view, Gate(activation), prepared, bf16, groups, num_groups, first, end, to);
                      });
        return y;
    }

    Tensor* rope_and_cache(const Tensor& qkv, Cache& kv, const Placement& placement, const nb::object& rotation, int rotary_dim,
                           const nb::object& query_norm, const nb::object& key_norm, float eps) {
        const AttentionView& a = kv.view;
        if (qkv.columns != (a.num_heads + 2 * a.num_kv_heads) * a.head_dim || qkv.rows != int(placement.positions.size()))
            throw std::invalid_argument("queries, keys and values have another shape");
        if (rotary_dim > a.head_dim) throw std::invalid_argument("more dimensions rotate than a head has");
        HeadNorm norm{nullptr, nullptr, eps};
        Floats q_weight, k_weight, table;
        if (!query_norm.is_none()) {
            q_weight = nb::cast<Floats>(query_norm);
            k_weight = nb::cast<Floats>(key_norm);
            norm.query = q_weight.data();
            norm.key = k_weight.data();
        }
        const float* angles = nullptr;
        if (!rotation.is_none()) {
            table = nb::cast<Floats>(rotation);
            angles = table.data();
            for (int position : placement.positions)
                if (size_t(position + 1) * size_t(rotary_dim) > table.size()) throw std::invalid_argument("a position beyond the table");
        }
        const int64_t num_slots = int64_t(a.num_blocks) * a.block_size;
        for (int64_t slot : placement.slots)
            if (slot < 0 || slot >= num_slots) throw std::invalid_argument("a block that the cache does not have");
        Tensor* q = make(qkv.rows, a.num_heads * a.head_dim, true);
        for_rows(qkv.rows, [&](int r) {
            const float* at = angles ? angles + size_t(placement.positions[size_t(r)]) * size_t(rotary_dim) : nullptr;
            kernels_->rope_and_cache(qkv.row(r), a, norm, at, rotary_dim, placement.slots[size_t(r)], q->row(r));
        });
        return q;
    }

    Tensor* attention(const Tensor& q, const Cache& kv, const Placement& placement) {
        const AttentionView& a = kv.view;
        if (q.columns != a.num_heads * a.head_dim || q.rows != int(placement.positions.size()))
            throw std::invalid_argument("queries have another shape");
        Tensor* out = make(q.rows, q.columns, true);
        const int num_heads = a.num_kv_heads, num_pairs = int(placement.tiles.size()) * num_heads;
        const size_t scratch_floats = (kernels_->attention_scratch(a) + 15) / 16 * 16;
        float* scratch = reserve(attention_scratch_, attention_scratch_size_, scratch_floats * size_t(pool_.size()));
        nb::gil_scoped_release release;
        if (num_pairs >= kPairsPerThread * pool_.size()) {
            pool_.run(num_pairs, [&](int thread, int pair) {
                kernels_->attention(a, placement.tiles[size_t(pair / num_heads)], pair % num_heads, q.data, out->data,
                                    scratch + scratch_floats * size_t(thread));
            });
            return out;
        }
        // Fewer pairs of rows and heads than would keep all threads busy: they share the parts of the contexts.
        parts_.clear();
        for (int pair = 0; pair < num_pairs; ++pair) {
            const AttentionTile& tile = placement.tiles[size_t(pair / num_heads)];
            for (int part = first_part(a, tile); part < end_part(tile); ++part) parts_.push_back({pair, part});
        }
        const size_t sums_floats = kernels_->attention_sums(a);
        float* sums = reserve(attention_sums_, attention_sums_size_, sums_floats * parts_.size());
        pool_.run(int(parts_.size()), [&](int thread, int item) {
            const Part& at = parts_[size_t(item)];
            kernels_->attention_part(a, placement.tiles[size_t(at.pair / num_heads)], at.pair % num_heads, at.part, q.data,
                                     sums + sums_floats * size_t(item), scratch + scratch_floats * size_t(thread));
        });
        for (size_t item = 0; item < parts_.size();) {
            const AttentionTile& tile = placement.tiles[size_t(parts_[item].pair / num_heads)];
            kernels_->join_parts(a, tile, parts_[item].pair % num_heads, sums + sums_floats * item, out->data);
            item += size_t(end_part(tile) - first_part(a, tile));
        }
        return out;
    }

    void copy_block(Cache& kv, int64_t from, int64_t to) { kv.copy_block(from, to); }
    void make_finite(Cache& kv, int64_t block) { kv.make_finite(block); }

  private:
    static constexpr int kRowsPerItem = 4;
    static constexpr int kPairsPerThread = 6;  // of tiles and KV heads: more of them are shared out evenly enough as they are
    static constexpr int kItemsPerThread = 8;  // so little work is lost to a thread that is kept from its own

    Tensor* make(int rows, int columns, bool is_dense = false) { return new Tensor(cache_, rows, columns, is_dense); }

    static void check_input(const Tensor& x, const Linear& weight) {
        if (x.columns != weight.num_in) throw std::invalid_argument("the projection takes rows of another size");
    }

    template <class Work>
    void for_rows(int num_rows, Work work) {
        constexpr int kFewRows = 8;  // fewer are done sooner than they are shared out
        if (num_rows < kFewRows || pool_.size() == 1) {
            for (int r = 0; r < num_rows; ++r) work(r);
            return;
        }
        nb::gil_scoped_release release;
        pool_.run((num_rows + kRowsPerItem - 1) / kRowsPerItem, [&](int, int item) {
            for (int r = item * kRowsPerItem; r < std::min(num_rows, (item + 1) * kRowsPerItem); ++r) work(r);
        });
    }

    static float* reserve(Owned<float>& block, size_t& size, size_t needed) {
        if (needed > size) {
            block.reset(reinterpret_cast<float*>(allocate_bytes(needed * 4)));
            size = needed;
        }
        return block.get();
    }

    void product(const Tensor& x, const Linear& weight, bool bf16, const Output& to) {
        const LinearView view = weight.view();
        nb::gil_scoped_release release;
        with_prepared(x, weight, nullptr, bf16, int(weight.tiles.size()),
                      [&](const Activations& prepared, const RowGroup* groups, int num_groups, int first, int end) {
                          kernels_->linear(view, prepared, bf16, groups, num_groups, first, end, to);
                      });
    }

    // Groups of rows: as large as the kernels take, then what is left in at most three more.
    void cut_into_groups(int num_rows) {
        static const int kSizes[] = {16, 12, 8, 6, 4, 3, 2, 1};
        groups_.clear();
        for (int first = 0; first < num_rows;) {
            const int left = std::min(num_rows - first, kernels_->max_group);
            int size = 1;
            for (int candidate : kSizes)
                if (candidate <= left) {
                    size = candidate;
                    break;
                }
            groups_.push_back({first, size});
            first += size;
        }
    }

    // Prepares the rows and calls what(prepared, groups, number of groups, first tile, end tile) on every thread.
    template <class What>
    void with_prepared(const Tensor& x, const Linear& weight, const Linear* other, bool bf16, int num_tiles, What what) {
        if (x.rows == 0) return;
        const bool int8 = weight.has_quantized || (other && other->has_quantized);
        const bool halves = weight.has_bf16 || (other && other->has_bf16);
        const bool pairs = halves && bf16 && kernels_->has_bf16_products;
        const bool floats = weight.has_floats || (other && other->has_floats) || (halves && !pairs);
        const int num_in = weight.num_in, num_blocks = padded_blocks(num_in), padded = (num_in + 1) / 2 * 2;
        cut_into_groups(x.rows);
        constexpr int kFewRows = 2;  // so few are prepared by each thread for itself, which saves a barrier
        const bool each_its_own = x.rows <= kFewRows;
        const size_t rows = size_t(x.rows), blocks = rows * size_t(num_blocks);
        const size_t int8_bytes = int8 ? blocks * (kBlock + 12) + 256 : 0;
        const size_t bytes = (int8_bytes + (pairs ? rows * size_t(padded) * 2 + 64 : 0) +
                              (floats ? rows * size_t(padded) * 4 + 64 : 0) + 63) / 64 * 64;
        uint8_t* scratch = (uint8_t*)reserve(scratch_, scratch_size_, bytes * size_t(each_its_own ? pool_.size() : 1) / 4 + 16);
        const auto laid_out = [&](uint8_t* p) {
            const auto next = [&p](size_t n) {
                uint8_t* taken = p;
                p += (n + 63) / 64 * 64;
                return taken;
            };
            Activations a{};
            if (int8) {
                a.int8 = (int8_t*)next(blocks * kBlock);
                a.scales = (float*)next(blocks * 4);
                a.negative_sums = (int32_t*)next(blocks * 4);
                a.scaled_sums = (float*)next(blocks * 4);
            }
            if (pairs) a.bf16 = (uint16_t*)next(rows * size_t(padded) * 2);
            if (floats) a.floats = (float*)next(rows * size_t(padded) * 4);
            return a;
        };
        const auto prepare = [&](int first, int end, const Activations& to) {
            for (int row = first, g = 0; row < end; ++row) {
                while (row >= groups_[size_t(g)].first + groups_[size_t(g)].num_rows) ++g;
                const RowGroup group = groups_[size_t(g)];
                const int r = row - group.first;
                const float* from = x.row(row);
                if (int8) kernels_->prepare_int8(from, num_in, num_blocks, group, r, to);
                if (pairs) kernels_->prepare_bf16(from, num_in, group, r, padded, to);
                if (floats) kernels_->prepare_floats(from, num_in, group, r, padded, to);
            }
        };
        const int num_threads = pool_.size(), num_groups = int(groups_.size());
        if (!each_its_own) {
            const Activations to = laid_out(scratch);
            pool_.run((x.rows + kRowsPerItem - 1) / kRowsPerItem, [&](int, int item) {
                prepare(item * kRowsPerItem, std::min(x.rows, (item + 1) * kRowsPerItem), to);
            });
        }
        // Few rows: the threads share the tiles. Many: they share the rows, so that none reads what another has prepared.
        const int num_parts = x.rows >= kernels_->max_group * num_threads ? num_threads : 1;
        const int num_chunks = std::min(num_tiles, num_parts == 1 ? kItemsPerThread * num_threads : kItemsPerThread);
        has_prepared_.assign(size_t(num_threads) * 64, 0);  // a cache line each
        pool_.run(num_parts * num_chunks, [&](int thread, int item) {
            const int part = item / num_chunks, chunk = item % num_chunks;
            const int first = pool_.share(num_groups, part), end = pool_.share(num_groups, part + 1);
            const Activations prepared = laid_out(scratch + (each_its_own ? bytes * size_t(thread) : 0));
            if (each_its_own && !has_prepared_[size_t(thread) * 64]) {
                prepare(0, x.rows, prepared);
                has_prepared_[size_t(thread) * 64] = 1;
            }
            const int first_tile = int(int64_t(num_tiles) * chunk / num_chunks);
            const int end_tile = int(int64_t(num_tiles) * (chunk + 1) / num_chunks);
            if (num_parts == 1) what(prepared, groups_.data(), num_groups, first_tile, end_tile);
            else what(prepared, groups_.data() + first, end - first, first_tile, end_tile);
        });
    }

    const Kernels* kernels_ = nullptr;
    ThreadPool pool_;
    std::vector<WeightRegion> regions_;  // one per thread
    std::shared_ptr<BlockCache> cache_;
    std::vector<RowGroup> groups_;
    std::vector<uint8_t> has_prepared_;
    struct Part {
        int pair, part;
    };
    std::vector<Part> parts_;
    Owned<float> scratch_, attention_scratch_, attention_sums_;
    size_t scratch_size_ = 0, attention_scratch_size_ = 0, attention_sums_size_ = 0;
};

}  // namespace
}  // namespace headrace

NB_MODULE(_kernels, m) {
    using namespace headrace;
    nb::set_leak_warnings(false);  // a process that ends while it serves is no leak
    m.def("best_isa", [] { return std::string(find_kernels("")->name); });
    nb::class_<Tensor>(m, "Tensor")
        .def_prop_ro("shape", [](const Tensor& t) { return std::make_pair(t.rows, t.columns); })
        .def("numpy", [](Tensor& t) {
            return nb::ndarray<nb::numpy, float, nb::ndim<2>>(t.data, {size_t(t.rows), size_t(t.columns)}, nb::find(t), {t.stride, 1});
        });
    nb::class_<Linear>(m, "Linear").def_ro("num_in", &Linear::num_in).def_ro("num_out", &Linear::num_out);
    // The bytes of all keys, then of all values.
    nb::class_<Cache>(m, "Cache").def("array", [](Cache& c) {
        return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(c.view.keys, {c.view.num_bytes()}, nb::find(c));
    });
    nb::class_<Placement>(m, "Placement");
    nb::class_<Engine>(m, "Engine")
        .def(nb::init<int, const std::string&>(), nb::arg("num_threads"), nb::arg("isa") = "")
        .def_prop_ro("isa", &Engine::isa)
        .def_prop_ro("num_threads", &Engine::num_threads)
        .def("wake", &Engine::wake)
        .def("sleep", &Engine::sleep)
        .def("load_linear", &Engine::load_linear, nb::keep_alive<0, 1>())
        .def("allocate_kv", &Engine::allocate_kv)
        .def("place", &Engine::place)
        .def("from_array", &Engine::from_array, nb::rv_policy::take_ownership)
        .def("select_rows", &Engine::select_rows, nb::rv_policy::take_ownership)
        .def("rms_norm", &Engine::rms_norm, nb::rv_policy::take_ownership)
        .def("add", &Engine::add, nb::rv_policy::take_ownership)
        .def("linear", &Engine::linear, nb::arg("x"), nb::arg("weight"), nb::arg("add_to").none(), nb::arg("bf16"),
             nb::rv_policy::take_ownership)
        .def("logits", &Engine::logits, nb::rv_policy::take_ownership)
        .def("gated_linear", &Engine::gated_linear, nb::rv_policy::take_ownership)
        .def("rope_and_cache", &Engine::rope_and_cache, nb::arg("qkv"), nb::arg("kv"), nb::arg("placement"),
             nb::arg("rotation").none(), nb::arg("rotary_dim"), nb::arg("query_norm").none(), nb::arg("key_norm").none(),
             nb::arg("eps"), nb::rv_policy::take_ownership)
        .def("attention", &Engine::attention, nb::rv_policy::take_ownership)
        .def("copy_block", &Engine::copy_block)
        .def("make_finite", &Engine::make_finite);
}

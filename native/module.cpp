// The Python extension: what the other files offer, with shapes checked and the interpreter let go of while threads compute.
//
// Knows Python's objects. Does not know how anything is computed.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "ceilings.h"
#include "machine.h"
#include "sampling.h"
#include "tape.h"

namespace nb = nanobind;

namespace headrace {
namespace {

typedef nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> Bytes;
typedef nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu> Floats;
typedef nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu> FloatRows;
typedef nb::ndarray<const float, nb::ndim<2>, nb::device::cpu> LogitRows;
typedef nb::ndarray<float, nb::ndim<2>, nb::device::cpu> ChangedLogitRows;
typedef nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> AllowedBits;
typedef nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> Ids;
typedef nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> Rows;

void require(bool holds, const char* otherwise) {
    if (!holds) throw std::invalid_argument(otherwise);
}

// spans: (num_computed_tokens, num_tokens) of each sequence.
std::unique_ptr<Placement> place(const std::vector<std::pair<int, int>>& spans, const nb::list& block_ids, int block_size) {
    auto placement = std::make_unique<Placement>();
    const auto num_blocks = [&](size_t s) { return (spans[s].first + spans[s].second + block_size - 1) / block_size; };
    size_t total = 0;
    for (size_t s = 0; s < spans.size(); ++s) total += size_t(num_blocks(s));
    placement->reserve_blocks(total);
    for (size_t s = 0; s < spans.size(); ++s) {
        nb::object fast = nb::steal(PySequence_Fast(nb::object(block_ids[s]).ptr(), "block ids are a sequence"));
        if (!fast.is_valid()) throw nb::python_error();
        require(PySequence_Fast_GET_SIZE(fast.ptr()) >= num_blocks(s), "the blocks do not cover the tokens");
        PyObject** items = PySequence_Fast_ITEMS(fast.ptr());
        for (int b = 0; b < num_blocks(s); ++b) {
            const long id = PyLong_AsLong(items[b]);
            if (id == -1 && PyErr_Occurred()) throw nb::python_error();
            placement->add_block(id);
        }
        placement->add(spans[s].first, spans[s].second, block_size, num_blocks(s));
    }
    placement->finish(block_size);
    return placement;
}

// What an operation gives: numbers, or while a tape is recorded the promise of some.
class Value {
  public:
    explicit Value(std::unique_ptr<Tensor> tensor) : tensor(std::move(tensor)) {}
    explicit Value(int number) : number(number) {}

    const Matrix& matrix() const {
        if (!tensor) throw std::invalid_argument("a recorded value has no numbers yet");
        return tensor->matrix;
    }

    std::unique_ptr<Tensor> tensor;
    int number = -1;  // on the tape
};

// A recording, with the arrays that it points into. Whoever records keeps projections and caches alive.
struct RecordedTape {
    Tape tape;
    std::vector<nb::ndarray<nb::device::cpu>> arrays;
};

class Engine {
  public:
    Engine(int num_threads, const std::string& isa) : machine_(num_threads, isa) {}

    std::string isa() const { return machine_.kernels().name; }
    int num_threads() { return machine_.pool().size(); }
    void wake() { machine_.pool().wake(); }
    void sleep() { machine_.pool().sleep(); }

    // parts: (storage, the file's bytes, order of its rows or empty for their own).
    std::unique_ptr<Linear> load_linear(const std::vector<std::string>& storages, const std::vector<Bytes>& parts,
                                        const std::vector<Rows>& orders, int num_in, const Floats& bias) {
        std::vector<StoredRows> stored;
        for (size_t p = 0; p < parts.size(); ++p) {
            const int32_t* order = orders[p].size() ? orders[p].data() : nullptr;
            stored.push_back({storages[p], parts[p].data(), parts[p].size(), order, orders[p].size()});
        }
        auto unpacked = machine_.loader().lay_out(stored, num_in, bias.data(), bias.size());
        nb::gil_scoped_release release;
        return machine_.loader().pack(std::move(unpacked));
    }

    // format: float32, bfloat16, int8 or fp8_e4m3.
    std::unique_ptr<Cache> allocate_kv(int num_heads, int num_kv_heads, int head_dim, float scale, float softcap, int window,
                                       int num_blocks, int block_size, const std::string& format) {
        const AttentionView shape{num_heads,  num_kv_heads, head_dim, (head_dim + 3) / 4 * 4, (head_dim + 15) / 16 * 16,
                                  block_size, num_blocks,   scale,    softcap, window, kv_format_of(format),
                                  nullptr,    nullptr};
        return std::make_unique<Cache>(shape);
    }

    // Recording. Until `finish`, operations compute nothing: they are appended to the tape, and None stands for what a step
    // brings, its token ids, its placement and its selected rows.

    void record() {
        require(!recording_, "one tape is recorded at a time");
        recording_ = std::make_unique<RecordedTape>();
    }

    std::unique_ptr<RecordedTape> finish(const Value& result) {
        require(recording_ && result.number >= 0, "what ends a tape was recorded on it");
        std::unique_ptr<RecordedTape> recorded = std::move(recording_);
        recorded->tape.finish(result.number);
        return recorded;
    }

    void give_up() { recording_.reset(); }

    // ids: [num_tokens], or the embedded rows themselves where the tape does not read the table.
    Value* replay(RecordedTape& recorded, const nb::object& ids, const Placement& placement, const std::vector<int>& selected) {
        Step step;
        Ids token_ids;
        FloatRows embedded;
        if (nb::try_cast<Ids>(ids, token_ids)) {
            step.token_ids = token_ids.data();
            step.num_tokens = int(token_ids.shape(0));
        } else {
            embedded = nb::cast<FloatRows>(ids);
            step.embedded = embedded.data();
            step.num_tokens = int(embedded.shape(0));
        }
        require(step.num_tokens == placement.num_rows(), "a place for every token");
        step.placement = &placement;
        step.selected = selected.data();
        step.num_selected = int(selected.size());
        auto result = std::make_unique<Tensor>(machine_.memory(), step.num_selected, recorded.tape.result_columns(), true);
        {
            nb::gil_scoped_release release;
            recorded.tape.replay(machine_, step, result->matrix);
        }
        return new Value(std::move(result));
    }

    // Sampling; rows are shared out among the threads

    // Of each row the index of the greatest number that its bits allow, where it has any: -1 where the row's greatest of all
    // is not finite, -2 where nothing is left.
    std::vector<int64_t> greatest(const LogitRows& logits, const std::vector<std::optional<AllowedBits>>& allowed) {
        const int64_t size = int64_t(logits.shape(1));
        require(allowed.size() == logits.shape(0), "bits, or none, for every row");
        for (const auto& bits : allowed) require(!bits || int64_t(bits->shape(0)) * 32 >= size, "a bit for each token");
        std::vector<int64_t> found(logits.shape(0));
        nb::gil_scoped_release release;
        machine_.pool().run(int(found.size()), [&](int, int i) {
            const float* row = logits.data() + i * logits.stride(0);
            int64_t best = machine_.kernels().greatest(row, size);
            if (best >= 0 && allowed[size_t(i)]) {
                const int32_t* bits = allowed[size_t(i)]->data();
                if (!(uint32_t(bits[best / 32]) >> (best % 32) & 1)) {
                    best = machine_.kernels().greatest_allowed(row, size, bits);
                    if (best < 0) best = -2;
                }
            }
            found[size_t(i)] = best;
        });
        return found;
    }

    // Takes away, in place, what has no bit in some rows.
    void restrict_to(const ChangedLogitRows& logits, const std::vector<std::pair<int64_t, AllowedBits>>& restrictions) {
        const int64_t num_rows = int64_t(logits.shape(0)), size = int64_t(logits.shape(1));
        for (const auto& [row, bits] : restrictions) {
            require(0 <= row && row < num_rows, "no such row");
            require(int64_t(bits.shape(0)) * 32 >= size, "a bit for each token");
        }
        nb::gil_scoped_release release;
        machine_.pool().run(int(restrictions.size()), [&](int, int i) {
            const auto& [row, bits] = restrictions[size_t(i)];
            machine_.kernels().restrict_to(logits.data() + row * logits.stride(0), size, bits.data());
        });
    }

    // draws: (row, its greatest number's index, temperature, top_k, top_p, min_p, uniform)
    std::vector<int64_t> draw(const LogitRows& logits,
                              const std::vector<std::tuple<int64_t, int64_t, float, int64_t, double, float, double>>& draws) {
        const int64_t num_rows = int64_t(logits.shape(0)), size = int64_t(logits.shape(1));
        for (const auto& draw : draws)
            require(0 <= std::get<0>(draw) && std::get<0>(draw) < num_rows && 0 <= std::get<1>(draw) && std::get<1>(draw) < size,
                    "no such row or token");
        std::vector<int64_t> tokens(draws.size());
        samplers_.resize(size_t(machine_.pool().size()));
        nb::gil_scoped_release release;
        machine_.pool().run(int(draws.size()), [&](int thread, int i) {
            const auto& [row, best, temperature, top_k, top_p, min_p, uniform] = draws[size_t(i)];
            tokens[size_t(i)] = samplers_[size_t(thread)].draw(machine_.kernels(), logits.data() + row * logits.stride(0),
                                                               size, best, {temperature, top_k, top_p, min_p, uniform});
        });
        return tokens;
    }

    // Of one token a row: (log-probability, rank, ids of the most probable, their log-probabilities).
    std::vector<std::tuple<double, int64_t, std::vector<int64_t>, std::vector<double>>> tell(
        const LogitRows& logits, const std::vector<int64_t>& tokens, int64_t num_top) {
        const int64_t size = int64_t(logits.shape(1));
        require(tokens.size() == logits.shape(0), "a token for every row");
        for (int64_t token : tokens) require(0 <= token && token < size, "no such token");
        std::vector<std::tuple<double, int64_t, std::vector<int64_t>, std::vector<double>>> told(tokens.size());
        samplers_.resize(size_t(machine_.pool().size()));
        nb::gil_scoped_release release;
        machine_.pool().run(int(tokens.size()), [&](int thread, int row) {
            Told one = samplers_[size_t(thread)].tell(machine_.kernels(), logits.data() + row * logits.stride(0), size,
                                                      tokens[size_t(row)], num_top);
            told[size_t(row)] = {one.logprob, one.rank, std::move(one.top_ids), std::move(one.top_logprobs)};
        });
        return told;
    }

    // Operations

    Value* from_array(const FloatRows& array) {
        auto tensor = std::make_unique<Tensor>(machine_.memory(), int(array.shape(0)), int(array.shape(1)));
        for (int r = 0; r < tensor->matrix.rows; ++r)
            std::memcpy(tensor->matrix.row(r), array.data() + size_t(r) * array.shape(1), array.shape(1) * 4);
        return new Value(std::move(tensor));
    }

    // table: null where the rows are read elsewhere, which only a tape has use for.
    Value* embed(const nb::object& ids, const EmbeddingTable* table, int num_columns, float multiplier) {
        const Embed work{table, multiplier};
        Ids token_ids;
        Step step;
        if (!ids.is_none()) {
            require(table, "rows that are read elsewhere are no business of the kernels");
            token_ids = nb::cast<Ids>(ids);
            step.token_ids = token_ids.data();
            step.num_tokens = int(token_ids.shape(0));
        }
        return emit(work, nullptr, nullptr, {ids.is_none(), false, step.num_tokens, num_columns}, false, step);
    }

    Value* select_rows(const Value& x, const nb::object& rows) {
        std::vector<int> selected;
        Step step;
        if (!rows.is_none()) {
            selected = nb::cast<std::vector<int>>(rows);
            step.selected = selected.data();
            step.num_selected = int(selected.size());
        }
        return emit(SelectRows{}, &x, nullptr, {rows.is_none(), true, step.num_selected, columns(x)}, false, step);
    }

    Value* rms_norm(const Value& x, const Floats& weight, float eps) {
        require(int(weight.size()) == columns(x), "the norm's weight has another size");
        return emit(RmsNorm{{keep(weight), eps}}, &x, nullptr, like(x, columns(x)), false);
    }

    Value* add(const Value& x, const Value& y, float scale) {
        require(columns(x) == columns(y) && rows(x) == rows(y), "sums are of tensors of one shape");
        return emit(Add{scale}, &x, &y, like(x, columns(x)), false);
    }

    Value* linear(const Value& x, const Linear& weight, const Value* add_to, bool bf16) {
        check_input(x, weight);
        require(!add_to || (rows(*add_to) == rows(x) && columns(*add_to) == weight.num_out),
                "what is added to has another shape");
        return emit(Project{&weight, bf16, 1.0f, 0.0f, {}}, &x, add_to, like(x, weight.num_out), true);
    }

    Value* logits(const Value& x, const Linear& weight, float multiplier, float softcap, bool bf16) {
        check_input(x, weight);
        return emit(Project{&weight, bf16, multiplier, softcap, {}}, &x, nullptr, like(x, weight.num_out, true), true);
    }

    Value* gated_linear(const Value& x, const Linear& gate, const Linear& up, int activation, bool bf16) {
        check_input(x, gate);
        check_input(x, up);
        require(gate.num_out == up.num_out && gate.tiles.size() == up.tiles.size(), "gate and up have one shape");
        return emit(GatedProject{&gate, &up, Gate(activation), bf16, {}}, &x, nullptr, like(x, gate.num_out), true);
    }

    Value* rope_and_cache(const Value& qkv, const Cache& kv, const Placement* placement, const nb::object& rotation,
                          int rotary_dim, const nb::object& query_norm, const nb::object& key_norm, float eps) {
        const AttentionView& a = kv.view;
        require(columns(qkv) == (a.num_heads + 2 * a.num_kv_heads) * a.head_dim, "queries, keys and values have another shape");
        require(rotary_dim <= a.head_dim, "more dimensions rotate than a head has");
        RopeAndCache work{&kv, {nullptr, 0, rotary_dim}, {nullptr, nullptr, eps}};
        Floats query_weight, key_weight, table;  // must live until the work is done
        if (!query_norm.is_none()) {
            query_weight = nb::cast<Floats>(query_norm);
            key_weight = nb::cast<Floats>(key_norm);
            work.norm.query = keep(query_weight);
            work.norm.key = keep(key_weight);
        }
        if (!rotation.is_none()) {
            table = nb::cast<Floats>(rotation);
            work.rotation.angles = keep(table);
            work.rotation.size = table.size();
        }
        return emit(work, &qkv, nullptr, like(qkv, a.num_heads * a.head_dim, true), false, step_at(placement, qkv));
    }

    Value* attention(const Value& q, const Cache& kv, const Placement* placement) {
        require(columns(q) == kv.view.num_heads * kv.view.head_dim, "queries have another shape");
        return emit(Attend{&kv}, &q, nullptr, like(q, columns(q), true), true, step_at(placement, q));
    }

  private:
    struct Shape {
        bool is_recorded, is_selected;
        int rows, columns;
        bool is_dense = false;
    };

    int columns(const Value& x) const { return recording_ && x.number >= 0 ? recording_->tape.columns_of(x.number) : x.matrix().columns; }

    // How many; while recording, -1 for one per token and -2 for one per selected row.
    int rows(const Value& x) const {
        return recording_ && x.number >= 0 ? (recording_->tape.is_selected(x.number) ? -2 : -1) : x.matrix().rows;
    }

    Shape like(const Value& x, int num_columns, bool is_dense = false) const {
        const int num_rows = rows(x);
        return {num_rows < 0, num_rows == -2, num_rows, num_columns, is_dense};
    }

    static void check_num_rows(const Placement& placement, int num_rows) {
        require(placement.num_rows() == num_rows, "a place for every token");
    }

    Step step_at(const Placement* placement, const Value& x) const {
        Step step;
        step.placement = placement;
        require((placement == nullptr) == (rows(x) < 0), "None stands for the placement while a tape is recorded, and only then");
        if (placement) check_num_rows(*placement, rows(x));
        return step;
    }

    void check_input(const Value& x, const Linear& weight) const {
        require(columns(x) == weight.num_in, "the projection takes rows of another size");
    }

    // The numbers of an array, which a recording keeps alive.
    const float* keep(const Floats& array) {
        if (recording_) recording_->arrays.emplace_back(array);
        return array.data();
    }

    // Appends to the tape, or computes at once: without the interpreter where that takes longer than giving it back.
    Value* emit(const Work& work, const Value* input, const Value* other, const Shape& shape, bool is_long, const Step& step = {}) {
        require(shape.is_recorded == (recording_ != nullptr), "None stands for what a step brings while a tape is recorded, and only then");
        if (recording_) {
            Tape& tape = recording_->tape;
            const int output = tape.add_value(shape.is_selected, shape.columns, shape.is_dense);
            tape.append({work, input ? input->number : -1, other ? other->number : -1, output});
            return new Value(output);
        }
        auto out = std::make_unique<Tensor>(machine_.memory(), shape.rows, shape.columns, shape.is_dense);
        const Matrix values[] = {input ? input->matrix() : Matrix{}, other ? other->matrix() : Matrix{}, out->matrix};
        const Operation operation{work, input ? 0 : -1, other ? 1 : -1, 2};
        if (is_long || machine_.is_shared(shape.rows)) {
            nb::gil_scoped_release release;
            machine_.run(operation, values, step);
        } else {
            machine_.run(operation, values, step);
        }
        return new Value(std::move(out));
    }

    Machine machine_;
    std::vector<Sampler> samplers_;  // one per thread
    std::unique_ptr<RecordedTape> recording_;
};

}  // namespace
}  // namespace headrace

NB_MODULE(_kernels, m) {
    using namespace headrace;
    nb::set_leak_warnings(false);  // a process that ends while it serves is no leak
    m.def("best_isa", [] { return std::string(find_kernels("")->name); });
    m.def("read_rate", &read_rate, nb::call_guard<nb::gil_scoped_release>());
    m.def("operation_rate", &operation_rate, nb::call_guard<nb::gil_scoped_release>());
    nb::class_<Value>(m, "Tensor")
        .def_prop_ro("shape", [](const Value& v) { return std::make_pair(v.matrix().rows, v.matrix().columns); })
        .def_prop_ro("is_recorded", [](const Value& v) { return v.number >= 0; })
        .def("numpy", [](Value& v) {
            const Matrix& x = v.matrix();
            return nb::ndarray<nb::numpy, float, nb::ndim<2>>(x.data, {size_t(x.rows), size_t(x.columns)}, nb::find(v),
                                                              {x.stride, 1});
        });
    nb::class_<RecordedTape>(m, "Tape")
        .def_prop_ro("num_operations", [](const RecordedTape& r) { return r.tape.num_operations(); })
        .def_prop_ro("floats_per_token", [](const RecordedTape& r) { return r.tape.floats_per_token(); });
    nb::class_<EmbeddingTable>(m, "EmbeddingTable")
        .def("__init__", [](EmbeddingTable* self, const std::string& storage, const Bytes& data, int num_columns) {
                 new (self) EmbeddingTable(storage, data.data(), data.size(), num_columns);
             }, nb::keep_alive<1, 3>())
        .def_static("knows", &EmbeddingTable::knows);
    nb::class_<Linear>(m, "Linear").def_ro("num_in", &Linear::num_in).def_ro("num_out", &Linear::num_out);
    nb::class_<Cache>(m, "Cache")
        // The bytes of all keys, then of all values.
        .def("array",
             [](Cache& c) {
                 return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(c.view.keys, {c.view.num_bytes()}, nb::find(c));
             })
        .def("copy_block", &Cache::copy_block)
        .def("make_finite", &Cache::make_finite);
    nb::class_<Placement>(m, "Placement")
        // (part, rows) of what several sequences read together.
        .def_prop_ro("shared_parts", [](const Placement& placement) {
            std::vector<std::pair<int, std::vector<int32_t>>> found;
            for (const SharedPart& shared : placement.shared_parts) found.emplace_back(shared.part, shared.row_numbers);
            return found;
        });
    m.def("place", &place);
    m.def("num_steps_alone", &ThreadPool::num_steps_alone);
    nb::class_<Engine>(m, "Engine")
        .def(nb::init<int, const std::string&>(), nb::arg("num_threads"), nb::arg("isa") = "")
        .def_prop_ro("isa", &Engine::isa)
        .def_prop_ro("num_threads", &Engine::num_threads)
        .def("wake", &Engine::wake)
        .def("sleep", &Engine::sleep)
        .def("load_linear", &Engine::load_linear, nb::keep_alive<0, 1>())
        .def("allocate_kv", &Engine::allocate_kv)
        .def("record", &Engine::record)
        .def("finish", &Engine::finish)
        .def("give_up", &Engine::give_up)
        .def("replay", &Engine::replay, nb::rv_policy::take_ownership)
        .def("embed", &Engine::embed, nb::arg("ids").none(), nb::arg("table").none(), nb::arg("num_columns"),
             nb::arg("multiplier"), nb::rv_policy::take_ownership)
        .def("greatest", &Engine::greatest)
        .def("restrict", &Engine::restrict_to)
        .def("draw", &Engine::draw)
        .def("tell", &Engine::tell)
        .def("from_array", &Engine::from_array, nb::rv_policy::take_ownership)
        .def("select_rows", &Engine::select_rows, nb::arg("x"), nb::arg("rows").none(), nb::rv_policy::take_ownership)
        .def("rms_norm", &Engine::rms_norm, nb::rv_policy::take_ownership)
        .def("add", &Engine::add, nb::rv_policy::take_ownership)
        .def("linear", &Engine::linear, nb::arg("x"), nb::arg("weight"), nb::arg("add_to").none(), nb::arg("bf16"),
             nb::rv_policy::take_ownership)
        .def("logits", &Engine::logits, nb::rv_policy::take_ownership)
        .def("gated_linear", &Engine::gated_linear, nb::rv_policy::take_ownership)
        .def("rope_and_cache", &Engine::rope_and_cache, nb::arg("qkv"), nb::arg("kv"), nb::arg("placement").none(),
             nb::arg("rotation").none(), nb::arg("rotary_dim"), nb::arg("query_norm").none(), nb::arg("key_norm").none(),
             nb::arg("eps"), nb::rv_policy::take_ownership)
        .def("attention", &Engine::attention, nb::arg("q"), nb::arg("kv"), nb::arg("placement").none(),
             nb::rv_policy::take_ownership);
}

// The Python extension: what the other files offer, with shapes checked and the interpreter let go of while threads compute.
//
// Knows Python's objects. Does not know how anything is computed.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "machine.h"

namespace nb = nanobind;

namespace headrace {
namespace {

typedef nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> Bytes;
typedef nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu> Floats;
typedef nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu> FloatRows;
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
    placement->sort();
    return placement;
}

class Engine {
  public:
    Engine(int num_threads, const std::string& isa) : machine_(num_threads, isa) {}

    std::string isa() const { return machine_.isa(); }
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

    std::unique_ptr<Cache> allocate_kv(int num_heads, int num_kv_heads, int head_dim, float scale, float softcap, int window,
                                       int num_blocks, int block_size, bool is_bf16) {
        require(block_size % 16 == 0, "blocks are of whole pages of 16 tokens");
        require(head_dim % 2 == 0, "heads have an even number of dimensions");
        const AttentionView shape{num_heads, num_kv_heads, head_dim, (head_dim + 15) / 16 * 16, block_size, num_blocks,
                                  scale, softcap, window, is_bf16, nullptr, nullptr};
        return std::make_unique<Cache>(shape);
    }

    Tensor* from_array(const FloatRows& array) {
        Tensor* tensor = make(int(array.shape(0)), int(array.shape(1)));
        for (int r = 0; r < tensor->matrix.rows; ++r)
            std::memcpy(tensor->matrix.row(r), array.data() + size_t(r) * array.shape(1), array.shape(1) * 4);
        return tensor;
    }

    Tensor* select_rows(const Tensor& x, const std::vector<int>& rows) {
        return computed(make(int(rows.size()), x.matrix.columns), false,
                        [&](const Matrix& out) { machine_.select_rows(x.matrix, rows.data(), out); });
    }

    Tensor* rms_norm(const Tensor& x, const Floats& weight, float eps) {
        require(int(weight.size()) == x.matrix.columns, "the norm's weight has another size");
        return computed(make(x.matrix.rows, x.matrix.columns), machine_.is_shared(x.matrix.rows),
                        [&](const Matrix& out) { machine_.rms_norm(x.matrix, weight.data(), eps, out); });
    }

    Tensor* add(const Tensor& x, const Tensor& y, float scale) {
        require(x.matrix.rows == y.matrix.rows && x.matrix.columns == y.matrix.columns, "sums are of tensors of one shape");
        return computed(make(x.matrix.rows, x.matrix.columns), machine_.is_shared(x.matrix.rows),
                        [&](const Matrix& out) { machine_.add(x.matrix, y.matrix, scale, out); });
    }

    Tensor* linear(const Tensor& x, const Linear& weight, const Tensor* add_to, bool bf16) {
        check_input(x, weight);
        require(!add_to || (add_to->matrix.rows == x.matrix.rows && add_to->matrix.columns == weight.num_out),
                "what is added to has another shape");
        return computed(make(x.matrix.rows, weight.num_out), true, [&](const Matrix& out) {
            machine_.linear(x.matrix, weight, bf16, add_to ? add_to->matrix : Matrix{}, 1.0f, 0.0f, out);
        });
    }

    Tensor* logits(const Tensor& x, const Linear& weight, float multiplier, float softcap, bool bf16) {
        check_input(x, weight);
        return computed(make(x.matrix.rows, weight.num_out, true), true, [&](const Matrix& out) {
            machine_.linear(x.matrix, weight, bf16, Matrix{}, multiplier, softcap, out);
        });
    }

    Tensor* gated_linear(const Tensor& x, const Linear& gate, const Linear& up, int activation, bool bf16) {
        check_input(x, gate);
        check_input(x, up);
        require(gate.num_out == up.num_out && gate.tiles.size() == up.tiles.size(), "gate and up have one shape");
        return computed(make(x.matrix.rows, gate.num_out), true, [&](const Matrix& out) {
            machine_.gated_linear(x.matrix, gate, up, Gate(activation), bf16, out);
        });
    }

    Tensor* rope_and_cache(const Tensor& qkv, const Cache& kv, const Placement& placement, const nb::object& rotation,
                           int rotary_dim, const nb::object& query_norm, const nb::object& key_norm, float eps) {
        const AttentionView& a = kv.view;
        const Matrix& x = qkv.matrix;
        require(x.columns == (a.num_heads + 2 * a.num_kv_heads) * a.head_dim && x.rows == placement.num_rows(),
                "queries, keys and values have another shape");
        require(rotary_dim <= a.head_dim, "more dimensions rotate than a head has");
        Floats query_weight, key_weight, table;
        HeadNorm norm{nullptr, nullptr, eps};
        if (!query_norm.is_none()) {
            query_weight = nb::cast<Floats>(query_norm);
            key_weight = nb::cast<Floats>(key_norm);
            norm.query = query_weight.data();
            norm.key = key_weight.data();
        }
        RotationTable angles{nullptr, 0, rotary_dim};
        if (!rotation.is_none()) {
            table = nb::cast<Floats>(rotation);
            angles.angles = table.data();
            angles.size = table.size();
        }
        return computed(make(x.rows, a.num_heads * a.head_dim, true), machine_.is_shared(x.rows),
                        [&](const Matrix& q) { machine_.rope_and_cache(x, kv, placement, angles, norm, q); });
    }

    Tensor* attention(const Tensor& q, const Cache& kv, const Placement& placement) {
        const Matrix& x = q.matrix;
        require(x.columns == kv.view.num_heads * kv.view.head_dim && x.rows == placement.num_rows(),
                "queries have another shape");
        return computed(make(x.rows, x.columns, true), true,
                        [&](const Matrix& out) { machine_.attention(x, kv, placement, out); });
    }

  private:
    Tensor* make(int rows, int columns, bool is_dense = false) {
        return new Tensor(machine_.memory(), rows, columns, is_dense);
    }

    static void check_input(const Tensor& x, const Linear& weight) {
        require(x.matrix.columns == weight.num_in, "the projection takes rows of another size");
    }

    // Takes `out`; without the interpreter where the work takes longer than giving it back.
    template <class Work>
    static Tensor* computed(Tensor* out, bool is_long, Work work) {
        std::unique_ptr<Tensor> owned(out);
        if (is_long) {
            nb::gil_scoped_release release;
            work(out->matrix);
        } else {
            work(out->matrix);
        }
        return owned.release();
    }

    Machine machine_;
};

}  // namespace
}  // namespace headrace

NB_MODULE(_kernels, m) {
    using namespace headrace;
    nb::set_leak_warnings(false);  // a process that ends while it serves is no leak
    m.def("best_isa", [] { return std::string(find_kernels("")->name); });
    nb::class_<Tensor>(m, "Tensor")
        .def_prop_ro("shape", [](const Tensor& t) { return std::make_pair(t.matrix.rows, t.matrix.columns); })
        .def("numpy", [](Tensor& t) {
            const Matrix& x = t.matrix;
            return nb::ndarray<nb::numpy, float, nb::ndim<2>>(x.data, {size_t(x.rows), size_t(x.columns)}, nb::find(t),
                                                              {x.stride, 1});
        });
    nb::class_<Linear>(m, "Linear").def_ro("num_in", &Linear::num_in).def_ro("num_out", &Linear::num_out);
    nb::class_<Cache>(m, "Cache")
        // All keys, then all values: float32, or the bits of BF16.
        .def("array",
             [](Cache& c) -> nb::object {
                 const size_t size[] = {c.num_elements()};
                 if (c.view.is_bf16)
                     return nb::cast(nb::ndarray<nb::numpy, uint16_t, nb::ndim<1>>(c.view.keys, 1, size, nb::find(c)));
                 return nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<1>>(c.view.keys, 1, size, nb::find(c)));
             })
        .def("copy_block", &Cache::copy_block)
        .def("make_finite", &Cache::make_finite);
    nb::class_<Placement>(m, "Placement");
    m.def("place", &place);
    nb::class_<Engine>(m, "Engine")
        .def(nb::init<int, const std::string&>(), nb::arg("num_threads"), nb::arg("isa") = "")
        .def_prop_ro("isa", &Engine::isa)
        .def_prop_ro("num_threads", &Engine::num_threads)
        .def("wake", &Engine::wake)
        .def("sleep", &Engine::sleep)
        .def("load_linear", &Engine::load_linear, nb::keep_alive<0, 1>())
        .def("allocate_kv", &Engine::allocate_kv)
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
        .def("attention", &Engine::attention, nb::rv_policy::take_ownership);
}

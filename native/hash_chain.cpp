// The hashes of a prompt's blocks, all in one call: as `engine/mind/block_hashing.py` makes them, bit for bit.
//
// An extension of its own: the mind knows nothing of kernels, and a rehearsal loads none.
#include <nanobind/nanobind.h>

#include <cstring>
#include <stdexcept>

#include "blake2b.h"

namespace nb = nanobind;

namespace headrace {
namespace {

// Makes `count` hashes, each of what `begun` gives for its block and then of the one before it; the first, of `parent`.
template <typename Begun>
nb::object chained(const nb::bytes& parent, Py_ssize_t count, const Begun& begun) {
    nb::object hashes = nb::steal(PyList_New(count));
    if (!hashes.is_valid()) throw nb::python_error();
    const void* before = parent.data();
    size_t size = parent.size();
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* made = PyBytes_FromStringAndSize(nullptr, Blake2b::DIGEST_BYTES);
        if (made == nullptr) throw nb::python_error();
        auto* digest = reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(made));
        PyList_SET_ITEM(hashes.ptr(), i, made);
        Blake2b hasher = begun(i);
        hasher.update(before, size);
        hasher.digest(digest);
        before = digest;
        size = Blake2b::DIGEST_BYTES;
    }
    return hashes;
}

nb::object chain_of(const nb::bytes& parent, const nb::bytes& tokens, size_t block_bytes) {
    if (block_bytes == 0) throw std::invalid_argument("a block has tokens");
    const auto* data = static_cast<const uint8_t*>(tokens.data());
    return chained(parent, Py_ssize_t(tokens.size() / block_bytes), [&](Py_ssize_t i) {
        Blake2b hasher;
        hasher.update(data + size_t(i) * block_bytes, block_bytes);
        return hasher;
    });
}

nb::object chain_of_equals(const nb::bytes& parent, const nb::bytes& tokens, Py_ssize_t num_blocks) {
    if (num_blocks < 0) throw std::invalid_argument("fewer blocks than none");
    Blake2b begun;
    begun.update(tokens.data(), tokens.size());
    if (parent.size() > 0) begun.expect_more();
    return chained(parent, num_blocks, [&](Py_ssize_t) { return begun; });
}

}  // namespace
}  // namespace headrace

NB_MODULE(_hash_chain, module) {
    module.def("chain_of", &headrace::chain_of);
    module.def("chain_of_equals", &headrace::chain_of_equals);
}

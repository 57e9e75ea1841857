#include "stored_blocks.h"

#include <stdexcept>

namespace headrace {

size_t Storage::row_bytes(int num_in) const {
    if (num_in % block_numbers) throw std::invalid_argument("rows of " + std::string(name) + " are whole blocks");
    return size_t(head_bytes) + size_t(num_in / block_numbers) * size_t(block_bytes);
}

const Storage* find_storage(const std::string& name) {
    static const Storage kStorages[] = {
        {"Q4_0", Format::Q4_0, 32, 18, 0},         {"Q4_1", Format::Q4_1, 32, 20, 0},
        {"Q5_0", Format::Q5_0, 32, 22, 0},         {"Q5_1", Format::Q5_1, 32, 24, 0},
        {"Q8_0", Format::Q8_0, 32, 34, 0},         {"Q4_K", Format::Q4_K, 256, 144, 0},
        {"Q5_K", Format::Q5_K, 256, 176, 0},       {"Q6_K", Format::Q6_K, 256, 210, 0},
        {"INT4_G32", Format::I4, 32, 5 + 16, 0},   {"INT4_G64", Format::I4, 64, 5 + 32, 0},
        {"INT4_G128", Format::I4, 128, 5 + 64, 0}, {"INT8_CHANNEL", Format::I8, 1, 1, 4},
        {"F16", Format::F16, 1, 2, 0},             {"BF16", Format::BF16, 1, 2, 0},
        {"F32", Format::F32, 1, 4, 0},
    };
    for (const Storage& storage : kStorages)
        if (name == storage.name) return &storage;
    return nullptr;
}

}  // namespace headrace

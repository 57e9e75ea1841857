// What this machine can do at most: bytes read and operations computed in a second. For `headrace roofline`.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace headrace {

// Bytes read in a second by so many threads at once, each again and again from `bytes_per_thread` of its own.
double read_rate(size_t bytes_per_thread, int num_threads, double duration_s);

// Operations in a second, a multiplication and an addition being two, with everything in registers; and the instruction that
// does it. kind: "f32", "bf16" (products of bfloat16, sums of float32) or "int8" (products of bytes, sums of int32), by vectors;
// "bf16 tiles" and "int8 tiles" by AMX. Where the processor has no instruction for a kind: 0 and an empty name.
std::pair<std::string, double> operation_rate(const std::string& kind, int num_threads, double duration_s);

}  // namespace headrace

// One operation of a forward pass, with its operands by number: what runs at once, or lies on a tape.
//
// Knows which constants an operation needs. Does not know how many rows there are: a step brings them.
#pragma once

#include <cstdint>
#include <variant>

#include "embedding.h"
#include "kernels.h"
#include "kv_cache.h"
#include "linear.h"
#include "placement.h"

namespace headrace {

// What varies from step to step.
struct Step {
    const int64_t* token_ids = nullptr;  // [num_tokens]
    const float* embedded = nullptr;     // [num_tokens, hidden_size], where the table is read by somebody else
    int num_tokens = 0;
    const Placement* placement = nullptr;
    const int* selected = nullptr;  // [num_selected]: rows of the step
    int num_selected = 0;
};

// cos [dim / 2] and sin [dim / 2] of each position.
struct RotationTable {
    const float* angles = nullptr;  // null: nothing rotates
    size_t size = 0;
    int rotary_dim = 0;
};

// x / sqrt(mean(x^2) + eps) * weight, or x itself where there is no weight.
struct Norm {
    const float* weight = nullptr;
    float eps = 0.0f;
};

struct Embed {
    const EmbeddingTable* table;  // null: the step has the rows
    float multiplier;
};
struct SelectRows {};
struct RmsNorm {
    Norm norm;
};
struct Add {  // input + scale * other
    float scale;
};
struct Project {  // (norm(input) . weight + bias) * multiplier, soft-capped unless softcap is 0, + other if there is one
    const Linear* weight;
    bool bf16;
    float multiplier, softcap;
    Norm norm;
};
struct GatedProject {  // activation(norm(input) . gate) * (norm(input) . up)
    const Linear *gate, *up;
    Gate activation;
    bool bf16;
    Norm norm;
};
struct RopeAndCache {  // the input is used up
    const Cache* kv;
    RotationTable rotation;
    HeadNorm norm;
};
struct Attend {
    const Cache* kv;
};

typedef std::variant<Embed, SelectRows, RmsNorm, Add, Project, GatedProject, RopeAndCache, Attend> Work;

struct Operation {
    Work work;
    int input = -1, other = -1, output = -1;  // -1: none
};

}  // namespace headrace

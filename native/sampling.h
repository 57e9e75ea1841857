// The next token of a row of logits: the greatest, or one drawn from what temperature, top_k, top_p and min_p leave.
//
// Knows filters and one uniform number per draw. Does not know sequences, nor who shares the step.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace headrace {

struct Draw {
    float temperature;  // above 0
    int64_t top_k;      // 0 or at least the vocabulary's size: all
    double top_p;       // 1: all. The share is of what top_k leaves.
    float min_p;        // 0: all. Relative to the most probable token.
    double uniform;     // in (0, 1)
};

// What is told of a token: natural log-probabilities, of it and of the most probable ones, and its rank, 1 for the greatest.
struct Told {
    double logprob;
    int64_t rank;
    std::vector<int64_t> top_ids;  // descending, the lowest first among equals
    std::vector<double> top_logprobs;
};

class Sampler {
  public:
    // By inverse transform over what the filters leave, in order of token id; of equally probable tokens the lowest ids stay.
    // `best`: the index of the row's greatest number, which is finite; others may be minus infinity.
    int64_t draw(const Kernels& kernels, const float* row, int64_t size, int64_t best, const Draw& how);

    // Not a number, and nothing on top, where the row is not finite.
    Told tell(const Kernels& kernels, const float* row, int64_t size, int64_t token, int64_t num_top);

  private:
    struct Candidate {
        float weight;
        int32_t id;
    };
    static bool is_before(const Candidate& a, const Candidate& b) {
        return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
    }

    double weigh(const Kernels& kernels, const float* row, int64_t size, int64_t best, float temperature);
    double collect(int64_t size, float least);
    void collect_enough(int64_t size, double total, const Draw& how);
    void keep(int64_t size, double total, const Draw& how);
    int64_t draw_from_all(int64_t size, double total, double uniform) const;
    int64_t draw_from_kept(double uniform);

    // exp((x - greatest) / temperature) of each token, and its sums over stretches.
    std::vector<float> weights_;
    std::vector<double> stretches_;
    std::vector<Candidate> candidates_;
};

}  // namespace headrace

#include "sampling.h"

#include <algorithm>
#include <cmath>

namespace headrace {

namespace {

// Weights from which on tokens are looked at first, relative to the most probable one's; and if those were too few.
constexpr float kLeast = 0x1p-8f;
float lower(float least) { return least < 0x1p-100f ? 0.0f : least * 0x1p-8f; }

}  // namespace

double Sampler::weigh(const Kernels& kernels, const float* row, int64_t size, int64_t best, float temperature) {
    const size_t num_stretches = size_t(size + kStretch - 1) / kStretch;
    weights_.resize(num_stretches * kStretch);
    stretches_.resize(num_stretches);
    return kernels.weigh(row, size, row[best], temperature, weights_.data(), stretches_.data());
}

// The tokens of at least that weight, and their sum.
double Sampler::collect(int64_t size, float least) {
    candidates_.clear();
    double mass = 0.0;
    for (int64_t start = 0; start < size; start += kStretch) {
        if (stretches_[size_t(start / kStretch)] < double(least)) continue;
        for (int64_t i = start, end = std::min(size, start + kStretch); i < end; ++i) {
            const float weight = weights_[size_t(i)];
            if (weight < least) continue;
            candidates_.push_back({weight, int32_t(i)});
            mass += double(weight);
        }
    }
    return mass;
}

// The most probable tokens, among them all that the filters could keep; in no order.
void Sampler::collect_enough(int64_t size, double total, const Draw& how) {
    const bool by_count = how.top_k > 0 && how.top_k < size;
    for (float least = kLeast;; least = lower(least)) {
        const double mass = collect(size, least);
        if (least == 0.0f || (by_count ? int64_t(candidates_.size()) >= how.top_k : mass >= how.top_p * total)) return;
    }
}

// Leaves in candidates_ what top_k and top_p keep.
void Sampler::keep(int64_t size, double total, const Draw& how) {
    collect_enough(size, total, how);
    auto begin = candidates_.begin(), end = candidates_.end();
    if (how.top_k > 0 && how.top_k < size && how.top_k < int64_t(candidates_.size())) {
        std::nth_element(begin, begin + how.top_k, end, is_before);
        end = begin + how.top_k;
    }
    if (how.top_p < 1.0) {
        if (how.top_k > 0 && how.top_k < size) {
            total = 0.0;
            for (auto it = begin; it != end; ++it) total += double(it->weight);
        }
        // The shortest beginning of the order by probability that has the share: halved until it is short enough to sort.
        const double wanted = how.top_p * total;
        double mass = 0.0;
        auto first = begin, last = end;
        while (last - first > 64) {
            const auto middle = first + (last - first) / 2;
            std::nth_element(first, middle, last, is_before);
            double upper = 0.0;
            for (auto it = first; it != middle; ++it) upper += double(it->weight);
            if (mass + upper >= wanted) last = middle;
            else mass += upper, first = middle;
        }
        std::sort(first, last, is_before);
        for (; first != last && mass < wanted; ++first) mass += double(first->weight);
        end = std::max(first, begin + 1);
    }
    candidates_.erase(end, candidates_.end());
}

int64_t Sampler::draw_from_all(int64_t size, double total, double uniform) const {
    double left = uniform * total;
    size_t stretch = 0;
    while (stretch + 1 < stretches_.size() && left >= stretches_[stretch]) left -= stretches_[stretch++];
    // Rounding may put the target beyond the last weight of its stretch: the last token then that has any.
    const int64_t start = int64_t(stretch) * kStretch, end = std::min(size, start + kStretch);
    int64_t chosen = start;
    for (int64_t i = start; i < end; ++i) {
        const double weight = double(weights_[size_t(i)]);
        if (weight == 0.0) continue;
        chosen = i;
        if (left < weight) break;
        left -= weight;
    }
    return chosen;
}

int64_t Sampler::draw_from_kept(double uniform) {
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    double total = 0.0;
    for (const Candidate& candidate : candidates_) total += double(candidate.weight);
    const double target = uniform * total;
    double cumulated = 0.0;
    for (const Candidate& candidate : candidates_) {
        cumulated += double(candidate.weight);
        if (cumulated > target) return candidate.id;
    }
    return candidates_.back().id;
}

int64_t Sampler::draw(const Kernels& kernels, const float* row, int64_t size, int64_t best, const Draw& how) {
    const double total = weigh(kernels, row, size, best, how.temperature);
    const bool is_filtered = (how.top_k > 0 && how.top_k < size) || how.top_p < 1.0;
    if (!is_filtered && how.min_p <= 0.0f) return draw_from_all(size, total, how.uniform);
    if (is_filtered) {
        keep(size, total, how);
    } else {
        candidates_.clear();
        for (int64_t i = 0; i < size; ++i)
            if (weights_[size_t(i)] >= how.min_p) candidates_.push_back({weights_[size_t(i)], int32_t(i)});
    }
    if (how.min_p > 0.0f && is_filtered) {
        const auto is_rare = [&](const Candidate& candidate) { return candidate.weight < how.min_p; };
        candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), is_rare), candidates_.end());
    }
    return draw_from_kept(how.uniform);
}

Told Sampler::tell(const Kernels& kernels, const float* row, int64_t size, int64_t token, int64_t num_top) {
    const int64_t best = kernels.greatest(row, size);
    if (best < 0) return {std::nan(""), 1, {}, {}};
    const double normaliser = double(row[best]) + std::log(weigh(kernels, row, size, best, 1.0f));
    Told told{double(row[token]) - normaliser, 1, {}, {}};
    for (int64_t i = 0; i < size; ++i) told.rank += row[i] > row[token];
    num_top = std::min(num_top, size);
    if (num_top <= 0) return told;
    // By the logits themselves, not their weights, which round; a little more than what could be among the greatest is looked at.
    for (float least = kLeast;; least = lower(least)) {
        collect(size, least);
        for (Candidate& candidate : candidates_) candidate.weight = row[candidate.id];
        if (int64_t(candidates_.size()) < num_top) {
            if (least > 0.0f) continue;
            num_top = int64_t(candidates_.size());
        }
        std::partial_sort(candidates_.begin(), candidates_.begin() + num_top, candidates_.end(), is_before);
        if (least == 0.0f || weights_[size_t(candidates_[size_t(num_top - 1)].id)] > least * 1.0001f) break;
    }
    for (int64_t i = 0; i < num_top; ++i) {
        told.top_ids.push_back(candidates_[size_t(i)].id);
        told.top_logprobs.push_back(double(candidates_[size_t(i)].weight) - normaliser);
    }
    return told;
}

}  // namespace headrace

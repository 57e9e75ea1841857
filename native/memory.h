// Memory for weights, caches and activations: aligned, in huge pages where it is large, handed back for reuse.
//
// Knows sizes. Does not know contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace headrace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t(2) << 20;

struct Free {
    void operator()(void* p) const { std::free(p); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

// Not initialised. From two megabytes on in huge pages, where the system grants them: they read a fifth faster.
inline uint8_t* allocate_bytes(size_t num_bytes) {
    const size_t alignment = num_bytes >= kHugePage ? kHugePage : kAlignment;
    const size_t rounded = (num_bytes + alignment - 1) / alignment * alignment;
    void* p = std::aligned_alloc(alignment, rounded ? rounded : alignment);
    if (!p) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (alignment == kHugePage) madvise(p, rounded, MADV_HUGEPAGE);
#endif
    return static_cast<uint8_t*>(p);
}

// Memory that is written before it is read, and that grows with what is asked for.
class Scratch {
  public:
    uint8_t* reserve(size_t num_bytes) {
        if (num_bytes > size_) {
            block_.reset(allocate_bytes(num_bytes));
            size_ = num_bytes;
        }
        return block_.get();
    }
    uint8_t* data() const { return block_.get(); }  // what was reserved last

  private:
    Owned<uint8_t> block_;
    size_t size_ = 0;
};

// Zeros that take memory only where they are written to: a large cache costs nothing before it is used.
class UntouchedZeros {
  public:
    explicit UntouchedZeros(size_t num_bytes) {
#if defined(__linux__)
        size_ = (num_bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
        void* p = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        base_ = static_cast<uint8_t*>(p);
        data_ = base_ + (kHugePage - reinterpret_cast<uintptr_t>(base_) % kHugePage) % kHugePage;
#else
        base_ = static_cast<uint8_t*>(std::calloc(num_bytes + kAlignment, 1));
        if (!base_) throw std::bad_alloc();
        data_ = base_ + (kAlignment - reinterpret_cast<uintptr_t>(base_) % kAlignment) % kAlignment;
#endif
    }
    ~UntouchedZeros() {
#if defined(__linux__)
        munmap(base_, size_);
#else
        std::free(base_);
#endif
    }
    UntouchedZeros(const UntouchedZeros&) = delete;
    UntouchedZeros& operator=(const UntouchedZeros&) = delete;
    uint8_t* data() const { return data_; }

  private:
    uint8_t *base_ = nullptr, *data_ = nullptr;
    size_t size_ = 0;
};

// Packed weights, one behind another in regions of 16 MB; freed together.
class WeightRegion {
  public:
    uint8_t* take(size_t num_bytes) {
        num_bytes = (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
        if (num_bytes > left_) {
            const size_t size = num_bytes > kRegion ? num_bytes : kRegion;
            regions_.emplace_back(allocate_bytes(size + kPastEnd));
            next_ = regions_.back().get();
            left_ = size;
        }
        uint8_t* taken = next_;
        next_ += num_bytes;
        left_ -= num_bytes;
        return taken;
    }

  private:
    static constexpr size_t kRegion = size_t(16) << 20;
    static constexpr size_t kPastEnd = 4096;  // prefetching may look behind the last
    std::vector<Owned<uint8_t>> regions_;
    uint8_t* next_ = nullptr;
    size_t left_ = 0;
};

// Blocks of activations by power of two: a step asks for the same sizes as the one before.
class BlockCache {
  public:
    float* take(size_t num_floats, int& size_class) {
        size_class = 8;
        while ((size_t(1) << size_class) < num_floats) ++size_class;
        auto& kept = kept_[size_class];
        if (kept.empty()) return reinterpret_cast<float*>(allocate_bytes((size_t(1) << size_class) * 4));
        float* block = kept.back().release();
        kept.pop_back();
        return block;
    }
    void give_back(float* block, int size_class) { kept_[size_class].emplace_back(block); }

  private:
    std::vector<Owned<float>> kept_[48];
};

}  // namespace headrace

#include "thread_pool.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace {

namespace {

// On a processor of its own a wait takes microseconds. Beyond that somebody else may need this one to make progress.
constexpr int kSpinsBeforeYield = 2048;

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

template <class Done>
inline void spin_until(Done done) {
    for (int spins = 0; !done(); ++spins) {
        if (spins < kSpinsBeforeYield) relax();
        else std::this_thread::yield();
    }
}

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads), next_(std::make_unique<Counter[]>(size_t(num_threads))) {
    for (int thread = 1; thread < num_threads; ++thread) threads_.emplace_back([this, thread] { serve(thread); });
}

ThreadPool::~ThreadPool() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        is_closing_ = true;
        is_awake_ = false;
    }
    sleepers_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::wake() {
    if (num_threads_ == 1) return;
    if (num_alone_left_ > 0) {
        --num_alone_left_;
        return;
    }
    woken_ns_ = now_ns();
    lost_ns_ = 0;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        is_awake_ = true;
    }
    sleepers_.notify_all();
}

void ThreadPool::sleep() {
    if (!is_awake_.exchange(false)) return;
    num_alone_ = num_alone_left_ = num_steps_alone(now_ns() - woken_ns_, lost_ns_, num_alone_);
}

void ThreadPool::run_erased(int num_items, Job job, void* argument) {
    if (num_threads_ == 1 || num_items <= 1) {
        for (int item = 0; item < num_items; ++item) job(argument, 0, item);
        return;
    }
    job_ = job;
    argument_ = argument;
    num_items_ = num_items;
    for (int thread = 0; thread < num_threads_; ++thread)
        next_[size_t(thread)].value.store(share(num_items, thread), std::memory_order_relaxed);
    epoch_.value.fetch_add(1);  // open
    take_items(0);
    epoch_.value.fetch_add(1);  // closed: who registers after this sees it, who did before is waited for
    const auto is_done = [&] { return active_.value.load() == 0; };
    for (int spins = 0; spins < kSpinsBeforeYield; ++spins) {
        if (is_done()) return;
        relax();
    }
    const int64_t began = now_ns();  // somebody has the helper's processor
    while (!is_done()) std::this_thread::yield();
    lost_ns_ += now_ns() - began;
}

void ThreadPool::take_items(int thread) {
    for (int turn = 0; turn < num_threads_; ++turn) {
        const int owner = (thread + turn) % num_threads_;
        auto& next = next_[size_t(owner)].value;
        const int end = share(num_items_, owner + 1);
        while (next.load(std::memory_order_relaxed) < end) {
            const int item = int(next.fetch_add(1, std::memory_order_relaxed));
            if (item < end) job_(argument_, thread, item);
        }
    }
}

void ThreadPool::serve(int thread) {
    int64_t seen = 0;
    const auto has_work = [&] {
        const int64_t epoch = epoch_.value.load(std::memory_order_relaxed);
        return (epoch & 1) != 0 && epoch != seen;
    };
    for (;;) {
        spin_until([&] { return has_work() || !is_awake_.load(std::memory_order_relaxed); });
        if (!has_work()) {
            // A job that opens while all sleep is done by thread 0 alone: `wake` comes before what is worth sharing.
            std::unique_lock<std::mutex> lock(mutex_);
            sleepers_.wait(lock, [&] { return is_awake_ || is_closing_; });
            if (is_closing_) return;
            continue;
        }
        active_.value.fetch_add(1);
        const int64_t epoch = epoch_.value.load();
        if ((epoch & 1) != 0 && epoch != seen) {
            seen = epoch;
            take_items(thread);
        }
        active_.value.fetch_sub(1);
    }
}

}  // namespace headrace

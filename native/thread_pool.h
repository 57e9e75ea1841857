// Threads that compute together: awake and spinning while a step runs, asleep between steps.
//
// Knows threads and how work is shared out. Does not know what is computed. One thread at a time may call `run`; it takes
// part as thread 0, and never waits for a thread that has not begun: where other programs keep a helper from running, the
// others do its share. One that is kept from finishing what it has begun must be waited for; where that takes most of a step,
// thread 0 computes the next ones alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace headrace {

class ThreadPool {
  public:
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;
    int size() const { return num_threads_; }

    void wake();   // a step begins: threads spin from now on, unless they were in each other's way
    void sleep();  // it is over: they wait, at no cost, from now on; `run` still works, more slowly

    // How many steps, after one that took so long and in which thread 0 lost so much of it with waiting, are not shared.
    // `num_before`: what this said the last time.
    static int num_steps_alone(int64_t step_ns, int64_t lost_ns, int num_before) {
        if (lost_ns * 2 <= step_ns) return 0;
        return num_before == 0 ? kFewestAlone : std::min(num_before * 2, kMostAlone);
    }

    // The first of n things that are a thread's by right; until (thread + 1)'s first.
    int share(int n, int thread) const { return int(int64_t(n) * thread / num_threads_); }

    // Calls work(thread, item) for every item below num_items, each once, and returns when all are done. A thread takes its
    // own share in order, then what others have left of theirs.
    template <class Work>
    void run(int num_items, Work&& work) {
        run_erased(num_items, [](void* w, int thread, int item) { (*static_cast<std::remove_reference_t<Work>*>(w))(thread, item); },
                   &work);
    }

    // Calls work(thread, first row, end row) for pieces of few rows.
    template <class Work>
    void run_rows(int num_rows, Work&& work) {
        constexpr int kRowsPerItem = 4;
        run((num_rows + kRowsPerItem - 1) / kRowsPerItem, [&](int thread, int item) {
            work(thread, item * kRowsPerItem, std::min(num_rows, (item + 1) * kRowsPerItem));
        });
    }

  private:
    typedef void (*Job)(void*, int, int);
    void run_erased(int num_items, Job job, void* argument);
    void take_items(int thread);
    void serve(int thread);

    struct alignas(64) Counter {
        std::atomic<int64_t> value{0};
    };

    static constexpr int kFewestAlone = 4, kMostAlone = 64;

    const int num_threads_;
    int num_alone_ = 0, num_alone_left_ = 0;  // steps
    int64_t woken_ns_ = 0, lost_ns_ = 0;
    int num_items_ = 0;
    Job job_ = nullptr;
    void* argument_ = nullptr;
    std::unique_ptr<Counter[]> next_;  // per thread: the next item of its share
    Counter epoch_;                    // odd while a job is open
    Counter active_;                   // helpers that are at it
    std::atomic<bool> is_awake_{false}, is_closing_{false};
    std::mutex mutex_;
    std::condition_variable sleepers_;
    std::vector<std::thread> threads_;
};

}  // namespace headrace

// The machine's ceilings, measured. Knows instructions and threads, and no kernel of a model.
//
// Each instruction set's loop is compiled here with a target attribute, and run only where the processor has it.
#include "ceilings.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels.h"
#include "memory.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace {
namespace {

typedef std::chrono::steady_clock Clock;

// Calls work(thread) again and again on every thread until the time is over; it returns how much it did.
template <class Prepare, class Work>
double rate(int num_threads, double duration_s, Prepare prepare, Work work) {
    if (num_threads < 1 || !(duration_s > 0)) throw std::invalid_argument("at least one thread, and some time");
    std::atomic<int> num_ready{0};
    std::vector<double> rates(size_t(num_threads), 0.0);
    std::vector<std::thread> threads;
    for (int t = 0; t < num_threads; ++t) {
        threads.emplace_back([&, t] {
            prepare(t);
            work(t);  // once unmeasured: caches, pages and the clock's frequency
            num_ready.fetch_add(1);
            while (num_ready.load() < num_threads) std::this_thread::yield();
            double done = 0;
            const auto began = Clock::now();
            std::chrono::duration<double> passed{0};
            do {
                done += work(t);
                passed = Clock::now() - began;
            } while (passed.count() < duration_s);
            rates[size_t(t)] = done / passed.count();
        });
    }
    for (std::thread& thread : threads) thread.join();
    double sum = 0;
    for (double r : rates) sum += r;
    return sum;
}

std::atomic<uint64_t> sink{0};  // so that nothing that is computed is left out

// Reads: four independent sums over whole cache lines.

template <class V>
inline __attribute__((always_inline)) uint64_t sum_of(const uint8_t* data, size_t num_bytes) {
    V a{}, b{}, c{}, d{};
    const V* at = reinterpret_cast<const V*>(data);
    const V* end = reinterpret_cast<const V*>(data + num_bytes);
    for (; at < end; at += 4) {
        a += at[0];
        b += at[1];
        c += at[2];
        d += at[3];
    }
    a += b;
    c += d;
    a += c;
    return uint64_t(a[0]);
}

typedef uint64_t V16 __attribute__((vector_size(16)));
typedef uint64_t V32 __attribute__((vector_size(32)));
typedef uint64_t V64 __attribute__((vector_size(64)));

typedef uint64_t (*Sum)(const uint8_t*, size_t);
uint64_t sum_portable(const uint8_t* data, size_t n) { return sum_of<V16>(data, n); }
#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t sum_avx2(const uint8_t* data, size_t n) { return sum_of<V32>(data, n); }
__attribute__((target("avx512f"))) uint64_t sum_avx512(const uint8_t* data, size_t n) { return sum_of<V64>(data, n); }
#endif

Sum best_sum() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return sum_avx512;
    if (__builtin_cpu_supports("avx2")) return sum_avx2;
#endif
    return sum_portable;
}

// Operations: enough independent accumulators to cover the latency of what adds to them. Each function returns how many
// operations it did.

constexpr int kRounds = 4096;
constexpr int kChains = 12;

// Keeps a value in a register, unknown to the compiler, so that it can neither fold nor drop what made it.
#define OPAQUE(x) asm volatile("" : "+v"(x))
#define OPAQUE_PORTABLE(x) asm volatile("" : "+m"(x))

typedef double (*Operations)();
typedef float Floats4 __attribute__((vector_size(16)));

double f32_portable() {
    Floats4 sums[kChains] = {}, x = {1e-9f, 1e-9f, 1e-9f, 1e-9f}, y = x;
    OPAQUE_PORTABLE(x);
    OPAQUE_PORTABLE(y);
    for (int i = 0; i < kRounds; ++i)
        for (int c = 0; c < kChains; ++c) sums[c] += x * y;
    float total = 0;
    for (int c = 0; c < kChains; ++c) total += sums[c][0];
    sink += uint64_t(total);
    return 2.0 * 4 * kChains * kRounds;
}

#if defined(__x86_64__)

#define CHAINS(STEP)                                                    \
    for (int i = 0; i < kRounds; ++i) {                                 \
        _Pragma("GCC unroll 12") for (int c = 0; c < kChains; ++c) STEP; \
    }                                                                   \
    _Pragma("GCC unroll 12") for (int c = 0; c < kChains; ++c) OPAQUE(sums[c])

__attribute__((target("avx2,fma"))) double f32_avx2() {
    __m256 sums[kChains], x = _mm256_set1_ps(1e-9f), y = x;
    for (auto& sum : sums) sum = _mm256_setzero_ps();
    OPAQUE(x);
    OPAQUE(y);
    CHAINS(sums[c] = _mm256_fmadd_ps(x, y, sums[c]));
    return 2.0 * 8 * kChains * kRounds;
}

__attribute__((target("avx512f"))) double f32_avx512() {
    __m512 sums[kChains], x = _mm512_set1_ps(1e-9f), y = x;
    for (auto& sum : sums) sum = _mm512_setzero_ps();
    OPAQUE(x);
    OPAQUE(y);
    CHAINS(sums[c] = _mm512_fmadd_ps(x, y, sums[c]));
    return 2.0 * 16 * kChains * kRounds;
}

__attribute__((target("avx512f,avx512bf16"))) double bf16_avx512() {
    __m512 sums[kChains];
    __m512i bits = _mm512_set1_epi16(0x3080);
    for (auto& sum : sums) sum = _mm512_setzero_ps();
    OPAQUE(bits);
    const __m512bh x = (__m512bh)bits, y = (__m512bh)bits;
    CHAINS(sums[c] = _mm512_dpbf16_ps(sums[c], x, y));
    return 2.0 * 32 * kChains * kRounds;
}

// Without instructions that multiply bytes into 32-bit sums: products of bytes in 16 bits, pairs added to 32, then summed.
__attribute__((target("avx2"))) double int8_avx2() {
    __m256i sums[kChains], x = _mm256_set1_epi8(1), y = x, ones = _mm256_set1_epi16(1);
    for (auto& sum : sums) sum = _mm256_setzero_si256();
    OPAQUE(y);
    OPAQUE(ones);
    for (int i = 0; i < kRounds; ++i) {
        OPAQUE(x);  // or the products would be the same in every round, and formed once
        _Pragma("GCC unroll 12") for (int c = 0; c < kChains; ++c) {
            __m256i products = _mm256_maddubs_epi16(x, y);
            OPAQUE(products);
            sums[c] = _mm256_add_epi32(sums[c], _mm256_madd_epi16(products, ones));
        }
    }
    _Pragma("GCC unroll 12") for (int c = 0; c < kChains; ++c) OPAQUE(sums[c]);
    return 2.0 * 32 * kChains * kRounds;
}

__attribute__((target("avx512f,avx512vnni"))) double int8_avx512() {
    __m512i sums[kChains], x = _mm512_set1_epi8(1), y = x;
    for (auto& sum : sums) sum = _mm512_setzero_si512();
    OPAQUE(x);
    OPAQUE(y);
    CHAINS(sums[c] = _mm512_dpbusd_epi32(sums[c], x, y));
    return 2.0 * 64 * kChains * kRounds;
}

#if defined(HEADRACE_AMX)

// Sixteen rows times 64 bytes of sixteen columns, into four tiles in turn; all eight are full.
struct FullTiles {
    alignas(64) uint8_t shapes[64] = {1};
    FullTiles() {
        for (int tile = 0; tile < 8; ++tile) {
            shapes[16 + 2 * tile] = 64;
            shapes[48 + tile] = 16;
        }
        asm volatile("ldtilecfg %0" ::"m"(shapes));
    }
    ~FullTiles() { asm volatile("tilerelease"); }
};

#define TILE_PRODUCTS(instruction)                                                                          \
    const FullTiles tiles;                                                                                  \
    for (int i = 0; i < kRounds; ++i)                                                                       \
        asm volatile(instruction " %tmm6, %tmm4, %tmm0\n" instruction " %tmm7, %tmm4, %tmm1\n" instruction \
                                 " %tmm6, %tmm5, %tmm2\n" instruction " %tmm7, %tmm5, %tmm3");

double int8_tiles() {
    TILE_PRODUCTS("tdpbssd");
    return 2.0 * 16 * 16 * 64 * 4 * kRounds;
}

double bf16_tiles() {
    TILE_PRODUCTS("tdpbf16ps");
    return 2.0 * 16 * 16 * 32 * 4 * kRounds;
}

#endif
#endif

std::pair<std::string, Operations> best_operations(const std::string& kind) {
    const bool of_tiles = kind == "bf16 tiles" || kind == "int8 tiles";
    if (!of_tiles && kind != "f32" && kind != "bf16" && kind != "int8")
        throw std::invalid_argument("kind is f32, bf16, int8, bf16 tiles or int8 tiles, not " + kind);
#if defined(HEADRACE_AMX)
    if (of_tiles && has_tiles()) {
        if (kind == "int8 tiles") return {"tdpbssd", int8_tiles};
        return {"tdpbf16ps", bf16_tiles};
    }
#endif
    if (of_tiles) return {"", nullptr};
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx512 = __builtin_cpu_supports("avx512f"), avx2 = __builtin_cpu_supports("avx2");
    if (kind == "f32" && avx512) return {"vfmadd zmm", f32_avx512};
    if (kind == "f32" && avx2 && __builtin_cpu_supports("fma")) return {"vfmadd ymm", f32_avx2};
    if (kind == "bf16" && avx512 && __builtin_cpu_supports("avx512bf16")) return {"vdpbf16ps zmm", bf16_avx512};
    if (kind == "int8" && avx512 && __builtin_cpu_supports("avx512vnni")) return {"vpdpbusd zmm", int8_avx512};
    if (kind == "int8" && avx2) return {"vpmaddubsw + vpmaddwd + vpaddd ymm", int8_avx2};
#endif
    if (kind == "f32") return {"multiply and add, 128 bits", f32_portable};
    return {"", nullptr};
}

}  // namespace

double read_rate(size_t bytes_per_thread, int num_threads, double duration_s) {
    constexpr size_t kUnit = 4 * sizeof(V64);
    const size_t num_bytes = (bytes_per_thread + kUnit - 1) / kUnit * kUnit;
    if (num_bytes == 0) throw std::invalid_argument("some bytes to read");
    const size_t repeats = 1 + (size_t(1) << 20) / num_bytes;  // reading the clock must cost nothing beside the reading
    const Sum sum = best_sum();
    std::vector<Owned<uint8_t>> buffers(static_cast<size_t>(num_threads < 1 ? 0 : num_threads));
    return rate(
        num_threads, duration_s,
        [&](int t) {  // by the thread that reads, so that the memory is near it
            buffers[size_t(t)].reset(allocate_bytes(num_bytes));
            for (size_t i = 0; i < num_bytes; ++i) buffers[size_t(t)].get()[i] = uint8_t(i);
        },
        [&](int t) {
            uint64_t total = 0;
            for (size_t r = 0; r < repeats; ++r) total += sum(buffers[size_t(t)].get(), num_bytes);
            sink.fetch_add(total, std::memory_order_relaxed);
            return double(num_bytes) * double(repeats);
        });
}

std::pair<std::string, double> operation_rate(const std::string& kind, int num_threads, double duration_s) {
    const std::pair<std::string, Operations> best = best_operations(kind);
    if (!best.second) return {"", 0.0};
    return {best.first, rate(num_threads, duration_s, [](int) {}, [&](int) { return best.second(); })};
}

}  // namespace headrace

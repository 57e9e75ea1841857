// Which of the compiled instruction sets this processor has, and the system lets this process use.
#include <cstring>

#include "kernels.h"

#if defined(HEADRACE_AMX)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace headrace {

namespace portable {
extern const Kernels kernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kernels;
}
#if defined(HEADRACE_AVX512)
namespace avx512_vnni {
extern const Kernels kernels;
}
namespace avx512_bf16 {
extern const Kernels kernels;
}
#endif
#if defined(HEADRACE_AMX)
namespace amx {
extern const Kernels kernels;
}
#endif
#endif

#if defined(HEADRACE_AMX)
namespace {

// The tiles are 8 KB of registers that a thread's context grows by, so Linux has a process ask for them. Threads that are made
// afterwards have them, too.
bool ask_for_tiles() {
#if defined(__linux__)
    constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25, kBf16 = 1u << 22;  // CPUID 7, EDX
    constexpr uint64_t kTileState = uint64_t(3) << 17;                         // of XCR0: what the system saves and restores
    constexpr long kRequest = 0x1023, kTileData = 18;                          // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (~d & (kTile | kInt8 | kBf16))) return false;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (~(uint64_t(high) << 32 | low) & kTileState) == 0 && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
    return false;
#endif
}

}  // namespace
#endif

bool has_tiles() {
#if defined(HEADRACE_AMX)
    static const bool granted = ask_for_tiles();
    return granted;
#else
    return false;
#endif
}

const Kernels* find_kernels(const char* name) {
    const Kernels* usable[5];
    int count = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#if defined(HEADRACE_AVX512)
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512vnni");
    const bool has_bf16 = has_avx512 && __builtin_cpu_supports("avx512bf16");
#if defined(HEADRACE_AMX)
    if (has_bf16 && has_tiles()) usable[count++] = &amx::kernels;
#endif
    if (has_bf16) usable[count++] = &avx512_bf16::kernels;
    if (has_avx512) usable[count++] = &avx512_vnni::kernels;
#endif
    if (has_avx2) usable[count++] = &avx2::kernels;
#endif
    usable[count++] = &portable::kernels;
    for (int i = 0; i < count; ++i)
        if (*name == 0 || std::strcmp(name, usable[i]->name) == 0) return usable[i];
    return nullptr;
}

}  // namespace headrace

// Which of the compiled instruction sets this processor has.
#include <cstring>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels.h"

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
namespace amx {
extern const Kernels kernels;
}
#endif
#endif

#if defined(__x86_64__) && defined(HEADRACE_AVX512)
// Whether the processor has tiles of int8 and BF16, and the system lets this process use them: it must be asked.
static bool has_tiles() {
#if defined(__linux__)
    unsigned a, b, c, d;
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kAll = kBf16 | kTile | kInt8;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kAll) != kAll) return false;
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
    return false;
#endif
}
#endif

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
    if (has_bf16 && has_tiles()) usable[count++] = &amx::kernels;
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

// Which of the compiled instruction sets this processor has.
#include <cstring>

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
#endif
#endif

const Kernels* find_kernels(const char* name) {
    const Kernels* usable[4];
    int count = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#if defined(HEADRACE_AVX512)
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512vnni");
    if (has_avx512 && __builtin_cpu_supports("avx512bf16")) usable[count++] = &avx512_bf16::kernels;
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

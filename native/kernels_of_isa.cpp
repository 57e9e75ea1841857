// The kernels for one instruction set: compiled once for each, with the flags that CMakeLists.txt gives.
#include <algorithm>
#include <type_traits>

#include "attention.h"
#include "prepare.h"
#include "products.h"
#include "rows.h"
#include "sampling_rows.h"

#define HEADRACE_TEXT_OF(x) #x
#define HEADRACE_TEXT(x) HEADRACE_TEXT_OF(x)

namespace headrace {
namespace HEADRACE_ISA {

extern const Kernels kernels;
const Kernels kernels = {
    HEADRACE_TEXT(HEADRACE_ISA), kMaxGroup, TileProducts::kRowsApart, kHasBf16, prepare_int8, prepare_whole_int8, prepare_floats, prepare_bf16,
    linear, gated, kLinearInPairs, rms_norm, add_scaled, rope_and_cache, expect_slot, attention_scratch, attention_sums, attention_part, attention,
    greatest, greatest_allowed, restrict_to,
    weigh,
};

}  // namespace HEADRACE_ISA
}  // namespace headrace

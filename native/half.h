// IEEE half precision as float32, for code that is compiled for no instruction set in particular.
#pragma once

#include <cstdint>
#include <cstring>

namespace headrace {

inline float half_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3FF;
    if (exponent == 0) {  // zero or subnormal: the mantissa's value, exactly
        const float magnitude = float(mantissa) * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    const uint32_t bits = sign | (exponent == 31 ? 0xFFu << 23 : (exponent + 112) << 23) | mantissa << 13;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

}  // namespace headrace

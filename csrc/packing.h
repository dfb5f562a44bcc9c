// Codes of 1 to 8 bits, packed without gaps: code i takes the bits i*b ... i*b + b - 1, the lowest bit of a byte first.
#pragma once

#include <cstdint>

#include "isa.h"

namespace roundoff {

// `packed` has room for ceil(n * bits / 8) bytes; bits of a code beyond `bits` are cut off.
ROUNDOFF_EACH_LEVEL(void pack(const uint8_t* codes, int64_t n, int bits, uint8_t* packed))
ROUNDOFF_EACH_LEVEL(void unpack(const uint8_t* packed, int64_t n, int bits, uint8_t* codes))

}  // namespace roundoff

// Groups of values kept as codes of 2, 4 or 8 bits, with the lowest value and the step of each group in bf16.
//
// The step's sign bit says that code 0 means exactly 0, and the other codes lowest, lowest + step, ...; without it code 0
// means `lowest`. A step that is NaN marks a group that has no codes. kernels/group_codes.py computes the same bits.
#pragma once

#include <cstdint>

#include "isa.h"
#include "summarize.h"

namespace roundoff {

constexpr int64_t kLongestGroup = 1024;

struct Groups {
  int64_t size;     // number of values; the last group may be short, but its codes are complete
  int64_t group;    // values in a group: a multiple of 64, at most kLongestGroup
  int bits;         // of a code: 2, 4 or 8
  uint16_t* heads;  // lowest, step; lowest, step; ...
  uint8_t* codes;   // byte j of a group holds, lowest bits first, the values j, j + m, j + 2m ..., m = group * bits / 8
};

// Rounds stochastically, by the numbers that `key` chooses. Returns how many groups have no codes, because a
// value or the step is not finite.
ROUNDOFF_EACH_LEVEL(int64_t compress_groups(const void* in, Dtype dtype, uint64_t key, const Groups& groups))

// Writes fp32 or bf16; groups without codes become NaN.
ROUNDOFF_EACH_LEVEL(void expand_groups(const Groups& groups, void* out, Dtype dtype))

}  // namespace roundoff

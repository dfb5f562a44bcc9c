// Fixed point with a scale: the scale follows the data or stays, and the tensor is rounded to it.
#pragma once

#include "rounding.h"

namespace roundoff {

// Orders are shared with kernels/rounding_rules.py.
enum class Range : int { max, three_sigma, sweep };
enum class Follow : int { never, data, at_least };  // at_least: the scale may grow, not shrink

struct Scaling {
  float* scales;  // element i takes scales[i / inner % num_scales]
  int64_t num_scales, inner;
  int num_bits;
  bool nics;  // one more positive code than two's complement has
  Range range;
  bool float_scale;  // the range itself, not the power of two above it
  Follow follow;

  double step(double scale) const { return 2 * scale / double(int64_t(1) << num_bits); }
  double lowest() const { return -double(int64_t(1) << (num_bits - 1)); }
  double highest() const { return nics ? -lowest() : -lowest() - 1; }
};

constexpr int kCandidates = 3;  // a sweep tries the scale of the maximum, a half and a quarter of it

// Adds to `errors` what rounding to each of the steps changes, summed over the finite elements.
ROUNDOFF_EACH_LEVEL(void add_rounding_errors(const float* in, int64_t size, const float* steps, float lowest,
                                             float highest, double* errors))

// Sets bit i of `bits`, counted from `first`, where the finite element i is beyond `limit`; the bits were zero before.
ROUNDOFF_EACH_LEVEL(void mark_beyond(const float* in, int64_t size, float limit, uint8_t* bits, int64_t first))

// Writes zero where the bit is set.
ROUNDOFF_EACH_LEVEL(void zero_marked(float* values, int64_t size, const uint8_t* bits))

}  // namespace roundoff

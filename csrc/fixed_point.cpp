// The loops that fixed point needs besides rounding: errors of candidate scales, and the bits of what saturates.
#include "fixed_point.h"

#include <cstring>

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr float kMagic = 0x1p23f;  // adding it rounds to a whole number
constexpr int64_t kLanes = 16;     // sums have this many parts on every instruction set, for equal results
constexpr int64_t kRun = 4096;     // this many additions in fp32, then in fp64

inline float rounding_error(float x, float step, float lowest, float highest) {
  const float a = __builtin_fabsf(x);
  const float limit = x < 0 ? -lowest : highest;
  float count = a / step;
  count = count < limit ? count : limit;
  const float error = __builtin_fabsf(((count + kMagic) - kMagic) * step - a);
  return a < kInfinity ? error : 0.0f;
}

}  // namespace

void add_rounding_errors(const float* in, int64_t size, const float* steps, float lowest, float highest,
                         double* errors) {
  for (int64_t start = 0; start < size; start += kRun) {
    const float* run = in + start;
    const int64_t n = size - start < kRun ? size - start : kRun, whole = n - n % kLanes;
    for (int c = 0; c < kCandidates; ++c) {
      const float step = steps[c];
      float sums[kLanes] = {};
      for (int64_t i = 0; i < whole; i += kLanes)
        for (int64_t j = 0; j < kLanes; ++j) sums[j] += rounding_error(run[i + j], step, lowest, highest);
      for (int64_t i = whole; i < n; ++i) sums[i - whole] += rounding_error(run[i], step, lowest, highest);
      for (const float sum : sums) errors[c] += sum;
    }
  }
}

void mark_beyond(const float* in, int64_t size, float limit, uint8_t* bits, int64_t first) {
  const auto beyond = [&](int64_t i) {
    const float a = __builtin_fabsf(in[i]);
    return unsigned(a > limit) & unsigned(a < kInfinity);
  };
  int64_t i = 0;
  for (; i < size && (first + i) % 8; ++i) bits[(first + i) / 8] |= uint8_t(beyond(i) << ((first + i) % 8));
  for (; i + 8 <= size; i += 8) {
    unsigned byte = 0;
    for (int j = 0; j < 8; ++j) byte |= beyond(i + j) << j;
    bits[(first + i) / 8] = uint8_t(byte);
  }
  for (; i < size; ++i) bits[(first + i) / 8] |= uint8_t(beyond(i) << ((first + i) % 8));
}

void zero_marked(float* values, int64_t size, const uint8_t* bits) {
  for (int64_t i = 0; i < size; i += 8) {
    const unsigned byte = bits[i / 8];
    if (!byte) continue;
    for (int64_t j = i; j < size && j < i + 8; ++j)
      if (byte >> (j - i) & 1) values[j] = 0;
  }
}

}  // namespace ROUNDOFF_ISA
}  // namespace roundoff

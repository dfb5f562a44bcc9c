// A counter-based random generator: the number for an element is a hash of the key and the element's index, so it does not
// depend on the instruction set, the order, or the number of threads. kernels/random_numbers.py computes the same.
#pragma once

#include "lanes.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

// What is hashed for element i: start + i * step.
struct Counting {
  uint32_t start, step;
};

// `high` is the upper half of the 64-bit index; the lower half varies inside a run.
ROUNDOFF_INLINE Counting counting_for(uint64_t key, uint32_t high) {
  return {uint32_t(key), (uint32_t(key >> 32) ^ high * 0x9e3779b9u) | 1};
}

// 31 random bits for each counter; U is any vector of 32-bit lanes.
template <class U>
ROUNDOFF_INLINE U random_31(U counter) {
  U h = counter;
  h ^= h >> 16;
  h *= 0x7feb352du;
  h ^= h >> 15;
  h *= 0x846ca68bu;
  h ^= h >> 16;
  return h >> 1;
}

}  // namespace
}  // namespace ROUNDOFF_ISA
}  // namespace roundoff

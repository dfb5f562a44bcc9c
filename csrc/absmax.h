// The largest finite magnitude of a run, as a bit pattern: patterns without sign are ordered like their values.
#pragma once

#include <cstdint>

#include "lanes.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

struct Magnitude {
  int64_t bits;
  int64_t num_nonfinite;
};

// `Word` is the signed integer as wide as the dtype (signed comparison exists on every instruction set).
template <class Word>
ROUNDOFF_INLINE Magnitude largest_finite(const Word* in, int64_t n, Word infinity) {
  constexpr Word kMagnitude = Word(~(uint64_t(1) << (8 * sizeof(Word) - 1)));
  Word largest = 0, num_nonfinite = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Word a = in[i] & kMagnitude;
    const Word finite = a < infinity ? a : Word(0);
    largest = finite > largest ? finite : largest;
    num_nonfinite = Word(num_nonfinite + Word(a >= infinity));
  }
  return {largest, num_nonfinite};
}

}  // namespace
}  // namespace ROUNDOFF_ISA
}  // namespace roundoff

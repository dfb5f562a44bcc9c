// One pass over two tensors with the same number of elements: how far apart they are.
#pragma once

#include <cstdint>

#include "isa.h"
#include "summarize.h"  // Dtype

namespace roundoff {

// Places in a row of results, shared with kernels/differences.py. Sums are over elements that are finite in both.
enum DifferencePlace {
  LARGEST,            // magnitude of the largest difference
  LARGEST_AT,         // its first place; -1 if nothing differs
  SQUARE,             // sum of the squared differences
  SQUARE_OF_FIRST,    // sums of the squares of each
  SQUARE_OF_SECOND,
  PRODUCT,            // sum of the products of the two
  NUM_DIFFERENT,      // elements with another value
  NUM_BAD_IN_FIRST,   // elements that are not finite
  NUM_BAD_IN_SECOND,
  NUM_UNLIKE,         // elements that are finite in only one, or NaN, +inf or -inf in another way
  FIRST_UNLIKE,       // the place of the first of them; -1 if there is none
  SAME_BITS,          // 1 if both have the same dtype and bits
  DIFFERENCE_WIDTH,
};

struct Side {
  const char* data;
  Dtype dtype;  // f64, f32, bf16 or f16
};

ROUNDOFF_EACH_LEVEL(void difference(Side first, Side second, int64_t size, double* row))

}  // namespace roundoff

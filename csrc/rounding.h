// Rounding a tensor's memory to what a format can hold; see the Python side for what every argument means.
#pragma once

#include <cstdint>

#include "isa.h"
#include "summarize.h"

namespace roundoff {

// Orders are shared with kernels/rounding_rules.py.
enum class Rounding : int { nearest, stochastic, toward_zero, up, down };
enum class Overflow : int { saturate, infinity, nan, saturate_finite };  // the last one keeps infinities

// The numbers a small float can hold, seen from the dtype they are kept in.
struct Grid {
  int mantissa_bits;
  int min_exponent;  // of the smallest normal number
  double largest;    // a number that both the format and the dtype hold
  Overflow overflow;
  bool signed_zero;
};

struct Span {
  const void* in;
  void* out;  // the same memory as `in`, or apart from it
  int64_t size;
  Dtype dtype;
};

struct Fixed {
  const double* steps;  // element i takes steps[i / inner % num_steps]
  int64_t num_steps;
  int64_t inner;
  double lowest, highest;  // codes
};

struct Blocks {
  int64_t length;  // of a row; the last block of a row may be short
  int64_t block_size;
  int max_exponent;  // of the largest element
};

enum class Scale : int { fp32, power_of_two, e4m3 };

struct ScaledBlocks {
  int64_t length;       // of a row; the last block of a row or of a matrix may be short
  int64_t matrix_rows;  // blocks do not cross matrices
  int64_t block_rows, block_columns;
  double largest;  // element
  Scale scale;
  float tensor_scale;  // of Scale::e4m3
};

ROUNDOFF_EACH_LEVEL(void round_float(const Span& span, const Grid& grid, Rounding rounding, uint64_t key))
ROUNDOFF_EACH_LEVEL(void round_fixed(const Span& span, const Fixed& fixed, Rounding rounding, uint64_t key))
ROUNDOFF_EACH_LEVEL(void round_blocks(const Span& span, const Grid& grid, const Blocks& blocks, Rounding rounding,
                                      uint64_t key))

// Fp32 only, and only for grids that `Quick` takes with subnormals.
ROUNDOFF_EACH_LEVEL(void round_scaled_blocks(const Span& span, const Grid& grid, const ScaledBlocks& blocks,
                                             Rounding rounding, uint64_t key))

// Writes the largest finite magnitude, in the dtype of the tensor, and the number of NaN and infinities.
ROUNDOFF_EACH_LEVEL(void absmax(const void* in, int64_t size, Dtype dtype, void* largest, int64_t* num_nonfinite))

}  // namespace roundoff

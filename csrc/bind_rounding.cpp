// Rounding and absmax for Python: addresses and plain numbers in, results written to addresses that the caller passes.
#include <nanobind/nanobind.h>

#include "rounding.h"

namespace nb = nanobind;

namespace roundoff {

constexpr int64_t kLarge = 1 << 15;  // from this many elements on, other Python threads may run meanwhile

template <class Work>
static void run(int64_t size, Work work) {
  if (size < kLarge) return work();
  nb::gil_scoped_release released;
  work();
}

static Span span_at(uintptr_t in, uintptr_t out, int64_t size, int dtype) {
  return {reinterpret_cast<const void*>(in), reinterpret_cast<void*>(out), size, Dtype(dtype)};
}

static void round_float_at(uintptr_t in, uintptr_t out, int64_t size, int dtype, int mantissa_bits, int min_exponent,
                           double largest, int overflow, bool signed_zero, int rounding, uint64_t key) {
  const Grid grid{mantissa_bits, min_exponent, largest, Overflow(overflow), signed_zero};
  const Span span = span_at(in, out, size, dtype);
  run(size, [&] { ROUNDOFF_PICK(round_float)(span, grid, Rounding(rounding), key); });
}

static void round_fixed_at(uintptr_t in, uintptr_t out, int64_t size, int dtype, uintptr_t steps, int64_t num_steps,
                           int64_t inner, double lowest, double highest, int rounding, uint64_t key) {
  const Fixed fixed{reinterpret_cast<const double*>(steps), num_steps, inner, lowest, highest};
  const Span span = span_at(in, out, size, dtype);
  run(size, [&] { ROUNDOFF_PICK(round_fixed)(span, fixed, Rounding(rounding), key); });
}

static void round_blocks_at(uintptr_t in, uintptr_t out, int64_t size, int dtype, int64_t length, int64_t block_size,
                            int mantissa_bits, int min_exponent, double largest, int max_exponent, bool signed_zero,
                            int rounding, uint64_t key) {
  const Grid grid{mantissa_bits, min_exponent, largest, Overflow::saturate_finite, signed_zero};
  const Blocks blocks{length, block_size, max_exponent};
  const Span span = span_at(in, out, size, dtype);
  run(size, [&] { ROUNDOFF_PICK(round_blocks)(span, grid, blocks, Rounding(rounding), key); });
}

static void round_scaled_blocks_at(uintptr_t in, uintptr_t out, int64_t size, int dtype, int64_t length,
                                   int64_t matrix_rows, int64_t block_rows, int64_t block_columns, int mantissa_bits,
                                   int min_exponent, double largest, bool signed_zero, int scale, float tensor_scale,
                                   int rounding, uint64_t key) {
  const Grid grid{mantissa_bits, min_exponent, largest, Overflow::saturate_finite, signed_zero};
  const ScaledBlocks blocks{length, matrix_rows, block_rows, block_columns, largest, Scale(scale), tensor_scale};
  const Span span = span_at(in, out, size, dtype);
  run(size, [&] { ROUNDOFF_PICK(round_scaled_blocks)(span, grid, blocks, Rounding(rounding), key); });
}

static void absmax_at(uintptr_t in, int64_t size, int dtype, uintptr_t largest, uintptr_t num_nonfinite) {
  run(size, [&] {
    ROUNDOFF_PICK(absmax)(reinterpret_cast<const void*>(in), size, Dtype(dtype), reinterpret_cast<void*>(largest),
                          reinterpret_cast<int64_t*>(num_nonfinite));
  });
}

void bind_rounding(nb::module_& m) {
  m.def("round_float", &round_float_at, "Round to a small float; `in` and `out` are the same or do not overlap.");
  m.def("round_fixed", &round_fixed_at, "Round to whole multiples of a step; `steps` are doubles.");
  m.def("round_blocks", &round_blocks_at, "Round rows of `length` in blocks, each to its own scale.");
  m.def("round_scaled_blocks", &round_scaled_blocks_at, "Round rows of fp32 in blocks, each times its own factor.");
  m.def("absmax", &absmax_at, "Write the largest finite magnitude and the number of non-finite elements.");
}

}  // namespace roundoff

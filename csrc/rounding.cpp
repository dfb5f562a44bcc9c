// Rounds a tensor to a small float.
#include "rounding.h"

#include "small_float.h"
#include "sweep.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

template <class Round>
void quick(const Span& span, const Grid& grid, uint64_t key) {
  const Round round(grid);
  switch (span.dtype) {
    case Dtype::bf16: return sweep<Bf16In32, U32>(span.in, span.out, span.size, 0, key, round);
    case Dtype::f16: return sweep<Fp16In32, U32>(span.in, span.out, span.size, 0, key, round);
    default: return sweep<Fp32In32, U32>(span.in, span.out, span.size, 0, key, round);
  }
}

template <class Round>
void exact(const Span& span, const Grid& grid, uint64_t key) {
  const Round round(grid);
  switch (span.dtype) {
    case Dtype::f64: return sweep<Fp64In64, U32Of64>(span.in, span.out, span.size, 0, key, round);
    case Dtype::bf16: return sweep<Bf16In64, U32Of64>(span.in, span.out, span.size, 0, key, round);
    case Dtype::f16: return sweep<Fp16In64, U32Of64>(span.in, span.out, span.size, 0, key, round);
    default: return sweep<Fp32In64, U32Of64>(span.in, span.out, span.size, 0, key, round);
  }
}

template <Rounding kRounding>
void round_in_mode(const Span& span, const Grid& grid, uint64_t key) {
  if (span.dtype != Dtype::f64) {
    if (Quick<kRounding, true>::takes(grid)) return quick<Quick<kRounding, true>>(span, grid, key);
    if (Quick<kRounding, false>::takes(grid)) return quick<Quick<kRounding, false>>(span, grid, key);
  }
  exact<Exact<kRounding>>(span, grid, key);
}

}  // namespace

void round_float(const Span& span, const Grid& grid, Rounding rounding, uint64_t key) {
  switch (rounding) {
    case Rounding::nearest: return round_in_mode<Rounding::nearest>(span, grid, key);
    case Rounding::stochastic: return round_in_mode<Rounding::stochastic>(span, grid, key);
    case Rounding::toward_zero: return round_in_mode<Rounding::toward_zero>(span, grid, key);
    case Rounding::up: return round_in_mode<Rounding::up>(span, grid, key);
    case Rounding::down: return round_in_mode<Rounding::down>(span, grid, key);
  }
}

}  // namespace ROUNDOFF_ISA
}  // namespace roundoff

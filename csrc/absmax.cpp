// The largest finite magnitude of a tensor, and how many elements are not finite, in one pass.
#include "absmax.h"

#include "rounding.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

constexpr int64_t kRun = 1 << 14;  // a count up to this fits in 16 bits

template <class Word>
void absmax_of(const void* in_, int64_t n, Word infinity, void* largest, int64_t* num_nonfinite) {
  auto* in = static_cast<const Word*>(in_);
  Magnitude all{0, 0};
  for (int64_t i = 0; i < n; i += kRun) {
    const Magnitude run = largest_finite(in + i, n - i < kRun ? n - i : kRun, infinity);
    all.bits = run.bits > all.bits ? run.bits : all.bits;
    all.num_nonfinite += run.num_nonfinite;
  }
  const Word bits = Word(all.bits);
  std::memcpy(largest, &bits, sizeof bits);
  *num_nonfinite = all.num_nonfinite;
}

}  // namespace

void absmax(const void* in, int64_t size, Dtype dtype, void* largest, int64_t* num_nonfinite) {
  switch (dtype) {
    case Dtype::f64: return absmax_of<int64_t>(in, size, int64_t(kInf64), largest, num_nonfinite);
    case Dtype::bf16: return absmax_of<int16_t>(in, size, 0x7f80, largest, num_nonfinite);
    case Dtype::f16: return absmax_of<int16_t>(in, size, 0x7c00, largest, num_nonfinite);
    default: return absmax_of<int32_t>(in, size, int32_t(kInf32), largest, num_nonfinite);
  }
}

}  // namespace ROUNDOFF_ISA
}  // namespace roundoff

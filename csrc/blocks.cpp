// Rounds blocks of a tensor, each to its own power-of-two multiple of a small float (OCP microscaling).
#include "absmax.h"
#include "rounding.h"
#include "small_float.h"
#include "sweep.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

constexpr int kScaleLimit = 127;  // E8M0 holds 2^-127 ... 2^127

struct In64 {
  using Exactly = Fp64In64;
  using Word = int64_t;
  static constexpr bool kIsDouble = true;
  static constexpr int kMantissa = 52, kBias = 1023;
};

struct In32 {
  using Exactly = Fp32In64;
  using Quickly = Fp32In32;
  using Word = int32_t;
  static constexpr bool kIsDouble = false;
  static constexpr int kMantissa = 23, kBias = 127;
};

struct InBf16 {
  using Exactly = Bf16In64;
  using Quickly = Bf16In32;
  using Word = int16_t;
  static constexpr bool kIsDouble = false;
  static constexpr int kMantissa = 7, kBias = 127;
};

struct InFp16 {
  using Exactly = Fp16In64;
  using Quickly = Fp16In32;
  using Word = int16_t;
  static constexpr bool kIsDouble = false;
  static constexpr int kMantissa = 10, kBias = 15;
};

// floor(log2(x)) of the positive number with these bits.
template <class Layout>
ROUNDOFF_INLINE int exponent_of(int64_t bits) {
  const int exponent = int(bits >> Layout::kMantissa);
  if (exponent > 0) return exponent - Layout::kBias;
  return 63 - __builtin_clzll(uint64_t(bits)) + 1 - Layout::kBias - Layout::kMantissa;
}

template <class Layout>
ROUNDOFF_INLINE int scale_exponent(const void* in, int64_t n, int max_exponent) {
  using Word = typename Layout::Word;
  constexpr Word kInfinity = Word(uint64_t(2 * Layout::kBias + 1) << Layout::kMantissa);
  const int64_t bits = largest_finite(static_cast<const Word*>(in), n, kInfinity).bits;
  if (bits == 0) return -kScaleLimit;
  const int scale = exponent_of<Layout>(bits) - max_exponent;
  return scale < -kScaleLimit ? -kScaleLimit : scale > kScaleLimit ? kScaleLimit : scale;
}

template <class Layout, Rounding kRounding>
ROUNDOFF_INLINE void round_block(const void* in, void* out, int64_t n, Grid grid, int max_exponent, uint64_t first,
                                 uint64_t key) {
  const int scale = scale_exponent<Layout>(in, n, max_exponent);
  grid.min_exponent += scale;
  grid.largest *= power_of_two(scale);
  if constexpr (!Layout::kIsDouble) {
    using Round = Quick<kRounding, true>;
    if (Round::takes(grid)) return sweep<typename Layout::Quickly, U32>(in, out, n, first, key, Round(grid));
  }
  sweep<typename Layout::Exactly, U32Of64>(in, out, n, first, key, Exact<kRounding>(grid));
}

template <class Layout, Rounding kRounding>
void round_rows(const Span& span, const Grid& grid, const Blocks& blocks, uint64_t key) {
  auto* in = static_cast<const typename Layout::Word*>(span.in);
  auto* out = static_cast<typename Layout::Word*>(span.out);
  for (int64_t row = 0; row < span.size; row += blocks.length) {
    for (int64_t i = 0; i < blocks.length; i += blocks.block_size) {
      const int64_t n = blocks.length - i < blocks.block_size ? blocks.length - i : blocks.block_size;
      round_block<Layout, kRounding>(in + row + i, out + row + i, n, grid, blocks.max_exponent, uint64_t(row + i), key);
    }
  }
}

template <class Layout>
void round_layout(const Span& span, const Grid& grid, const Blocks& blocks, Rounding rounding, uint64_t key) {
  switch (rounding) {
    case Rounding::nearest: return round_rows<Layout, Rounding::nearest>(span, grid, blocks, key);
    case Rounding::stochastic: return round_rows<Layout, Rounding::stochastic>(span, grid, blocks, key);
    case Rounding::toward_zero: return round_rows<Layout, Rounding::toward_zero>(span, grid, blocks, key);
    case Rounding::up: return round_rows<Layout, Rounding::up>(span, grid, blocks, key);
    case Rounding::down: return round_rows<Layout, Rounding::down>(span, grid, blocks, key);
  }
}

}  // namespace

void round_blocks(const Span& span, const Grid& grid, const Blocks& blocks, Rounding rounding, uint64_t key) {
  switch (span.dtype) {
    case Dtype::f64: return round_layout<In64>(span, grid, blocks, rounding, key);
    case Dtype::bf16: return round_layout<InBf16>(span, grid, blocks, rounding, key);
    case Dtype::f16: return round_layout<InFp16>(span, grid, blocks, rounding, key);
    default: return round_layout<In32>(span, grid, blocks, rounding, key);
  }
}

}  // namespace ROUNDOFF_ISA
}  // namespace roundoff

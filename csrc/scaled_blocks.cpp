// Rounds blocks of fp32, each times its own factor, to a small float: NVFP4, and fp8 or integers with fp32 scales.
#include "absmax.h"
#include "rounding.h"
#include "small_float.h"
#include "sweep.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

constexpr float kSmallestAmax = 1e-12f;
constexpr float kSmallestE4M3 = 0x1p-6f, kLargestE4M3 = 448.0f;

struct Factors {
  float into, back;
};

// Round a normal number of e4m3 to nearest, ties to even.
ROUNDOFF_INLINE float to_e4m3(float x) {
  const uint32_t bits = bits_of<uint32_t>(x);
  return bits_of<float>((bits + 0x7ffffu + (bits >> 20 & 1)) & ~0xfffffu);
}

ROUNDOFF_INLINE Factors factors_of(float amax, const ScaledBlocks& blocks) {
  if (blocks.scale == Scale::e4m3) {
    float scale = amax / float(blocks.largest) / blocks.tensor_scale;
    scale = to_e4m3(scale < kSmallestE4M3 ? kSmallestE4M3 : scale > kLargestE4M3 ? kLargestE4M3 : scale);
    return {1.0f / blocks.tensor_scale / scale, blocks.tensor_scale * scale};
  }
  float into = float(blocks.largest) / (amax < kSmallestAmax ? kSmallestAmax : amax);
  if (blocks.scale == Scale::power_of_two) into = bits_of<float>(bits_of<uint32_t>(into) & 0x7f800000u);
  return {into, 1.0f / into};
}

template <class Round>
struct Scaled {
  Round round;
  Factors factors;
  ROUNDOFF_INLINE U32 operator()(U32 bits, U32 counter) const {
    return (U32)((F32)round((U32)((F32)bits * factors.into), counter) * factors.back);
  }
};

template <class Round>
void round_block(const float* in, float* out, int64_t rows, int64_t columns, uint64_t first, uint64_t key,
                 const Round& round, const ScaledBlocks& blocks) {
  int64_t largest = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const auto* words = reinterpret_cast<const int32_t*>(in + row * blocks.length);
    const int64_t found = largest_finite<int32_t>(words, columns, int32_t(kInf32)).bits;
    largest = found > largest ? found : largest;
  }
  const Scaled<Round> scaled{round, factors_of(bits_of<float>(uint32_t(largest)), blocks)};
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * blocks.length;
    sweep<Fp32In32, U32>(in + at, out + at, columns, first + uint64_t(at), key, scaled);
  }
}

template <Rounding kRounding>
void round_matrices(const Span& span, const Grid& grid, const ScaledBlocks& blocks, uint64_t key) {
  const Quick<kRounding, true> round(grid);
  auto* in = static_cast<const float*>(span.in);
  auto* out = static_cast<float*>(span.out);
  const int64_t num_rows = span.size / blocks.length;
  for (int64_t row = 0; row < num_rows;) {
    const int64_t left = blocks.matrix_rows - row % blocks.matrix_rows;
    const int64_t rows = left < blocks.block_rows ? left : blocks.block_rows;
    for (int64_t column = 0; column < blocks.length; column += blocks.block_columns) {
      const int64_t width = blocks.length - column;
      const int64_t at = row * blocks.length + column;
      round_block(in + at, out + at, rows, width < blocks.block_columns ? width : blocks.block_columns, uint64_t(at),
                  key, round, blocks);
    }
    row += rows;
  }
}

}  // namespace

void round_scaled_blocks(const Span& span, const Grid& grid, const ScaledBlocks& blocks, Rounding rounding,
                         uint64_t key) {
  switch (rounding) {
    case Rounding::nearest: return round_matrices<Rounding::nearest>(span, grid, blocks, key);
    case Rounding::stochastic: return round_matrices<Rounding::stochastic>(span, grid, blocks, key);
    case Rounding::toward_zero: return round_matrices<Rounding::toward_zero>(span, grid, blocks, key);
    case Rounding::up: return round_matrices<Rounding::up>(span, grid, blocks, key);
    case Rounding::down: return round_matrices<Rounding::down>(span, grid, blocks, key);
  }
}

}  // namespace ROUNDOFF_ISA
}  // namespace roundoff

// Compresses and expands groups: a group's extremes are found, then its codes are made while it is in the L1 cache.
#include "group_codes.h"

#include <type_traits>

#include "random.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

constexpr int64_t kLanes = kBytes / 4;
constexpr uint32_t kSmallestNormal = 0x00800000u;
constexpr float kLargestStep = 0x1p125f;  // the reciprocal of a larger one would be subnormal
constexpr uint16_t kNoCodes = 0x7fc0;
constexpr float kInfinity = __builtin_inff();

// How a group is laid out: `lowest`, and from there `num_steps` steps up.
struct Ruler {
  float lowest, step;
  bool has_zero, has_codes;
};

ROUNDOFF_INLINE float bf16_below(float x) {
  const uint32_t u = bits_of<uint32_t>(x);
  return bits_of<float>((u + (u >> 31 ? 0xffffu : 0u)) & 0xffff0000u);
}

ROUNDOFF_INLINE float bf16_above(float positive) {
  return bits_of<float>((bits_of<uint32_t>(positive) + 0xffffu) & 0xffff0000u);
}

// Brings lanes together, the upper half onto the lower one, until one is left.
template <int kHalf, class Lane, class Function>
ROUNDOFF_INLINE Lane fold(Lane* lanes, Function function) {
  for (int i = 0; i < kHalf; ++i) lanes[i] = function(lanes[i], lanes[i + kHalf]);
  if constexpr (kHalf == 1) return lanes[0];
  else return fold<kHalf / 2>(lanes, function);
}

template <class Vector, class Function>
ROUNDOFF_INLINE auto across(Vector v, Function function) {
  std::remove_reference_t<decltype(v[0])> lanes[kLanes];
  store(lanes, v);
  return fold<kLanes / 2>(lanes, function);
}

template <class Codec>
ROUNDOFF_INLINE Ruler measure(const typename Codec::Word* in, int64_t n, int num_codes) {
  F32 low = F32{} + kInfinity, high = F32{} - kInfinity;
  U32 largest{};
  I32 any_zero{};
  for (int64_t i = 0; i < n; i += kLanes) {
    const U32 v = Codec::widen(in + i);
    const U32 magnitude = v & 0x7fffffffu;
    const I32 zero = (I32)magnitude < (I32)(U32{} + kSmallestNormal);
    const F32 x = (F32)v;
    const F32 below = zero ? F32{} + kInfinity : x;
    const F32 above = zero ? F32{} - kInfinity : x;
    low = below < low ? below : low;
    high = above > high ? above : high;
    largest = (I32)magnitude > (I32)largest ? magnitude : largest;
    any_zero |= zero;
  }
  const auto or_ = [](int32_t a, int32_t b) { return a | b; };
  const auto max_ = [](auto a, auto b) { return a > b ? a : b; };
  const auto min_ = [](auto a, auto b) { return a < b ? a : b; };
  const bool has_zero = across(any_zero, or_) != 0;
  if (across(largest, max_) >= kInf32) return {0, 0, has_zero, false};
  float lowest = across(low, min_), highest = across(high, max_);
  if (lowest > highest) lowest = highest = 0;  // all are zero
  lowest = bf16_below(lowest);
  const float range = highest - lowest;
  float step = range / float(num_codes - 1 - int(has_zero));
  step = step > 0x1p-126f ? step : 0x1p-126f;
  if (!(step <= kLargestStep)) return {0, 0, has_zero, false};
  return {lowest, bf16_above(step), has_zero, true};
}

// What is hashed for the first values of all whose index has the same upper half.
struct Numbers {
  U32 ramp;
  uint32_t step;
};

ROUNDOFF_INLINE Numbers numbers_for(uint64_t key, uint64_t index) {
  const Counting counting = counting_for(key, uint32_t(index >> 32));
  Numbers numbers{{}, counting.step};
  for (uint32_t i = 0; i < kLanes; ++i) numbers.ramp[i] = counting.start + i * counting.step;
  return numbers;
}

template <class Codec, int kBits>
ROUNDOFF_INLINE void write_codes(const typename Codec::Word* in, int64_t n, Ruler ruler, uint64_t index, const Numbers& numbers,
                                 uint8_t* codes) {
  constexpr int kPlanes = 8 / kBits;
  constexpr int32_t kHighest = (1 << kBits) - 1;
  const U32 lanes = numbers.ramp + uint32_t(index) * numbers.step;
  const float per_step = 1.0f / ruler.step;
  const I32 first = I32{} + int32_t(ruler.has_zero);
  const int64_t stride = n / kPlanes;
  for (int64_t j = 0; j < stride; j += kLanes) {
    U32 packed{};
    for (int plane = 0; plane < kPlanes; ++plane) {
      const int64_t at = plane * stride + j;
      const U32 v = Codec::widen(in + at);
      const U32 random = random_31(lanes + uint32_t(at) * numbers.step) >> 7;
      const F32 fraction = __builtin_convertvector((I32)random, F32) * 0x1p-24f;
      I32 code = __builtin_convertvector(((F32)v - ruler.lowest) * per_step + fraction, I32) + first;
      code = code > kHighest ? I32{} + kHighest : code;
      // Without zeros in the group this never applies.
      code = (I32)(v & 0x7fffffffu) < (I32)(U32{} + kSmallestNormal) ? I32{} : code;
      packed |= (U32)code << (plane * kBits);
    }
    store(codes + j, bytes_of(packed));
  }
}

template <class Codec, int kBits>
int64_t compress(const void* in_, uint64_t key, const Groups& groups) {
  using Word = typename Codec::Word;
  auto* in = static_cast<const Word*>(in_);
  const int64_t n = groups.group;
  int64_t num_without = 0;
  Numbers numbers = numbers_for(key, 0);
  Word padded[kLongestGroup];
  for (int64_t g = 0; g * n < groups.size; ++g) {
    const Word* group = in + g * n;
    if (uint32_t(g * n) < n) numbers = numbers_for(key, uint64_t(g * n));
    const int64_t left = groups.size - g * n;
    if (left < n) {  // repeat the first value: it changes no extreme
      std::memcpy(padded, group, left * sizeof(Word));
      for (int64_t i = left; i < n; ++i) padded[i] = padded[0];
      group = padded;
    }
    const Ruler ruler = measure<Codec>(group, n, 1 << kBits);
    uint8_t* codes = groups.codes + g * n * kBits / 8;
    uint16_t* head = groups.heads + 2 * g;
    if (ruler.has_codes) {
      head[0] = uint16_t(bits_of<uint32_t>(ruler.lowest) >> 16);
      head[1] = uint16_t(bits_of<uint32_t>(ruler.step) >> 16 | uint32_t(ruler.has_zero) << 15);
      write_codes<Codec, kBits>(group, n, ruler, uint64_t(g * n), numbers, codes);
    } else {
      ++num_without;
      head[0] = 0;
      head[1] = kNoCodes;
      std::memset(codes, 0, n * kBits / 8);
    }
  }
  return num_without;
}

template <class Codec>
int64_t compress_to(const void* in, uint64_t key, const Groups& groups) {
  switch (groups.bits) {
    case 2: return compress<Codec, 2>(in, key, groups);
    case 4: return compress<Codec, 4>(in, key, groups);
    default: return compress<Codec, 8>(in, key, groups);
  }
}

struct ToFp32 {
  using Word = uint32_t;
  static ROUNDOFF_INLINE U32 narrow(F32 x) { return (U32)x; }
};

struct ToBf16 {
  using Word = uint16_t;
  static ROUNDOFF_INLINE U16Of32 narrow(F32 x) {  // to nearest, ties to even
    const U32 u = (U32)x;
    return __builtin_convertvector((u + 0x7fffu + (u >> 16 & 1u)) >> 16, U16Of32);
  }
};

template <class Target, int kBits>
ROUNDOFF_INLINE void read_codes(const uint8_t* codes, int64_t n, Ruler ruler, typename Target::Word* out) {
  constexpr int kPlanes = 8 / kBits;
  const int64_t stride = n / kPlanes;
  const int32_t first = int32_t(ruler.has_zero);
  for (int64_t j = 0; j < stride; j += kLanes) {
    const I32 packed = __builtin_convertvector(load<U8Of32>(codes + j), I32);
    for (int plane = 0; plane < kPlanes; ++plane) {
      const I32 code = (packed >> (plane * kBits) & ((1 << kBits) - 1)) - first;
      const F32 x = __builtin_convertvector(code, F32) * ruler.step + ruler.lowest;
      store(out + plane * stride + j, Target::narrow(code < 0 ? F32{} : x));
    }
  }
}

template <class Target, int kBits>
void expand(const Groups& groups, void* out_) {
  using Word = typename Target::Word;
  auto* out = static_cast<Word*>(out_);
  const int64_t n = groups.group;
  Word padded[kLongestGroup];
  for (int64_t g = 0; g * n < groups.size; ++g) {
    const uint16_t* head = groups.heads + 2 * g;
    const Ruler ruler{bits_of<float>(uint32_t(head[0]) << 16), bits_of<float>(uint32_t(head[1] & 0x7fff) << 16),
                      head[1] >> 15 != 0, true};
    const uint8_t* codes = groups.codes + g * n * kBits / 8;
    const int64_t left = groups.size - g * n;
    if (left >= n) {
      read_codes<Target, kBits>(codes, n, ruler, out + g * n);
    } else {
      read_codes<Target, kBits>(codes, n, ruler, padded);
      std::memcpy(out + g * n, padded, left * sizeof(Word));
    }
  }
}

template <class Target>
void expand_to(const Groups& groups, void* out) {
  switch (groups.bits) {
    case 2: return expand<Target, 2>(groups, out);
    case 4: return expand<Target, 4>(groups, out);
    default: return expand<Target, 8>(groups, out);
  }
}

}  // namespace

int64_t compress_groups(const void* in, Dtype dtype, uint64_t key, const Groups& groups) {
  switch (dtype) {
    case Dtype::bf16: return compress_to<Bf16In32>(in, key, groups);
    case Dtype::f16: return compress_to<Fp16In32>(in, key, groups);
    default: return compress_to<Fp32In32>(in, key, groups);
  }
}

void expand_groups(const Groups& groups, void* out, Dtype dtype) {
  if (dtype == Dtype::bf16) return expand_to<ToBf16>(groups, out);
  return expand_to<ToFp32>(groups, out);
}

}  // namespace ROUNDOFF_ISA
}  // namespace roundoff

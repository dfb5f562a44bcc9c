// Rounding one vector to a small float: `Quick` for fp32 patterns and common formats, `Exact` for everything.
#pragma once

#include "random.h"
#include "rounding.h"

namespace roundoff {
namespace ROUNDOFF_ISA {
namespace {

ROUNDOFF_INLINE double power_of_two(int exponent) {  // also a subnormal one
  return bits_of<double>(exponent >= -1022 ? uint64_t(exponent + 1023) << 52 : 1ull << (exponent + 1074));
}

ROUNDOFF_INLINE uint64_t overflow_bits(Overflow overflow, uint64_t largest) {
  if (overflow == Overflow::infinity) return kInf64;
  return overflow == Overflow::nan ? kInf64 | 1ull << 51 : largest;
}

// What numbers beyond the largest become. A finite number that is rounded towards zero never leaves the range.
template <Rounding kRounding>
struct Beyond {
  uint64_t plus, minus, infinity;
  ROUNDOFF_INLINE explicit Beyond(const Grid& grid) {
    const uint64_t largest = bits_of<uint64_t>(grid.largest), over = overflow_bits(grid.overflow, largest);
    plus = kRounding == Rounding::toward_zero || kRounding == Rounding::down ? largest : over;
    minus = kRounding == Rounding::toward_zero || kRounding == Rounding::up ? largest : over;
    infinity = grid.overflow == Overflow::saturate_finite ? kInf64 : over;
  }
};

// Fp32 patterns, common formats. A normal result is the pattern with its last `shift` bits rounded off; a subnormal one is
// a multiple of `smallest`.
template <Rounding kRounding, bool kHasSubnormals>
struct Quick {
  uint32_t shift, low, normal, largest, over_plus, over_minus, over_infinity, zero_sign;
  float magic, per_smallest, smallest;

  // Whether this way supports the grid.
  static bool takes(const Grid& grid) {
    const int last = grid.min_exponent - grid.mantissa_bits;
    if (grid.mantissa_bits < 1 || grid.mantissa_bits > 22) return false;
    // Below 2^-90 the part of a subnormal input would count; beyond 2^100 the magic number could overflow.
    return kHasSubnormals ? grid.min_exponent > -126 && last >= -90 && last <= 100 : grid.min_exponent == -126;
  }

  static ROUNDOFF_INLINE uint32_t pattern(uint64_t bits) {
    if (bits >= kInf64) return kInf32 | uint32_t(bits >> 29 & 0x7fffffu);
    return bits_of<uint32_t>(float(bits_of<double>(bits)));
  }

  ROUNDOFF_INLINE explicit Quick(const Grid& grid) {
    const Beyond<kRounding> beyond(grid);
    shift = uint32_t(23 - grid.mantissa_bits);
    low = (1u << shift) - 1;
    normal = uint32_t(grid.min_exponent + 127) << 23;
    largest = pattern(bits_of<uint64_t>(grid.largest));
    over_plus = pattern(beyond.plus);
    over_minus = pattern(beyond.minus);
    over_infinity = pattern(beyond.infinity);
    zero_sign = grid.signed_zero ? 1u << 31 : 0;
    const int last = kHasSubnormals ? grid.min_exponent - grid.mantissa_bits : 0;
    smallest = float(power_of_two(last));
    per_smallest = float(power_of_two(-last));
    magic = float(power_of_two(last + 23));  // adding it rounds to a multiple of `smallest`
  }

  // All ones where the magnitude of an inexact result grows.
  static ROUNDOFF_INLINE U32 away(U32 sign) {
    return (U32)(kRounding == Rounding::up ? (I32)sign == 0 : (I32)sign != 0);
  }

  ROUNDOFF_INLINE U32 normal_result(U32 a, U32 sign, U32 random) const {
    U32 added = U32{};
    if constexpr (kRounding == Rounding::nearest) added = (low >> 1) + ((a >> shift) & 1);
    if constexpr (kRounding == Rounding::stochastic) added = random >> (31 - shift);
    if constexpr (kRounding == Rounding::up || kRounding == Rounding::down) added = away(sign) & low;
    return (a + added) & ~low;
  }

  ROUNDOFF_INLINE U32 subnormal_result(U32 a, U32 sign, U32 random) const {
    if constexpr (kRounding == Rounding::nearest) return (U32)(((F32)a + magic) - magic);
    const F32 count = (F32)a * per_smallest;
    const I32 whole = __builtin_convertvector(count, I32);
    const F32 part = count - __builtin_convertvector(whole, F32);
    U32 carry = U32{};
    if constexpr (kRounding == Rounding::stochastic)
      carry = ((U32)__builtin_convertvector(part * 0x1p31f, I32) + random) >> 31;
    if constexpr (kRounding == Rounding::up || kRounding == Rounding::down)  // a quotient that underflowed is not zero
      carry = (U32)((part > 0) | ((count == 0) & ((I32)a != 0))) & away(sign) & 1;
    return (U32)(__builtin_convertvector(whole + (I32)carry, F32) * smallest);
  }

  ROUNDOFF_INLINE U32 operator()(U32 bits, U32 counter) const {
    const U32 a = bits & 0x7fffffffu;
    U32 sign = bits & 0x80000000u, random = U32{};
    if constexpr (kRounding == Rounding::stochastic) random = random_31(counter);
    U32 r = normal_result(a, sign, random);
    if constexpr (kHasSubnormals) {
      const I32 is_subnormal = (I32)a < (I32)(U32{} + normal);
      r = is_subnormal ? subnormal_result(is_subnormal ? a : U32{}, sign, random) : r;
    }
    U32 over = U32{} + over_plus;
    if constexpr (kRounding == Rounding::up || kRounding == Rounding::down)
      over = (I32)sign != 0 ? U32{} + over_minus : over;
    const U32 beyond = (I32)a == (I32)(U32{} + kInf32) ? U32{} + over_infinity : over;
    r = (I32)r > (I32)(U32{} + largest) ? beyond : r;
    r = (I32)a > (I32)(U32{} + kInf32) ? a : r;
    sign = (I32)r == 0 ? sign & zero_sign : sign;
    return r | sign;
  }
};

// Fp64 patterns, any format, any rounding, in integers only.
template <Rounding kRounding>
struct Exact {
  uint64_t shift, normal, smallest, largest, over_plus, over_minus, over_infinity, zero_sign;

  ROUNDOFF_INLINE explicit Exact(const Grid& grid) {
    shift = uint64_t(52 - grid.mantissa_bits);
    normal = uint64_t(grid.min_exponent + 1023);
    smallest = bits_of<uint64_t>(power_of_two(grid.min_exponent - grid.mantissa_bits));
    largest = bits_of<uint64_t>(grid.largest);
    const Beyond<kRounding> beyond(grid);
    over_plus = beyond.plus;
    over_minus = beyond.minus;
    over_infinity = beyond.infinity;
    zero_sign = grid.signed_zero ? 1ull << 63 : 0;
  }

  // 1 where the part that is cut off, `low` of 2^`cut`, pushes the magnitude to the next number, else 0.
  ROUNDOFF_INLINE U64 carry(U64 low, U64 is_odd, I64 cut, U64 sign, U32Of64 counter) const {
    if constexpr (kRounding == Rounding::nearest) {
      const U64 one = (U64{} + 1) << (U64)(cut > 60 ? I64{} + 60 : cut);
      return (U64)((I64)(low << 1) > (I64)(one - is_odd)) & 1;
    } else if constexpr (kRounding == Rounding::stochastic) {
      const I64 down = cut - 31;
      const U64 part = down >= 0 ? low >> (U64)(down > 63 ? I64{} + 63 : down) : low << ((U64)-down & 63);
      return (part + __builtin_convertvector(random_31(counter), U64)) >> 31;
    } else if constexpr (kRounding == Rounding::toward_zero) {
      return U64{};
    } else {
      const U64 away = kRounding == Rounding::up ? ~sign >> 63 : sign >> 63;
      return (U64)((I64)low != 0) & away;
    }
  }

  ROUNDOFF_INLINE U64 operator()(U64 bits, U32Of64 counter) const {
    const U64 a = bits & ~(1ull << 63);
    U64 sign = bits & (1ull << 63);
    const I64 exponent = (I64)(a >> 52);
    const I64 at_least_1 = exponent > 0 ? exponent : I64{} + 1;
    const I64 missing = (int64_t)normal - at_least_1;
    const I64 cut = (int64_t)shift + (missing > 0 ? missing : I64{});  // bits to cut off, maybe all
    const I64 is_small = cut > 52;                                     // below the smallest number
    const U64 hidden = exponent > 0 ? U64{} + (1ull << 52) : U64{};
    const U64 significand = (a & ((1ull << 52) - 1)) | hidden;
    const U64 within = (U64)(is_small ? I64{} : cut);
    const U64 below = is_small ? ~U64{} : ((U64{} + 1) << within) - 1;
    const U64 low = significand & below;
    const U64 is_odd = is_small ? U64{} : (significand >> within) & 1;
    const U64 up = carry(low, is_odd, cut, sign, counter);
    U64 r = is_small ? -up & smallest : (a & ~below) + (up << within);
    const U64 over = sign != 0 ? U64{} + over_minus : U64{} + over_plus;
    const U64 beyond = (I64)a == (I64)(U64{} + kInf64) ? U64{} + over_infinity : over;
    r = (I64)r > (I64)(U64{} + largest) ? beyond : r;
    r = (I64)a > (I64)(U64{} + kInf64) ? a : r;
    sign = (I64)r == 0 ? sign & zero_sign : sign;
    return r | sign;
  }
};

}  // namespace
}  // namespace ROUNDOFF_ISA
}  // namespace roundoff
